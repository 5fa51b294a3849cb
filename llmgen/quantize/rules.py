"""Which tensor of a model gets which type in a mix.

These are facts of llama.cpp, so that a file made here has the types, and about the size, of one
made there: src/llama-quant.cpp, ``tensor_allows_quantization``, ``llama_tensor_get_type_impl`` and
``tensor_type_fallback``, without an importance matrix.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from llmgen.gguf import GGMLType, GGUFFile, TensorInfo
from llmgen.quantize.mixes import Mix

_LAYER = re.compile(r"blk\.(\d+)\.")
_KEPT_NAMES = ("position_embd.weight", "token_types.weight")
_KEPT_PARTS = tuple(
    (
        "_norm.weight ffn_gate_inp.weight ffn_gate_tid2eid.weight altup laurel per_layer_model_proj ssm_conv1d "
        "shortconv.conv.weight indexer.k_proj.weight indexer.q_proj.weight time_mix_first.weight "
        "time_mix_w0.weight time_mix_w1.weight time_mix_w2.weight time_mix_v0.weight time_mix_v1.weight "
        "time_mix_v2.weight time_mix_a0.weight time_mix_a1.weight time_mix_a2.weight time_mix_g1.weight "
        "time_mix_g2.weight time_mix_decay_w1.weight time_mix_decay_w2.weight time_mix_lerp_fused.weight "
        "attn_rel_b.weight .position_embd sam.pos_embd sam.neck. sam.net_ .rel_pos .patch_embd .patch_merger "
        "a.rvq.codebook mm.a.code_embd"
    ).split()
)
_KEPT_OF = {
    "glm5-next": tuple(
        (
            "hc_ indexer.attn_q_b indexer.attn_k indexer.proj indexer_compressor_gate indexer_compressor_ape "
            "ssm_f_a.weight ssm_f_b.weight ssm_g_a.weight ssm_g_b.weight ssm_beta.weight attn_kv_a_mqa.weight "
            "attn_k_b.weight attn_v_b.weight"
        ).split()
    )
}
_AT_LEAST_Q8_OF = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}

_ROLES = (
    *(("attn_qkv.weight", "values"), ("attn_kv_b.weight", "values"), ("attn_v.weight", "values")),
    *(("attn_k.weight", "keys"), ("attn_q.weight", "queries"), ("attn_output.weight", "attention output")),
    *(("ffn_up", "up"), ("ffn_gate", "gate"), ("ffn_down", "down")),
)
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")

_LAYERS_OF_70B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}
"""Of models that count as one of 70B there (``LLM_TYPE_70B`` in src/models); a llama without shared heads does not."""

_FALLBACKS = {
    GGMLType.IQ4_XS: GGMLType.IQ4_NL,
    GGMLType.Q2_K: GGMLType.Q4_0,
    GGMLType.Q3_K: GGMLType.Q4_0,
    GGMLType.TQ1_0: GGMLType.Q4_0,
    GGMLType.TQ2_0: GGMLType.Q4_0,
    GGMLType.Q4_K: GGMLType.Q5_0,
    GGMLType.Q5_K: GGMLType.Q5_1,
    GGMLType.Q6_K: GGMLType.Q8_0,
}
"""What a type of 256 weights a block gives way to where rows are no multiple of that."""


@dataclass(frozen=True)
class Shape:
    """What the rules ask of a model."""

    architecture: str
    n_layers: int
    n_experts: int
    queries_per_key: int
    is_70b: bool

    @classmethod
    def of(cls, file: GGUFFile) -> Shape:
        """The shape that the file's metadata tell; what is not there counts as 0."""
        architecture = file.architecture or ""

        def number(key: str, default: int = 0) -> int:
            value = file.metadata.get(f"{architecture}.{key}", default)
            if hasattr(value, "__len__") and not isinstance(value, str):  # one for each layer
                value = value[0] if len(value) else default
            return int(value) if isinstance(value, int) or hasattr(value, "dtype") else default

        heads = number("attention.head_count")
        kv_heads = number("attention.head_count_kv", heads)
        layers = number("block_count")
        return cls(
            architecture,
            layers,
            number("expert_count"),
            heads // kv_heads if kv_heads > 0 else 0,
            layers == _LAYERS_OF_70B.get(architecture) and (architecture != "llama" or heads != kv_heads),
        )


def can_change(name: str, shape: Sequence[int], architecture: str) -> bool:
    """Whether a mix may change a tensor's type: a matrix, and none of the small delicate ones.

    shape: as in the file, the length of a row first.
    """
    is_matrix = any(n > 1 for n in shape[1:])
    kept = name in _KEPT_NAMES or any(
        part in name for part in (*_KEPT_PARTS, *_KEPT_OF.get(architecture, ()))
    )
    return is_matrix and name.endswith("weight") and not kept


def fitting(wanted: GGMLType, n_columns: int) -> GGMLType:
    """``wanted``, or the type that takes its place where rows are not whole blocks of it."""
    if n_columns % wanted.block_size == 0:
        return wanted
    other = _FALLBACKS.get(wanted, wanted)
    return other if n_columns % other.block_size == 0 else GGMLType.F16


def wanted_types(mix: Mix, tensors: Sequence[TensorInfo], shape: Shape) -> dict[str, GGMLType]:
    """The type that the mix wants for each tensor that it may change, whatever the length of its rows."""
    changing = [t for t in sorted(tensors, key=_by_layer) if can_change(t.name, t.shape, shape.architecture)]
    if mix.is_float:
        return {t.name: mix.type for t in changing}
    rules = _Rules(mix, shape, tensors)
    return {t.name: rules.type_of(t) for t in changing}


def _by_layer(tensor: TensorInfo) -> tuple[int, str]:
    found = _LAYER.match(tensor.name)
    return int(found[1]) if found else -1, tensor.name


def _role(name: str) -> str:
    if name == "output.weight":
        return "output"
    if name in _EMBEDDINGS:
        return "embedding"
    return next((role for part, role in _ROLES if part in name), "other")


class _Rules:
    """The rules of one mix; tensors must be asked for in order, since some depend on how many came before."""

    def __init__(self, mix: Mix, shape: Shape, tensors: Sequence[TensorInfo]) -> None:
        self._mix, self._shape = mix, shape
        roles = [_role(t.name) for t in tensors]
        self._n_values = roles.count("values")
        self._tied = "output" not in roles
        self._seen: Counter[str] = Counter()
        self._is_falcon = shape.architecture == "falcon"
        self._eight_experts = shape.n_experts == 8

    def type_of(self, tensor: TensorInfo) -> GGMLType:
        """The type of the next tensor."""
        if any(part in tensor.name for part in _AT_LEAST_Q8_OF.get(self._shape.architecture, ())):
            return GGMLType.Q8_0
        role = _role(tensor.name)
        if role == "output" or (role == "embedding" and self._tied):
            return self._output()
        if self._mix.name == "MXFP4_MOE":
            return self._experts_only(tensor, role)
        if role == "embedding":
            return GGMLType.Q4_K if self._mix.name in ("TQ1_0", "TQ2_0") else self._mix.type
        choose = {
            "values": self._values,
            "keys": lambda _: GGMLType.Q8_0 if self._eight_experts else None,
            "attention output": self._attention_output,
            "down": self._down,
        }.get(role)
        found = choose(tensor) if choose else None
        self._seen[role] += 1
        return self._mix.type if found is None else found

    def _output(self) -> GGMLType:
        if self._mix.type in (GGMLType.Q8_0, GGMLType.MXFP4) or self._is_falcon:
            return GGMLType.Q8_0
        return GGMLType.Q6_K

    def _experts_only(self, tensor: TensorInfo, role: str) -> GGMLType:
        """MXFP4 for the experts of a mixture, Q8_0 for all else."""
        stacked = len(tensor.shape) > 2 and tensor.shape[2] > 1
        if self._shape.architecture == "bailingmoe3" and role not in ("up", "gate", "down"):
            stacked = False
        return GGMLType.MXFP4 if stacked else GGMLType.Q8_0

    def _values(self, tensor: TensorInfo) -> GGMLType | None:
        if self._eight_experts:
            return GGMLType.Q8_0
        name, i, shared = self._mix.name, self._seen["values"], self._shape.queries_per_key >= 4
        found = None
        if name == "Q2_K":
            found = GGMLType.Q4_K if shared else GGMLType.Q3_K
        elif name == "Q3_K_M":
            found = GGMLType.Q5_K if i < 2 else GGMLType.Q4_K
        elif name == "Q3_K_L" or (name in ("IQ4_NL", "IQ4_XS") and shared) or (name == "Q4_K_S" and i < 4):
            found = GGMLType.Q5_K
        elif name in ("Q4_K_M", "Q5_K_M") and _more_bits(i, self._n_values):
            found = GGMLType.Q6_K
        if self._shape.is_70b and (found or self._mix.type) in (GGMLType.Q3_K, GGMLType.Q4_K):
            found = GGMLType.Q5_K  # eight heads share it: it is small, and matters
        return found

    def _down(self, tensor: TensorInfo) -> GGMLType | None:
        name, i, n = self._mix.name, self._layer(tensor), self._shape.n_layers
        more = _more_bits(i, n)
        if name == "Q2_K":
            return GGMLType.Q3_K
        if name == "Q3_K_M":
            if i < n // 16:
                return GGMLType.Q5_K
            return GGMLType.Q4_K if more or not self._is_falcon else GGMLType.Q3_K
        if name == "Q3_K_L":
            return GGMLType.Q4_K if self._is_falcon else GGMLType.Q5_K
        if name == "Q4_K_M" and self._is_falcon:
            if i < n // 16:
                return GGMLType.Q6_K
            return GGMLType.Q5_K if more else GGMLType.Q4_K
        if name in ("Q4_K_M", "Q5_K_M"):
            return GGMLType.Q6_K if more else None
        early = name in ("IQ4_NL", "IQ4_XS") or (name == "Q4_K_S" and not self._is_falcon)
        return GGMLType.Q5_K if early and i < n // 8 else None

    def _layer(self, tensor: TensorInfo) -> int:
        """The layer of a tensor; without experts, how many of its role came before."""
        return _by_layer(tensor)[0] if self._shape.n_experts > 1 else self._seen["down"]

    def _attention_output(self, tensor: TensorInfo) -> GGMLType | None:
        name = self._mix.name
        if self._is_falcon:
            return GGMLType.Q4_K if name == "Q3_K_L" else None
        if self._eight_experts:
            more = ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS")
            return GGMLType.Q5_K if name in more else None
        return {"Q2_K": GGMLType.Q3_K, "Q3_K_M": GGMLType.Q4_K, "Q3_K_L": GGMLType.Q5_K}.get(name)


def _more_bits(i: int, n: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
