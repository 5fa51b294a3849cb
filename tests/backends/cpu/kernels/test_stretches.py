"""Summaries of stretches of tokens, against sums over whole stretches, and what a token sees of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.call import ControlBlock, aligned, require, step

from llmgen.backends.cpu.kernels.layout import FIELDS
from llmgen.backends.cpu.kernels.stretch_arguments import FIRST, LAST, NUMBER, stretch_bytes
from llmgen.backends.numpy import functions
from llmgen.model.states import sums

POSITIONS, SEQUENCES = FIELDS["positions"], FIELDS["sequences"]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require([f"stretches:{name}" for name in ("count", "sums", "seen", "tokens")])


def counted(control: ControlBlock, every: int, n_tokens: int) -> dict[int, tuple[list[int], list[int]]]:
    """For each control block of a stretch block the positions and sequences of its rows."""
    block = aligned(stretch_bytes(n_tokens) // 8, np.int64, -9)
    step("stretches:count", every=every, room=n_tokens, block=block, control=control)

    def rows(which: int) -> tuple[list[int], list[int]]:
        fields = block[which // 8 :]
        arrays = [(fields[f] - block.ctypes.data) // 8 for f in (POSITIONS, SEQUENCES)]
        if which == LAST:  # the sequences are the run's own
            return block[arrays[0] : arrays[0] + fields[0]].tolist(), []
        return tuple(block[at : at + fields[0]].tolist() for at in arrays)  # type: ignore[return-value]

    return {which: rows(which) for which in (FIRST, NUMBER, LAST)}


def test_which_stretches_end_in_a_run() -> None:
    positions, sequences = [2, 3, 4, 5, 6, 7, 0, 3], [100] * 6 + [200] * 2
    control = ControlBlock(8, positions=positions, sequences=sequences)
    found = counted(control, 4, 8)
    assert found[FIRST] == ([0, 4, 0], [100, 100, 200])
    assert found[NUMBER] == ([0, 1, 0], [100, 100, 200])
    assert found[LAST][0] == [-1, 0, 0, 0, 0, 1, -1, 0]
    assert counted(ControlBlock(1, positions=[5], sequences=[1]), 4, 1)[FIRST] == ([], [])


def expected_summaries(x: np.ndarray, scores: np.ndarray, every: int, n: int) -> np.ndarray:
    """Each stretch, and where x is twice as wide the one before it, by a plain softmax."""
    rows = []
    for end in range(every, len(x) + 1, every):
        own = slice(end - every, end)
        values, weights = x[own, -n:], scores[own, -n:]
        if x.shape[1] > n and end > every:
            before = slice(end - 2 * every, end - every)
            values = np.concatenate([x[before, :n], values])
            weights = np.concatenate([scores[before, :n], weights])
        rows.append((functions.softmax(weights.T).T * values).sum(axis=0))
    return np.array(rows)


def summed(
    x: np.ndarray,
    scores: np.ndarray,
    offsets: np.ndarray,
    every: int,
    n: int,
    pieces: list[int],
    n_threads: int,
) -> np.ndarray:
    """The kernel, run by run."""
    wide, both = -(-n // 16) * 16, x.shape[1] > n
    state = aligned((9 if both else 3, wide))
    table = aligned(offsets.size + 16)
    table[: offsets.size] = offsets.reshape(-1)
    rows, start = [], 0
    for size in pieces:
        here = slice(start, start + size)
        parts: dict[str, Any] = {}
        for name, values in (("x", x), ("scores", scores)):
            own = aligned((size, wide), fill=np.nan)
            own[:, :n] = values[here, -n:]
            parts |= {name: own, f"{name}_stride": own.strides[0]}
            if both:
                ahead, key = aligned((size, wide), fill=np.nan), "ahead" if name == "x" else "ahead_scores"
                ahead[:, :n] = values[here, :n]
                parts |= {key: ahead, f"{key}_stride": ahead.strides[0]}
        address = table.ctypes.data
        out = aligned((size + 1, wide), fill=-7.5)
        for thread in range(n_threads):
            columns = [min(16 * (wide // 16 * (thread + i) // n_threads), wide) for i in (0, 1)]
            step(
                "stretches:sums",
                thread,
                n_threads,
                **parts,
                offsets=address + (4 * n if both else 0),
                ahead_offsets=address if both else 0,
                offset_row=4 * x.shape[1],
                every=every,
                state_at=0,
                state_row=state.strides[0],
                out=out,
                out_stride=out.strides[0],
                first=columns[0],
                last=columns[1],
                control=ControlBlock(
                    size, positions=range(start, start + size), sequences=[state.ctypes.data] * size
                ),
            )
        n_rows = (start + size) // every - start // every
        assert np.all(out[n_rows:] == -7.5)
        rows.append(out[:n_rows, :n].copy())
        start += size
    return np.concatenate(rows)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("every", "n"), [(4, 32), (7, 40), (1, 16)])
def test_sums_do_not_depend_on_pieces_or_threads(every: int, n: int, both: bool) -> None:
    rng, width = np.random.default_rng(every), n * (2 if both else 1)
    x, scores = rng.normal(0, 1, (2, 31, width)).astype(np.float32)
    scores *= 30  # one token has nearly all the weight
    offsets = rng.normal(0, 1, (every, width)).astype(np.float32)
    weights = scores + offsets[np.arange(31) % every]
    expected = expected_summaries(x.astype(np.float64), weights.astype(np.float64), every, n)
    results = [
        summed(x, scores, offsets, every, n, pieces, n_threads)
        for pieces in ([31], [1] * 31, [3, 9, 1, 18])
        for n_threads in (1, 2)
    ]
    np.testing.assert_allclose(results[0], expected, rtol=3e-5, atol=1e-5)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    spec = sums(n, both)
    zeros = np.zeros((spec.rows, spec.n))
    ours, _ = functions.summaries(
        x.astype(np.float64), weights.astype(np.float64), np.arange(31), every, zeros
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def listed(positions: list[int], window: int, kept: int, every: int, chosen: Any = None) -> list[list[int]]:
    """What tokens see."""
    out = aligned((len(positions), 64), np.int64, -9)
    for thread in range(3):
        step(
            "stretches:seen",
            thread,
            3,
            window=window,
            kept=kept,
            every=every,
            chosen=0 if chosen is None else chosen,
            chosen_stride=0 if chosen is None else chosen.strides[0],
            out=out,
            out_stride=out.strides[0],
            control=ControlBlock(len(positions), positions=positions),
        )
    return [row[1 : 1 + row[0]].tolist() for row in out]


def test_a_token_sees_the_last_ones_and_whole_stretches() -> None:
    assert listed([0, 2, 3, 9], 3, 128, 4) == [[0], [0, 1, 2], [1, 2, 3, 128], [7, 8, 9, 128, 129]]
    assert listed([129], 3, 128, 0) == [[127, 0, 1]]  # the ring begins anew
    chosen = aligned((1, 8), np.int64)
    chosen[0, :3] = [2, 5, 7]
    assert listed([40], 1, 64, 4, chosen) == [[40, 69, 71]]


def test_the_tokens_of_chosen_stretches() -> None:
    chosen = aligned((4, 8), np.int64)
    chosen[:, :3] = [[0, -9, -9], [1, 0, -9], [1, 1, -9], [2, 0, 2]]
    positions = [2, 3, 8, 13]
    for n_threads in (1, 3):
        out = aligned((4, 16), np.int64, -9)
        for thread in range(n_threads):
            step(
                "stretches:tokens",
                thread,
                n_threads,
                every=4,
                chosen=chosen,
                chosen_stride=chosen.strides[0],
                out=out,
                out_stride=out.strides[0],
                control=ControlBlock(4, positions=positions),
            )
        found = [row[1 : 1 + row[0]].tolist() for row in out]
        assert found == [[0, 1, 2], [0, 1, 2, 3], [4, 5, 6, 7, 8], [0, 1, 2, 3, 8, 9, 10, 11, 12, 13]]
