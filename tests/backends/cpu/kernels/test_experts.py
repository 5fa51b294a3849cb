"""The kernels of mixtures: the choice against a plain formula, the sorting, and what rows of experts become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.call import ControlBlock, aligned, require, step

from llmgen.backends.cpu.kernels import table_arguments  # noqa: F401 - a step's table
from llmgen.backends.cpu.kernels.arguments import Matvec, Panel
from llmgen.backends.cpu.kernels.expert_arguments import SCORES, ExpertMatvec, ExpertPanel, choose_scratch
from llmgen.backends.cpu.kernels.layout import FIELDS
from llmgen.backends.cpu.kernels.routing import (
    ACTIVE,
    NO_TOKEN,
    PAIR_ROWS,
    RECORD_BYTES,
    RECORDS,
    ROW_TOKENS,
    most_rows,
    next_rows_at,
    pair_rows_at,
    routing_bytes,
    row_tokens_at,
)
from llmgen.backends.numpy.functions import choose, looked_up

EXPERTS = [
    "expert_choice:choose",
    *(f"experts:{name}" for name in ("sort", "gather", "mix", "scale_and_shift")),
]


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    require(EXPERTS)


def chosen(
    logits: np.ndarray,
    n_used: int,
    scores: str = "softmax",
    bias: np.ndarray | None = None,
    groups: tuple[int, int] = (1, 1),
    normalize: bool = False,
    scale: float = 1.0,
    threads: int = 1,
    shared_by: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each token and their weights, [n, n_used] each, by the kernel."""
    n, n_experts = logits.shape
    wide = -(-n_experts // 16) * 16
    x = aligned((n, wide), fill=np.nan)  # nothing behind the last expert counts
    x[:, :n_experts] = logits
    ids, weights = aligned((n, n_used), np.int64, -1), aligned((n, n_used))
    for thread in range(threads):
        step(
            "expert_choice:choose",
            thread,
            threads,
            logits=x,
            logits_stride=4 * wide,
            n_experts=n_experts,
            n_used=n_used,
            scores=SCORES.index(scores),
            bias=0 if bias is None else aligned(n_experts, fill=bias),
            n_groups=groups[0],
            n_groups_used=groups[1],
            normalize=int(normalize),
            scale=scale,
            shared_by=shared_by,
            ids=ids,
            ids_stride=8 * n_used,
            weights=weights,
            weights_stride=4 * n_used,
            scratch=aligned(choose_scratch(n_experts, groups[0]), np.uint8),
            split_tokens=int(threads > 1),
            control=ControlBlock(n),
        )
    return ids, weights


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize(
    ("n_experts", "n_used", "groups", "biased"),
    [
        (8, 3, (1, 1), False),
        (2, 2, (1, 1), True),
        (1, 1, (1, 1), False),
        (60, 4, (1, 1), False),
        (64, 8, (8, 3), True),
        (64, 6, (8, 3), False),
        (384, 8, (1, 1), True),
        (12, 4, (3, 2), True),
    ],
)
def test_choice(
    n_experts: int,
    n_used: int,
    groups: tuple[int, int],
    biased: bool,
    scores: str,
    normalize: bool,
    threads: int,
) -> None:
    rng = np.random.default_rng(n_experts)
    logits = rng.normal(0, 2, (29, n_experts)).astype(np.float32)
    bias = rng.normal(0, 1, n_experts).astype(np.float32) if biased else None
    ids, weights = chosen(logits, n_used, scores, bias, groups, normalize, 2.5, threads)
    expected_ids, expected = choose(logits.astype(np.float64), n_used, scores, bias, groups, normalize, 2.5)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(weights, expected, rtol=3e-6)


def test_the_bias_moves_the_choice_and_not_the_weights() -> None:
    logits = np.array([[0.0, 1.0, 2.0, 3.0]], np.float32)
    ids, weights = chosen(logits, 2, "sigmoid", np.array([9.0, 0.0, 0.0, 0.0], np.float32))
    assert ids.tolist() == [[0, 3]]
    np.testing.assert_allclose(weights[0], [0.5, 1 / (1 + np.exp(-3.0))], rtol=1e-6)


def test_of_equal_experts_the_lower_number_comes_first() -> None:
    equal = np.zeros((1, 20), np.float32)
    assert chosen(equal, 4)[0].tolist() == [[0, 1, 2, 3]]
    assert chosen(equal, 4, bias=np.ones(20, np.float32))[0].tolist() == [[0, 1, 2, 3]]
    assert chosen(equal, 6, groups=(5, 2))[0].tolist() == [[0, 1, 2, 3, 4, 5]]  # two groups of four
    some = np.array([[1.0, 3.0, 3.0, 2.0, 3.0, 2.0]], np.float32)
    assert chosen(some, 4)[0].tolist() == [[1, 2, 4, 3]]


def test_neighbours_may_stand_for_one_expert_that_is_then_chosen_twice() -> None:
    logits = np.array([[1.0, 0.5, 4.0, 3.0, 2.0, -1.0]], np.float32)
    ids, weights = chosen(logits, 3, "sigmoid", shared_by=2)
    assert ids.tolist() == [[1, 1, 2]]
    np.testing.assert_allclose(weights[0], 1 / (1 + np.exp(-logits[0, ids[0]])), rtol=1e-6)


def test_a_group_counts_by_its_two_best() -> None:
    keys = np.array([[9.0, 0.0, 0.0, 5.0, 5.0, 0.0, 4.0, 4.0, 4.0]], np.float32)
    assert chosen(keys, 3, "softmax_chosen", groups=(3, 1))[0].tolist() == [[3, 4, 5]]
    assert chosen(keys, 3, "softmax_chosen", groups=(3, 2))[0].tolist() == [[0, 3, 4]]


def test_weights_whose_sum_is_nothing_are_not_divided_by_it() -> None:
    _, weights = chosen(np.full((1, 4), -90.0, np.float32), 2, "sigmoid", normalize=True)
    assert np.all(np.isfinite(weights))
    assert np.all(weights < 1e-30)


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
def test_a_nan_is_chosen_and_reaches_the_weights(scores: str, groups: tuple[int, int]) -> None:
    logits = np.random.default_rng(3).normal(size=(2, 32)).astype(np.float32)
    logits[0, 21] = np.nan
    logits[1] = np.nan
    ids, weights = chosen(logits, 3, scores, groups=groups)
    if scores != "softmax" or groups == (1, 1):  # else no score is a number
        assert ids[0, 0] == 21
    assert np.isnan(weights[0]).any()
    assert ids[1].tolist() == [0, 1, 2]
    assert np.isnan(weights[1]).all()


def routing(ids: np.ndarray, n_experts: int, unit: int, room: int = 0) -> np.ndarray:
    """The routing block, int64, of what the tokens chose; room: for so many tokens more."""
    n, n_used = ids.shape
    n_pairs = (n + room) * n_used
    block = aligned(-(-routing_bytes(n_experts, n_pairs, unit) // 8), np.int64, -77)
    step(
        "experts:sort",
        ids=np.ascontiguousarray(ids, np.int64),
        ids_stride=8 * n_used,
        n_used=n_used,
        n_experts=n_experts,
        unit=unit,
        next_rows=next_rows_at(n_experts),
        pair_rows=pair_rows_at(n_experts),
        row_tokens=row_tokens_at(n_experts, n_pairs),
        routing=block,
        control=ControlBlock(n),
    )
    return block


def table(block: np.ndarray, where: int, n: int) -> np.ndarray:
    first = (int(block[where // 8]) - block.ctypes.data) // 8
    return block[first : first + n]


def some_ids(n: int, n_experts: int, n_used: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(n_experts)[:n_used] for _ in range(n)])


@pytest.mark.parametrize("unit", [1, 16])
@pytest.mark.parametrize(("n", "n_experts", "n_used"), [(1, 8, 3), (37, 8, 3), (5, 64, 8), (40, 2, 1)])
def test_rows_of_an_expert_lie_together(n: int, n_experts: int, n_used: int, unit: int) -> None:
    ids = some_ids(n, n_experts, n_used)
    block = routing(ids, n_experts, unit, room=3)
    n_rows, n_active = int(block[0]), int(block[ACTIVE // 8])
    assert n_rows <= most_rows(n_experts, n * n_used, unit)
    records = block[RECORDS // 8 :][: n_active * RECORD_BYTES // 8].reshape(n_active, -1)
    tokens = table(block, ROW_TOKENS, n_rows).tolist()
    pair_rows = table(block, PAIR_ROWS, n * n_used).reshape(n, n_used)
    assert records[:, 1].tolist() == sorted(set(ids.reshape(-1).tolist()))
    at = 0
    for count, expert, first in records[:, :3]:
        chose = np.flatnonzero((ids == expert).any(axis=1))
        assert first == at
        assert tokens[first : first + count] == chose.tolist()  # in the order of the tokens
        at = first + -(-count // unit) * unit
        assert tokens[first + count : at] == [NO_TOKEN] * (at - first - count)
    assert n_rows == at
    for token in range(n):
        for k in range(n_used):
            assert tokens[pair_rows[token, k]] == token


def rows_of(block: np.ndarray, n: int, n_used: int) -> np.ndarray:
    return table(block, PAIR_ROWS, n * n_used).reshape(n, n_used)


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_gathered_scaled_and_mixed(weighted: bool, split: int) -> None:
    n, n_experts, n_used, width = 21, 8, 3, 48
    ids, rng = some_ids(n, n_experts, n_used), np.random.default_rng(5)
    block = routing(ids, n_experts, 16)
    x, weights = aligned((n, width), fill=rng.normal(size=(n, width))), aligned((n, n_used))
    weights[:] = rng.uniform(0, 1, (n, n_used))
    scales, shifts = aligned(n_experts), aligned((n_experts, width))
    scales[:], shifts[:] = rng.normal(size=n_experts), rng.normal(size=(n_experts, width))
    rows, out = aligned((int(block[0]), width)), aligned((n, width))
    common: dict[str, Any] = {
        "weights": weights if weighted else 0,
        "weights_stride": 4 * n_used,
        "n_used": n_used,
        "n": width,
        "split_tokens": split,
        "routing": block,
    }
    for thread in range(1 + split):
        step(
            "experts:gather", thread, 1 + split, x=x, x_stride=4 * width, out=rows, out_stride=4 * width,
            control=block, **common,
        )  # fmt: skip
    for thread in range(1 + split):
        step(
            "experts:scale_and_shift", thread, 1 + split, x=rows, x_stride=4 * width, scales=scales,
            shifts=shifts, shift_bytes=4 * width, n=width, split_tokens=split, control=block,
        )  # fmt: skip
    factors = weights.astype(np.float64)[..., None] if weighted else 1.0
    expected = x.astype(np.float64)[:, None] * factors * scales[ids, None] + shifts[ids]
    np.testing.assert_allclose(rows[rows_of(block, n, n_used)], expected, rtol=1e-5, atol=1e-6)
    for thread in range(1 + split):
        step(
            "experts:mix", thread, 1 + split, x=rows, x_stride=4 * width, out=out, out_stride=4 * width,
            control=ControlBlock(n), **common,
        )  # fmt: skip
    np.testing.assert_allclose(out, np.sum(expected * factors, axis=1), rtol=1e-5, atol=1e-5)


def test_an_experts_arguments_begin_like_those_of_any_matrix() -> None:
    """The kernels copy them by place."""
    assert ExpertMatvec._fields[: len(Matvec._fields)] == Matvec._fields
    assert ExpertPanel._fields[: len(Panel._fields)] == Panel._fields


@pytest.mark.parametrize("normalize", [False, True])
def test_experts_of_a_table(normalize: bool) -> None:
    require(["expert_table:look_up"])
    rng, n, n_experts, n_used = np.random.default_rng(3), 11, 19, 4
    table = aligned((30, n_used), np.int64)
    table[:] = np.argsort(rng.random((30, n_experts)), axis=1)[:, :n_used]
    logits = aligned((n, 32), fill=np.nan)
    logits[:, :n_experts] = rng.normal(0, 4, (n, n_experts))
    tokens = rng.integers(0, 30, n)
    expected = looked_up(logits[:, :n_experts].astype(np.float64), tokens, table, normalize, 2.5)
    for threads in (1, 3):
        ids, weights = aligned((n, n_used), np.int64, -1), aligned((n, n_used))
        for thread in range(threads):
            step(
                "expert_table:look_up",
                thread,
                threads,
                logits=logits,
                logits_stride=logits.strides[0],
                n_experts=n_experts,
                n_used=n_used,
                table=table,
                number=8 * FIELDS["ids"],
                normalize=int(normalize),
                scale=2.5,
                ids=ids,
                ids_stride=ids.strides[0],
                weights=weights,
                weights_stride=weights.strides[0],
                scratch=aligned(32),
                split_tokens=int(threads > 1),
                control=ControlBlock(n, ids=tokens),
            )
        np.testing.assert_array_equal(ids, expected[0])
        np.testing.assert_allclose(weights, expected[1], rtol=3e-6)
