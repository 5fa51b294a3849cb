"""llama.cpp's logits by all the ways in which a sequence comes to its tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import variants
from archs import SPECS, UNORDERED, build_arch, build_variant, reference
from engines import engine, in_chunks, one_by_one
from llmgen.gguf import GGUFFile
from llmgen.model.archs import read_model
from llmgen.model.archs.llama4 import Llama4
from llmgen.model.runs import Part
from naive import logits, nmse

LIMIT = 1e-6


@pytest.mark.parametrize("name", [name for name in SPECS if name not in UNORDERED])
def test_side_by_side_cleared_cut_and_forked(name: str) -> None:
    by_all_ways(build_arch(name), *reference(name))


@pytest.mark.parametrize("name", ["dots3note-few-keys", "minimax-m3-few-blocks", "glm5-next-few-pools"])
def test_the_same_where_keys_are_chosen(name: str) -> None:
    """In the models above the context is too short for a choice; the oracle is the witness."""
    path, (tokens, _) = variants.build(name), variants.reference(name)
    by_all_ways(path, tokens[:60], logits(path, tokens[:60]))


def by_all_ways(path: Path, tokens: np.ndarray, expected: np.ndarray) -> None:
    """Two sequences in a run, one token at a time, after a cut, in a fork, after clear."""
    ids, n = tokens.tolist(), len(tokens)
    with engine(path, n_threads=2) as model:
        seq, other = model.new_sequence(), model.new_sequence()
        model.prefill(other, ids[:9], logits="none")
        rows = model.forward([Part(other, ids[9:20], 11), Part(seq, ids[:30], 30)], "prompt")
        assert nmse(rows, np.concatenate([expected[9:20], expected[:30]])) < LIMIT
        rows = [model.decode([seq, other], [ids[30 + i], ids[20 + i]]) for i in range(8)]
        assert (
            nmse(np.concatenate(rows), np.stack([expected[30:38], expected[20:28]], 1).reshape(16, -1))
            < LIMIT
        )

        seq.checkpoint()
        fork = seq.fork()
        model.prefill(seq, ids[:5], logits="none")
        seq.truncate(seq.cut_point(38))  # a recurrent state has its checkpoint there
        assert seq.length == 38
        for one in (seq, fork):
            assert nmse(one_by_one(model, one, tokens[38:]), expected[38:]) < LIMIT
        back = seq.cut_point(20)  # where nothing can be cut, 0
        seq.truncate(back)
        assert nmse(model.prefill(seq, ids[back:], logits="all"), expected[back:]) < LIMIT
        seq.clear()
        assert nmse(model.prefill(seq, ids, logits="all"), expected) < LIMIT
        assert seq.length == n


# --- what the references are too short for ---


def llama4(label: str, **keys: tuple[str, object]) -> Path:
    return build_variant("llama4-moe", label, set_keys={"context_length": ("UINT32", 9000), **keys})


def test_llama4_begins_anew_at_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Llama4, "chunk", 50)
    tokens = np.random.default_rng(1).integers(0, 128, 180)
    path = llama4("chunks")
    expected = logits(path, tokens)
    with engine(path) as model:
        seq = model.new_sequence()
        prompt = in_chunks(model, seq, tokens[:120], (49, 1, 2, 30))
        generated = one_by_one(model, seq, tokens[120:])
    assert nmse(np.concatenate([prompt, generated]), expected) < LIMIT


def test_llama4_layers_that_do_not_rotate_grow_their_queries() -> None:
    with GGUFFile.open(llama4("growth")) as file:
        model = read_model(file)
    ops = type("Context", (), {"n_ctx": 9000})()
    scale = model.scores(ops, None, 3)["position_scale"]  # type: ignore[attr-defined]
    np.testing.assert_allclose(scale[[0, 8190, 8191, 8999]], 1 + 0.1 * np.log([1, 1, 2, 2]), rtol=1e-7)
    assert [model.scores(ops, None, layer) for layer in range(3)] == [{}] * 3  # type: ignore[attr-defined]
    assert [state.window for state in model.states()] == [8192, 0, 8192, 0]  # type: ignore[union-attr]


def test_llama4_without_windows_rotates_everywhere() -> None:
    path = llama4("plain", **{"attention.sliding_window": ("UINT32", 0)})
    tokens, _ = reference("llama4-moe")
    with GGUFFile.open(path) as file:
        assert not any(state.window for state in read_model(file).states())  # type: ignore[union-attr]
    with engine(path) as model:
        assert nmse(one_by_one(model, model.new_sequence(), tokens), logits(path, tokens)) < LIMIT


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt-oss-moe", "mxfp4"),  # as its files are
        ("llama4-moe", "q4_0"),
        ("deepseek2-moe", "q8_0"),
        ("deepseek4-moe", "q8_0"),
        ("minicpm3-dense", "q4_0"),
    ],
)
def test_quantized_weights_lose_what_rounding_activations_loses(name: str, kind: str) -> None:
    """Both are measured against the float model of the dequantized weights."""
    path = build_arch(name, kind)
    tokens, _ = reference(name)
    exact, rounded = logits(path, tokens), logits(path, tokens, int8_activations=True)
    with engine(path) as model:
        for ours in (
            in_chunks(model, model.new_sequence(), tokens, (20,)),
            one_by_one(model, model.new_sequence(), tokens),
        ):
            assert nmse(ours, exact) < 1.5 * nmse(rounded, exact)
