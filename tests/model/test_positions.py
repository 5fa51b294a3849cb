"""Rotations far beyond the context that a file was trained for, against llama.cpp's logits.

positions.npz holds `tokens` int32 [300] and, for each name, the logits float32 [2, 128] after the last
two of them, computed by llama.cpp (llama-cpp-python 0.3.36, CPU, f32 cache, flash attention off, a context
of 320) in one batch on the very files built here.  The models were trained for 256 tokens, those with an
original context for 64.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archs import build_variant, read_spec
from engines import engine, one_by_one
from naive import logits, nmse

CONTEXT = 320
LINEAR = {"rope.scaling.type": ("STRING", "linear"), "rope.scaling.factor": ("FLOAT32", 4.0)}
YARN = {
    "rope.scaling.type": ("STRING", "yarn"),
    "rope.scaling.factor": ("FLOAT32", 4.0),
    "rope.scaling.original_context_length": ("UINT32", 64),
}
LONGROPE = {
    "rope.scaling.type": ("STRING", "longrope"),
    "rope.scaling.original_context_length": ("UINT32", 64),
    "rope.scaling.attn_factor": ("FLOAT32", 1.19),
}
MAGNITUDE = {"rope.scaling.attn_factor": ("FLOAT32", 1.2)}
OF_GROK = {
    "rope.scaling.yarn_ext_factor": ("FLOAT32", 0.7),
    "rope.scaling.yarn_attn_factor": ("FLOAT32", 1.1),
    "rope.scaling.yarn_beta_fast": ("FLOAT32", 16.0),
    "rope.scaling.yarn_log_multiplier": ("FLOAT32", 0.5),  # not a key that Grok's files are read for
}
NO_RAMP = OF_GROK | {"rope.scaling.yarn_ext_factor": ("FLOAT32", 0.0)}


def _factors(*names: str, pairs: int = 64) -> dict[str, list[int]]:
    return {f"{name}.weight": [pairs] for name in names}


LONG_AND_SHORT = _factors("rope_factors_long", "rope_factors_short")
# name -> (spec, arguments of build_variant)
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "trained-context-passed": ("qwen3-dense", {}),
    "linear": ("qwen3-dense", {"set_keys": LINEAR}),
    "linear-with-windows": ("gemma3-dense", {"set_keys": LINEAR | MAGNITUDE}),
    "yarn": ("qwen3moe-moe", {"set_keys": YARN | MAGNITUDE}),
    "yarn-latent": (
        "deepseek2-moe",
        {"set_keys": YARN | {"rope.scaling.yarn_log_multiplier": ("FLOAT32", 0.0707)}},
    ),
    "yarn-windows-unstretched": ("plamo3-dense", {"set_keys": YARN | MAGNITUDE}),
    "yarn-windows-alone": ("muse-glimmer-dense", {"set_keys": YARN | MAGNITUDE}),
    "yarn-grok": ("grok-moe", {"set_keys": YARN | MAGNITUDE | OF_GROK}),
    "yarn-grok-whatever-the-kind": ("grok-moe", {"set_keys": LINEAR | MAGNITUDE | OF_GROK}),
    "yarn-grok-without-a-ramp": ("grok-moe", {"set_keys": YARN | MAGNITUDE | NO_RAMP}),
    "yarn-axes": ("qwen2vl-dense", {"set_keys": YARN}),
    "llama3-factors": ("llama-dense", {"reshape": _factors("rope_freqs")}),
    "longrope": (
        "llama-dense",
        {"set_keys": LONGROPE, "reshape": LONG_AND_SHORT, "drop_tensors": ("rope_freqs.weight",)},
    ),
    "longrope-phi3": ("phi3-dense", {"set_keys": LONGROPE, "reshape": LONG_AND_SHORT}),
    "partial-yarn": ("glm4moe-moe", {"set_keys": YARN | {"rope.dimension_count": ("UINT32", 64)}}),
    "axes": ("qwen3vl-dense", {"set_keys": LINEAR}),
    "nope": ("smollm3-dense", {"set_keys": LINEAR | {"block_count": ("UINT32", 4)}}),
}


@cache
def build(name: str) -> Path:
    spec, arguments = FILES[name]
    arguments = dict(arguments)
    layers = arguments.get("set_keys", {}).get("block_count")
    if layers:  # like the first one
        first = [(n[6:], shape) for n, shape in read_spec(spec)["tensors"] if n.startswith("blk.0.")]
        more = {f"blk.{i}.{rest}": shape for i in range(2, layers[1]) for rest, shape in first}
        arguments["reshape"] = arguments.get("reshape", {}) | more
    return build_variant(spec, f"positions-{name}", **arguments)


def stored(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens int32 [300] and llama.cpp's logits float32 [2, 128] after the last two."""
    with np.load(Path(__file__).parent / "positions.npz") as file:
        return file["tokens"], file[name]


@pytest.mark.parametrize("name", FILES)
def test_logits_beyond_the_trained_context(name: str) -> None:
    tokens, expected = stored(name)
    assert nmse(logits(build(name), tokens, n_past=298, n_ctx=CONTEXT), expected) < 1e-7


@pytest.mark.parametrize("name", ["longrope", "yarn-windows-unstretched"])
def test_the_cpu_rotates_as_far(name: str) -> None:
    tokens, expected = stored(name)
    with engine(build(name), n_ctx=CONTEXT) as model:
        seq = model.new_sequence()
        model.prefill(seq, [int(t) for t in tokens[:-2]])
        assert nmse(one_by_one(model, seq, tokens[-2:]), expected) < 1e-6
