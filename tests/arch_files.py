"""GGUF files of tiny models whose weights nobody needs to store.

A spec names the metadata and the tensors with their shapes.  The weights come from an
integer hash (splitmix64) of a tensor's name and each element's index, so every machine
builds the same file bit for bit, and results recorded for it hold everywhere.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from gguf_writing import write_out
from llmgen.quantize.rules import can_change

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SEED = 1


def build_file(spec: dict[str, Any], path: Path, type_name: str, seed: int = _SEED) -> None:
    """Write the model of a spec with its matrices in a type ("f32", "f16", "q8_0" ...)."""
    import gguf

    writer = gguf.GGUFWriter(str(path), spec["arch"])
    for key, kind, value in spec["metadata"]:
        if key == "general.architecture":
            continue
        if not isinstance(kind, list):
            writer.add_key_value(key, value, gguf.GGUFValueType[kind])
        elif value:
            array = gguf.GGUFValueType.ARRAY
            writer.add_key_value(key, value, array, sub_type=gguf.GGUFValueType[kind[1]])
    qtype = gguf.GGMLQuantizationType[type_name.upper()]
    for name, shape in spec["tensors"]:
        changes = can_change(name, shape, spec["arch"])  # routers do not, for one
        own = qtype if changes else gguf.GGMLQuantizationType.F32
        _add_tensor(writer, name, weights(name, shape, seed), own)
    write_out(writer)


def _add_tensor(writer: Any, name: str, values: np.ndarray, qtype: Any) -> None:
    """Norms, biases and rows that are no whole blocks stay float32."""
    import gguf

    if values.dtype == np.int32:
        writer.add_tensor(name, values)
        return
    is_matrix = values.ndim >= 2 and "norm" not in name and "conv" not in name and not name.endswith(".bias")
    if qtype is gguf.GGMLQuantizationType.F16 and is_matrix:
        writer.add_tensor(name, values.astype(np.float16))
    elif is_matrix and qtype is not gguf.GGMLQuantizationType.F32 and _fits(values, qtype):
        writer.add_tensor(name, gguf.quants.quantize(values, qtype), raw_dtype=qtype)
    else:
        writer.add_tensor(name, values)


def _fits(values: np.ndarray, qtype: Any) -> bool:
    import gguf

    return bool(values.shape[-1] % gguf.GGML_QUANT_SIZES[qtype][0] == 0)


def weights(name: str, shape: list[int], seed: int = _SEED) -> np.ndarray:
    """A tensor's values in numpy's order of dimensions, float32 of magnitudes that suit its role; int32 for a table."""
    u = _uniform(name, math.prod(shape), seed)
    leaf = name.removesuffix(".weight").split(".")[-1]
    if leaf == "ffn_gate_tid2eid":  # some of eight experts for each token
        first = (4 * (u.reshape(shape[::-1])[:, :1] + 1)).astype(np.int32)
        return (first + 3 * np.arange(shape[0], dtype=np.int32)) % 8
    if leaf == "ssm_a":  # decay of a state: below 0
        values = -0.5 - 0.4 * u
    elif leaf.startswith("rope_f"):  # divisors of frequencies: above 1
        values = 1.5 + 0.5 * u
    elif name.endswith(("scale", ".scales")) or ("norm" in name and not name.endswith(".bias")):
        values = 1.0 + 0.25 * u
    elif len(shape) == 1 or name.endswith(".bias"):
        values = 0.1 * u
    elif leaf in ("token_embd", "position_embd", "per_layer_token_embd"):
        values = 0.8 * u
    else:  # a projection: variance 1 / inputs
        values = u * np.float32(np.sqrt(3.0 / shape[0]))
    return values.astype(np.float32).reshape(shape[::-1])


def _uniform(name: str, count: int, seed: int) -> np.ndarray:
    """float32 [count] in [-1, 1): splitmix64 of a name's FNV-1a hash and the index."""
    base = 0xCBF29CE484222325
    for byte in name.encode():
        base = ((base ^ byte) * 0x100000001B3) & _MASK
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    z += np.uint64((base + seed * _GOLDEN) & _MASK)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    unit = (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23)
    return unit - np.float32(1.0)
