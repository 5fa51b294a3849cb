"""Sequences whose keys and values are of scaled kinds: every operation on their states, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from archs import build_arch, build_variant
from engines import engine
from llmgen import KVCacheConfig
from llmgen.backends.cpu.model import Model
from llmgen.engine.sequence_state import SequenceState
from naive import nmse

N_CTX = 1024
KINDS = ("q8_0", "k=q4_0,v=nf4", "bf16")
MODELS = ("llama-dense", "gemma3-dense", "mpt-dense")  # all keys; a window of fewer; slopes


def tokens(n: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 100, n)]


def model_file(name: str) -> Path:
    keys = {"context_length": ("UINT32", N_CTX)}
    return build_variant(name, "kinds", set_keys=keys, drop_tensors=("position_embd.weight",))


def computed(model: Model, ids: list[int]) -> np.ndarray:
    """Logits of a fresh sequence after a prompt, and of two generated tokens."""
    seq = model.new_sequence()
    rows = [model.prefill(seq, ids), model.decode([seq], [5])[0], model.decode([seq], [9])[0]]
    return np.stack([row for row in rows if row is not None])


def goes_on(model: Model, seq: object) -> np.ndarray:
    return np.stack([model.decode([seq], [5])[0], model.decode([seq], [9])[0]])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_fork_cut_and_files(name: str, kind: str, tmp_path: Path) -> None:
    ids = tokens(700)
    with engine(model_file(name), kv_type=kind, n_ctx=N_CTX) as model:
        expected = computed(model, ids)[1:]
        seq = model.new_sequence()
        model.prefill(seq, ids, logits="none")
        fork = seq.fork()
        model.save_sequence(tmp_path / "cache", seq, ids, len(ids))
        np.testing.assert_array_equal(goes_on(model, seq), expected)
        np.testing.assert_array_equal(goes_on(model, fork), expected)
        seq.truncate(len(ids))  # and over what was there
        model.prefill(seq, tokens(60, seed=2), logits="none")
        seq.truncate(len(ids))
        np.testing.assert_array_equal(goes_on(model, seq), expected)
        loaded = model.new_sequence()
        assert model.load_sequence(tmp_path / "cache", loaded).tokens == ids
        np.testing.assert_array_equal(goes_on(model, loaded), expected)
        loaded.truncate(600)
        loaded.become(fork, 600)
        fork.truncate(len(ids))
        loaded.truncate(len(ids))
        np.testing.assert_array_equal(goes_on(model, loaded), expected)


@pytest.mark.parametrize("kind", ["f16", *KINDS])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("keep", [0, 1, 50])
def test_a_shift_of_the_context_is_a_fresh_run_over_what_is_kept(name: str, kind: str, keep: int) -> None:
    """Also where some of the first tokens were generated; nothing is rounded a second time."""
    with engine(model_file(name), kv_type=kind, n_ctx=N_CTX) as model:
        state = SequenceState(model, model.new_sequence())
        state.begin(tokens(30), "all")
        state.prefill(30, False)
        for token in tokens(300, seed=3):
            model.decode([state.seq], [token])
            state.tokens.append(token)
        for _ in range(3):  # again and again
            whole = list(state.tokens)
            state.shift(keep)
            drop = len(whole) - len(state.tokens)
            assert state.tokens == whole[:keep] + whole[keep + drop :]
            while state.n_missing:
                logits = state.prefill(len(state.tokens), True)
            fresh = computed(model, state.tokens)
            np.testing.assert_array_equal(logits, fresh[0])
            np.testing.assert_array_equal(goes_on(model, state.seq), fresh[1:])
            state.tokens += [5, 9]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_sequences(kind: str) -> None:
    with engine(model_file("gemma3-dense"), kv_type=kind, n_ctx=N_CTX, n_threads=2) as model:
        prompts = [tokens(n, seed=n) for n in (1, 64, 200, 700)]
        alone = [computed(model, ids)[1:] for ids in prompts]
        together = [model.new_sequence() for _ in prompts]
        for seq, ids in zip(together, prompts, strict=True):
            model.prefill(seq, ids, logits="none")
        rows = np.stack([model.decode(together, [token] * 4).copy() for token in (5, 9)], axis=1)
        np.testing.assert_array_equal(rows, np.stack(alone))


def test_both_names_of_a_kind_are_one() -> None:
    path = build_arch("llama-dense")
    with (
        engine(path, kv_type="k=q8,v=fp16") as one,
        engine(path, kv_type=KVCacheConfig(k="q8_0")) as other,
    ):
        assert one.kv_type == other.kv_type == "k=q8_0,v=f16"
        np.testing.assert_array_equal(computed(one, tokens(90)), computed(other, tokens(90)))


@pytest.mark.parametrize(("kind", "limit"), [("bf16", 1e-4), ("q8_0", 1e-4), ("q4_0", 2e-2), ("nf4", 1e-2)])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_near_those_of_an_exact_cache(name: str, kind: str, limit: float) -> None:
    ids = tokens(300)
    with engine(model_file(name), kv_type="f32", n_ctx=N_CTX) as model:
        exact = computed(model, ids)
    with engine(model_file(name), kv_type=kind, n_ctx=N_CTX) as model:
        assert 0 < nmse(computed(model, ids), exact) < limit
