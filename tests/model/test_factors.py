"""Factors of whole matrices: tensors that are named ``.scale``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arch_files
import gguf
import tiny
from arch_files import build_file
from archs import read_spec
from engines import engine
from llmgen.backends.cpu.dry_run import dry_run
from llmgen.errors import UnsupportedModelError
from llmgen.gguf import GGUFFile
from naive import logits

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
weights = arch_files.weights


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("phi3-dense", ("attn_output", "ffn_up", "ffn_down")),  # gate and up are one matrix
        ("nemotron_h-dense", ("attn_q", "ssm_in", "ssm_out", "ffn_up", "ffn_down")),
        ("plamo2-dense", ("attn_qkv", "ssm_in", "ssm_out", "ffn_up")),
        ("kimi-linear-moe", ("attn_q", "attn_k", "ssm_beta", "ffn_up_exps", "ffn_up_shexp")),
        ("deepseek2-moe", ("attn_output", "ffn_gate", "ffn_down_exps")),
    ],
)
def test_a_factor_is_that_of_all_weights(
    name: str, parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with the factor 2 computes what one with doubled weights (and biases, of feed-forwards) does."""

    def is_chosen(tensor: str) -> bool:
        stem, _, kind = tensor.rpartition(".")
        return stem.endswith(parts) and (kind == "weight" or ".ffn_" in stem)

    spec = read_spec(name)
    build_file(spec, plain := tmp_path / "plain.gguf", "f32")
    monkeypatch.setattr(
        arch_files, "weights", lambda n, shape, seed: weights(n, shape) * (2 if is_chosen(n) else 1)
    )
    build_file(spec, doubled := tmp_path / "doubled.gguf", "f32")
    monkeypatch.setattr(
        arch_files,
        "weights",
        lambda n, shape, seed: (
            np.full(shape[::-1], 2, np.float32) if n.endswith(".scale") else weights(n, shape)
        ),
    )
    spec["tensors"] += [
        [n.replace(".weight", ".scale"), [shape[-1] if "_exps" in n else 1]]
        for n, shape in spec["tensors"]
        if n.endswith(".weight") and is_chosen(n)
    ]
    build_file(spec, scaled := tmp_path / "scaled.gguf", "f32")
    expected = logits(doubled, TOKENS)
    assert np.abs(expected - logits(plain, TOKENS)).max() > 0.01
    np.testing.assert_allclose(logits(scaled, TOKENS), expected, rtol=1e-5, atol=1e-6)
    with GGUFFile.open(scaled) as file:
        dry_run(file)  # no tensor is left unread


def fp4(path: Path, monkeypatch: pytest.MonkeyPatch, **factors: float) -> Path:
    """A model whose output matrix and first projection are in NVFP4; ``factors``: ``__`` stands for a dot."""
    named = {name.replace("__", "."): value for name, value in factors.items()}
    spec, add = read_spec("qwen3-dense"), arch_files._add_tensor
    spec["tensors"] += [[name, [1]] for name in named]

    def add_tensor(writer: Any, name: str, values: np.ndarray, qtype: Any) -> None:
        if name in named:
            values = np.array([named[name]], np.float32)
        elif name in ("output.weight", "blk.0.attn_q.weight"):
            blocks = np.random.default_rng(1).integers(
                0, 256, (*values.shape[:-1], values.shape[-1] // 64, 36)
            )
            blocks[..., :4] = 0x18  # the scales of 16 values each: 8-bit floats
            raw = blocks.astype(np.uint8).reshape(*values.shape[:-1], -1)
            return writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.NVFP4)
        return add(writer, name, values, qtype)

    monkeypatch.setattr(arch_files, "_add_tensor", add_tensor)
    build_file(spec, path, "f32")
    monkeypatch.setattr(arch_files, "_add_tensor", add)
    return path


def test_fp4_has_factors_of_the_output_and_of_activations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fp4(tmp_path / "plain.gguf", monkeypatch)
    given = {"output__scale": 3.0, "output__input_scale": 7.0, "blk__0__attn_q__input_scale": 0.2}
    scaled = fp4(tmp_path / "scaled.gguf", monkeypatch, **given)
    np.testing.assert_allclose(logits(scaled, TOKENS), 3 * logits(plain, TOKENS), rtol=1e-5)


def test_a_factor_of_activations_has_no_effect_in_any_type(tmp_path: Path) -> None:
    """llama.cpp leaves it in the file when it gives a matrix another type than NVFP4."""
    scale = {"blk.0.attn_q.input_scale": np.array([0.2], np.float32)}
    plain, scaled = tiny.write(tmp_path / "plain.gguf"), tiny.write(tmp_path / "scaled.gguf", tensors=scale)
    with GGUFFile.open(scaled) as file:
        dry_run(file)  # no tensor is left unread
    np.testing.assert_array_equal(logits(scaled, TOKENS), logits(plain, TOKENS))


def test_a_factor_of_the_output_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgen.model.weights._FACTORED", re.compile("output"))
    tensors = {"output.weight": np.eye(len(tiny.TOKENS), tiny.WIDTH, dtype=np.float32)}
    plain = tiny.write(tmp_path / "plain.gguf", tensors=tensors)
    scaled = tiny.write(
        tmp_path / "scaled.gguf", tensors={**tensors, "output.scale": np.array([2], np.float32)}
    )
    with engine(scaled) as model, engine(plain) as other:
        ours, theirs = (m.prefill(m.new_sequence(), TOKENS, logits="all") for m in (model, other))
    np.testing.assert_array_equal(ours, 2 * theirs)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("output.scale", "does not read"),  # of a matrix in float32
        ("blk.0.attn_norm.scale", "does not read"),
        ("token_embd.scale", "does not read"),
        ("blk.0.attn_q.scale", "is nan, expected a finite number"),
    ],
)
def test_other_factors_are_refused(name: str, says: str, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", tensors={name: np.array([np.nan], np.float32)})
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedModelError, match=says) as caught:
        dry_run(file)
    assert name in str(caught.value)
