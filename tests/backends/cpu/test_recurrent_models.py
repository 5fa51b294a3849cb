"""Models with recurrent states: what a state holds is used, advanced once, copied, and given up whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from archs import SPECS, build_arch, reference
from engines import engine, in_chunks, one_by_one
from llmgen.backends.cpu import memory
from llmgen.backends.cpu.dry_run import dry_run
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.sequence import Sequence
from llmgen.engine import Batch, Request, SamplingParams, Session
from llmgen.errors import ContextFullError, LLMGenError
from llmgen.gguf import GGUFFile
from llmgen.model.archs import read_model
from llmgen.model.runs import Part
from llmgen.model.states import Recurrent
from naive import nmse

LIMIT = 1e-6


def _is_recurrent(name: str) -> bool:
    with GGUFFile.open(build_arch(name)) as file:
        return any(isinstance(state, Recurrent) for state in read_model(file).states())


NAMES = [name for name in SPECS if _is_recurrent(name)]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def prompted(model: Model, ids: np.ndarray) -> Sequence:
    """A sequence that holds a prompt."""
    seq = model.new_sequence()
    model.prefill(seq, ids.tolist(), logits="none")
    return seq


def test_two_sequences_side_by_side_a_clear_and_a_fork(name: str) -> None:
    tokens, expected = reference(name)
    ids = [int(i) for i in tokens]
    with engine(build_arch(name), n_threads=2) as model:
        seq, other = model.new_sequence(), prompted(model, tokens[::-1][:9])
        rows = [model.forward([Part(other, ids[:2], 0), Part(seq, ids[:20], 20)], "prompt")]
        for i in range(20, 30):
            rows.append(model.decode([seq, other], [ids[i], 5])[:1].copy())
        rows.append(model.forward([Part(seq, ids[30:35], 5), Part(other, [1, 2])], "generated")[:5])
        fork = seq.fork()
        rest = in_chunks(model, seq, tokens[35:], (3,))
        assert nmse(np.concatenate([*rows, rest]), expected) < LIMIT
        assert nmse(one_by_one(model, fork, tokens[35:]), expected[35:]) < LIMIT
        seq.clear()
        other.truncate(0)
        np.testing.assert_array_equal(
            in_chunks(model, seq, tokens, (20,)), in_chunks(model, other, tokens, (1, 2, 30))
        )
        assert nmse(in_chunks(model, model.new_sequence(), tokens, ()), expected) < LIMIT


def test_several_generated_tokens_at_once_have_the_bits_of_one_after_another(name: str) -> None:
    tokens = np.random.default_rng(9).integers(0, 128, 80)
    with engine(build_arch(name), n_threads=2) as model:
        one = one_by_one(model, prompted(model, tokens[:50]), tokens[50:])
        seq, start = prompted(model, tokens[:50]), 50
        for n in (1, 8, 3, 2, 8, 8):
            rows = model.forward([Part(seq, tokens[start : start + n], n)], "generated")
            np.testing.assert_array_equal(rows, one[start - 50 : start - 50 + n])
            start += n


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_threads_and_pieces_do_not_change_a_bit(name: str, kind: str) -> None:
    tokens = np.random.default_rng(6).integers(0, 128, 100)
    results = []
    for n_threads in (1, 2, 3):
        with engine(build_arch(name, kind), n_threads=n_threads) as model:
            for sizes in ((), (1, 2, 3, 50)):
                seq = model.new_sequence()
                prompt = in_chunks(model, seq, tokens[:90], sizes)
                results.append(np.concatenate([prompt, one_by_one(model, seq, tokens[90:])]))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_a_checkpoint_brings_the_state_back(name: str) -> None:
    tokens = np.random.default_rng(7).integers(0, 128, 60)
    with engine(build_arch(name)) as model:
        seq = prompted(model, tokens[:30])
        seq.checkpoint()
        first = one_by_one(model, seq, tokens[30:40])
        with pytest.raises(ContextFullError, match="cannot cut back to 35"):
            seq.truncate(35)
        seq.truncate(30)
        np.testing.assert_array_equal(one_by_one(model, seq, tokens[30:40]), first)
        fork = seq.fork()
        fork.truncate(30)
        np.testing.assert_array_equal(one_by_one(model, fork, tokens[30:40]), first)


def test_a_cache_file_holds_the_state(name: str, tmp_path: Path) -> None:
    tokens = np.random.default_rng(8).integers(0, 128, 40)
    with engine(build_arch(name)) as model:
        seq = prompted(model, tokens[:20])
        seq.checkpoint()
        model.prefill(seq, tokens[20:30].tolist())
        model.save_sequence(tmp_path / "cache", seq, tokens[:30].tolist(), 30)
        expected = one_by_one(model, seq, tokens[30:])
    with engine(build_arch(name)) as model:
        seq = model.new_sequence()
        assert model.load_sequence(tmp_path / "cache", seq).tokens == tokens[:30].tolist()
        np.testing.assert_array_equal(one_by_one(model, seq, tokens[30:]), expected)
        seq.truncate(20)
        model.prefill(seq, tokens[20:30].tolist())
        np.testing.assert_array_equal(one_by_one(model, seq, tokens[30:]), expected)


def test_a_conversation_computes_what_is_new(name: str) -> None:
    """A repeated prompt, another answer and an undone turn start from checkpoints, and change no token."""
    greedy = SamplingParams(temp=0.0, max_tokens=5, ignore_eos=True)
    tokens = np.random.default_rng(4).integers(0, 128, 60).tolist()

    def fresh(prompt: list[int]) -> list[int]:
        return Session(model, reuse="prompt").generate(prompt, greedy).token_ids

    with engine(build_arch(name), n_threads=2) as model:
        session = Session(model, reuse="prompt")
        first = session.generate(tokens[:40], greedy)
        again = session.generate(tokens[:40], greedy)
        assert (again.timings.prefill_tokens, again.token_ids) == (1, first.token_ids)
        longer = session.generate(tokens, greedy)
        assert (longer.timings.cached_tokens, longer.token_ids) == (39, fresh(tokens))
        session.rewind(len(session.tokens) - 40)
        other = session.generate([*tokens[:40], 7, 8, 9], greedy)
        assert (other.timings.cached_tokens, other.token_ids) == (39, fresh([*tokens[:40], 7, 8, 9]))
        requests = [Request([*tokens[:30], i, 3], greedy, i) for i in range(4)]
        for answer in Batch(model).run(requests):
            assert answer.result.token_ids == fresh(answer.request.prompt)


def test_states_that_memory_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file may claim any size; what it takes is known before anything is touched."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
    with GGUFFile.open(build_arch("mamba2-dense")) as file:
        for load in (Model.load, dry_run):
            with pytest.raises(LLMGenError, match="recurrent states of 1 MiB, and 1 MiB of memory are free"):
                load(file, n_ctx=64)
