"""What an architecture reads from its file, and what it takes where a key is missing.

The facts are llama.cpp's (src/llama-model.cpp and src/models/*.cpp, as in
llama-cpp-python 0.3.36). Keys that a file holds and its architecture does not
read have no effect, and are not looked up here either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gguf import GGUFReader
from naive.kernels import Array, Rope

ARCHITECTURES = (
    "llama", "mistral3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "stablelm", "olmo2",
)  # fmt: skip
PAIRED_ROPE = ("llama", "mistral3")  # neighbours (2i, 2i+1); all others are NeoX-style halves
ATTENTION_OUT_BIAS = ("llama", "mistral3")
FFN_BIAS = ("llama", "mistral3")
OUTPUT_BIAS = ("qwen2",)
ALWAYS_TIED = ("gemma", "gemma2")
# Every how many-th layer is global where the file has no pattern (0: no windows in this family).
GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6, "olmo2": 4}


class Keys:
    """The metadata of one file, with keys relative to its architecture."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields
        self.architecture: str = self._fields["general.architecture"].contents()

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(f"{self.architecture}.{key}")
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise KeyError(f"{self.architecture}.{key}")
        return value

    def per_layer(self, key: str, n_layers: int, default: Any = None) -> list[int]:
        value = self.get(key, default)
        return list(value) if isinstance(value, (list, tuple)) else [value] * n_layers


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of one file; lists have one entry per layer."""

    architecture: str
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    eps: float
    attention_scale: float
    attention_cap: float
    final_cap: float
    embedding_scale: float
    windows: list[int]  # 0: the layer sees everything
    ropes: list[Rope]
    temperature_scale: float  # mistral3: longer contexts sharpen the queries
    n_ctx_orig: int


def read_settings(reader: GGUFReader, tensors: dict[str, Array], n_ctx: int | None = None) -> Settings:
    """Settings of an open file. n_ctx is the session's context: it decides phi3's rope factors."""
    keys = Keys(reader)
    arch = keys.architecture
    if arch not in ARCHITECTURES:
        raise ValueError(f"the oracle does not know {arch}")
    n_layers, n_embd = keys.need("block_count"), keys.need("embedding_length")
    n_heads = keys.per_layer("attention.head_count", n_layers)[0]
    n_kv_heads = keys.per_layer("attention.head_count_kv", n_layers, n_heads)[0]
    head_dim = keys.get("attention.key_length", n_embd // n_heads)
    local = local_layers(keys, n_layers)
    window = keys.get("attention.sliding_window", 4096 if arch == "gemma2" else 0)
    norm = "layer_norm_epsilon" if arch == "stablelm" else "layer_norm_rms_epsilon"
    big = (arch, n_layers) in (("gemma2", 46), ("gemma3", 62))  # the two 27B models
    default_caps = {"gemma2": 30.0, "gemma3": 0.0}  # the others ignore the key
    return Settings(
        architecture=arch,
        n_layers=n_layers,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        eps=keys.need(f"attention.{norm}"),
        attention_scale=1 / math.sqrt(n_embd // n_heads if big else head_dim),
        attention_cap=keys.get("attn_logit_softcapping", 50.0) if arch == "gemma2" else 0.0,
        final_cap=keys.get("final_logit_softcapping", default_caps[arch]) if arch in default_caps else 0.0,
        embedding_scale=math.sqrt(n_embd) if arch.startswith("gemma") else 1.0,
        windows=[window if is_local else 0 for is_local in local],
        ropes=[read_rope(keys, tensors, head_dim, is_local, n_ctx) for is_local in local],
        temperature_scale=keys.get("attention.temperature_scale", 0.0) if arch == "mistral3" else 0.0,
        n_ctx_orig=original_context(keys),
    )


def original_context(keys: Keys) -> int:
    """The context the unscaled rope was trained for."""
    trained = keys.need("context_length")
    return keys.get("rope.scaling.original_context_length", trained) or trained


def local_layers(keys: Keys, n_layers: int) -> list[bool]:
    """Which layers attend within a sliding window only. phi3's key is ignored, as in llama.cpp."""
    arch = keys.architecture
    window = keys.get("attention.sliding_window", 4096 if arch == "gemma2" else 0)
    if arch not in GLOBAL_EVERY or not window:
        return [False] * n_layers
    pattern = keys.get("attention.sliding_window_pattern", GLOBAL_EVERY[arch])
    if isinstance(pattern, (list, tuple, np.ndarray)):
        return [bool(flag) for flag in pattern]
    return [pattern == 0 or layer % pattern < pattern - 1 for layer in range(n_layers)]


def read_rope(
    keys: Keys, tensors: dict[str, Array], head_dim: int, is_local: bool, n_ctx: int | None
) -> Rope:
    """The rotation of one layer."""
    arch = keys.architecture
    base = keys.get("rope.freq_base", 10000.0)
    kind = keys.get("rope.scaling.type", "linear")
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0.0))
    freq_scale = 1 / factor if factor and kind != "none" else 1.0
    yarn = kind == "yarn"
    magnitude = keys.get("rope.scaling.attn_factor", 1.0)
    log_mul, beta_fast, beta_slow = 0.0, 32.0, 1.0
    if arch == "mistral3":
        log_mul = keys.get("rope.scaling.yarn_log_multiplier", 0.0)
        beta_fast = keys.get("rope.scaling.yarn_beta_fast", beta_fast)
        beta_slow = keys.get("rope.scaling.yarn_beta_slow", beta_slow)
    if is_local and arch == "gemma2":
        base = keys.get("rope.freq_base_swa", base)
    if is_local and arch == "gemma3":
        base, freq_scale = keys.get("rope.freq_base_swa", 10000.0), 1.0
    if is_local and arch == "olmo2":  # plain rotation: no scaling of any kind
        freq_scale, yarn, magnitude = 1.0, False, 1.0
    if yarn:
        magnitude *= yarn_magnitude(1 / freq_scale, log_mul)
    return Rope(
        n_rot=keys.get("rope.dimension_count", head_dim),
        base=base,
        neox=arch not in PAIRED_ROPE,
        freq_scale=freq_scale,
        factors=frequency_factors(keys, tensors, kind, n_ctx),
        yarn=yarn,
        n_ctx_orig=original_context(keys),
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        magnitude=magnitude,
    )


def yarn_magnitude(factor: float, log_mul: float) -> float:
    """YaRN's growth of attention logits with the scaling factor (ggml's intermediate terms cancel)."""

    def growth(multiplier: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

    return growth(1.0) / growth(log_mul) if log_mul else growth(1.0)


def frequency_factors(keys: Keys, tensors: dict[str, Array], kind: str, n_ctx: int | None) -> Array | None:
    """Divisors of the angles, [n_rot/2]: Llama 3's rope_freqs, or LongRoPE's long or short list."""
    arch = keys.architecture
    long_rope = arch == "phi3" or (arch in ("llama", "mistral3") and kind == "longrope")
    if long_rope:
        is_long = (n_ctx or keys.need("context_length")) > original_context(keys)
        return tensors.get("rope_factors_long.weight" if is_long else "rope_factors_short.weight")
    return tensors.get("rope_freqs.weight") if arch in ("llama", "mistral3") else None
