"""A model of two layers with a vocabulary of its own, small enough to be made wrong in a hundred ways."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gguf

TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "ab"]
TYPES = [2, 3, 3, *[6] * 256, *[1] * 4]
WIDTH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS = 32, 2, 1, 16, 64, 2

KEYS: dict[str, tuple[str, Any]] = {
    "block_count": ("uint32", LAYERS),
    "embedding_length": ("uint32", WIDTH),
    "feed_forward_length": ("uint32", HIDDEN),
    "attention.head_count": ("uint32", HEADS),
    "attention.head_count_kv": ("uint32", KV_HEADS),
    "attention.layer_norm_rms_epsilon": ("float32", 1e-5),
    "context_length": ("uint32", 256),
    "rope.dimension_count": ("uint32", HEAD_DIM),
    "rope.freq_base": ("float32", 10000.0),
}
YARN: dict[str, tuple[str, Any]] = {
    "rope.scaling.type": ("string", "yarn"),
    "rope.scaling.factor": ("float32", 4.0),
    "rope.scaling.original_context_length": ("uint32", 64),
}


def _shapes() -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, slowest axis first."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    for i in range(LAYERS):
        block = {
            "attn_norm": (WIDTH,),
            "attn_q": (HEADS * HEAD_DIM, WIDTH),
            "attn_k": (KV_HEADS * HEAD_DIM, WIDTH),
            "attn_v": (KV_HEADS * HEAD_DIM, WIDTH),
            "attn_output": (WIDTH, HEADS * HEAD_DIM),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def mixture() -> dict[str, Any]:
    """Arguments of ``write`` for a llama of four experts of which two are used."""
    shapes = {"gate_inp": (4, WIDTH), "gate_exps": (4, HIDDEN, WIDTH), "up_exps": (4, HIDDEN, WIDTH),
              "down_exps": (4, WIDTH, HIDDEN)}  # fmt: skip
    rng, blocks = np.random.default_rng(1), range(LAYERS)
    tensors = {
        f"blk.{i}.ffn_{name}.weight": (rng.standard_normal(shape) * 0.1).astype(np.float32)
        for i in blocks
        for name, shape in shapes.items()
    }
    dense = [f"blk.{i}.ffn_{name}.weight" for i in blocks for name in ("gate", "up", "down")]
    keys = {"expert_count": ("uint32", 4), "expert_used_count": ("uint32", 2)}
    return {"keys": keys, "tensors": tensors, "drop": dense}


def write(
    path: Path,
    keys: Mapping[str, tuple[str, Any] | None] | None = None,
    tensors: Mapping[str, np.ndarray | Callable[[np.ndarray], np.ndarray]] | None = None,
    drop: Collection[str] = (),
    architecture: str = "llama",
    kind: str = "f32",
) -> Path:
    """Write the model; ``keys`` (without the architecture) and ``tensors`` replace what is there, None removes.

    A tensor is an array, or a function of the one that is there; a new name is added. Raw bytes (uint8) count
    as Q8_0; matrices are in ``kind`` (f32 or q8_0).
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, entry in {**KEYS, **(keys or {})}.items():
        if entry is not None:
            getattr(writer, f"add_{entry[0]}")(f"{architecture}.{key}", entry[1])
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(i) for i in range(len(TOKENS))])
    writer.add_token_types(TYPES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(0)
    shapes = _shapes()
    for name in {**shapes, **(tensors or {})}:
        shape = shapes.get(name, (1,))
        values: Any = (rng.standard_normal(shape) * 0.1).astype(np.float32)
        if kind == "q8_0" and len(shape) == 2:
            values = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        other = (tensors or {}).get(name)
        if other is not None:
            values = other(values) if callable(other) else other
        if name not in drop:
            raw = gguf.GGMLQuantizationType.Q8_0 if values.dtype == np.uint8 else None
            writer.add_tensor(name, values, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
