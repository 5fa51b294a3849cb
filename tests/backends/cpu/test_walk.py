"""Random walks over sequences: append, generate, cut, fork, clear, cancel; the cache never lies."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from archs import build_variant
from engines import engine
from llmgen.backends.cpu.model import Model
from llmgen.errors import ContextFullError, Interrupted
from naive import nmse

N_CTX = 2048
LIMITS = {"f16": 1e-5, "f32": 1e-5, "q8_0": 1e-4, "k=q4_0,v=nf4": 3e-2}
"""Generated tokens are not computed like prompts, bit for bit: by KV type, how far that may move the logits.
A code may be rounded the other way, which counts for more where there are few."""


def append(model: Model, seq: Any, tokens: list[int], rng: random.Random) -> None:
    n = min(rng.choice((1, 3, 8, 40, 130, 300)), N_CTX - seq.length - 4)
    new = [rng.randrange(128) for _ in range(n)]
    if new:
        model.prefill(seq, new, logits="none")
        tokens += new


def generate(model: Model, seq: Any, tokens: list[int], rng: random.Random) -> None:
    for _ in range(min(rng.randrange(1, 6), N_CTX - seq.length - 4)):
        tokens.append(rng.randrange(128))
        model.decode([seq], tokens[-1:])


def cut(model: Model, seq: Any, tokens: list[int], rng: random.Random) -> None:
    least = next((n for n in range(1, seq.length + 1) if seq.cut_point(n) == n), 0)
    assert 0 <= least <= seq.length
    if least > 1:
        with pytest.raises(ContextFullError):
            seq.truncate(rng.randrange(1, least))
        assert seq.length == len(tokens)
    n = rng.randint(least, seq.length)
    seq.truncate(n)
    del tokens[n:]


def stopped(model: Model, seq: Any, tokens: list[int], rng: random.Random) -> None:
    """A prompt whose second or third chunk is stopped."""
    room = N_CTX - seq.length - 4
    new = [rng.randrange(128) for _ in range(min(room, 1200))]
    if not new:
        return
    run, calls, last = model._run, [], rng.randint(1, 3)

    def stopping(program: Any, n_tokens: int) -> tuple[float, int]:
        calls.append(n_tokens)
        took = run(program, n_tokens)  # everything is written ...
        if len(calls) == last:
            raise Interrupted("stopped")  # ... but not committed
        return took

    model._run = stopping  # type: ignore[method-assign]
    try:
        model.prefill(seq, new, logits="none")
    except Interrupted:
        pass
    finally:
        model._run = run  # type: ignore[method-assign]
    tokens += new[: seq.length - len(tokens)]


@pytest.mark.parametrize("kv_type", LIMITS)
@pytest.mark.parametrize("name", ["gemma3-dense", "gemma2-dense", "llama-dense"])
def test_walk(name: str, kv_type: str) -> None:
    rng = random.Random(f"{name} {kv_type}")
    path = build_variant(name, "walk", set_keys={"context_length": ("UINT32", N_CTX)})
    with engine(path, n_ctx=N_CTX, kv_type=kv_type) as model:
        held: list[tuple[Any, list[int]]] = [(model.new_sequence(), [])]
        for number in range(60):
            at = rng.randrange(len(held))
            seq, tokens = held[at]
            action = rng.choice((append, append, generate, cut, stopped, "fork", "clear", "check"))
            if action == "fork" and len(held) < 4:
                held.append((seq.fork(), tokens.copy()))
            elif action == "clear" and rng.random() < 0.5:
                seq.clear()
                tokens.clear()
            elif callable(action):
                action(model, seq, tokens, rng)
            assert seq.length == len(tokens)
            if number % 4 == 3 and 0 < len(tokens) < N_CTX:
                check(model, seq, tokens, LIMITS[kv_type])


def check(model: Model, seq: Any, tokens: list[int], limit: float) -> None:
    """The next token's logits are those of a fresh sequence, and the cut afterwards loses nothing."""
    fresh = model.new_sequence()
    model.prefill(fresh, tokens, logits="none")
    expected = model.decode([fresh], [7]).copy()
    ours = model.decode([seq], [7])
    assert nmse(ours, expected) < limit
    fresh.close()
    tokens.append(7)


def test_a_fork_of_a_ring_is_whole() -> None:
    path = build_variant("gemma3-dense", "walk", set_keys={"context_length": ("UINT32", N_CTX)})
    tokens = np.random.default_rng(1).integers(0, 128, 1500).tolist()
    with engine(path, n_ctx=N_CTX) as model:
        seq = model.new_sequence()
        for start in range(0, 1500, 250):
            model.prefill(seq, tokens[start : start + 250], logits="none")
            fork = seq.fork()
            assert fork.length == seq.length
            assert [fork.cut_point(n) for n in range(seq.length)] == [
                seq.cut_point(n) for n in range(seq.length)
            ]
            np.testing.assert_array_equal(model.decode([fork], [5]).copy(), model.decode([seq], [5]))
            seq.truncate(seq.length - 1)
            fork.close()
