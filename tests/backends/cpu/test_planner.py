"""The planner against a model of its promises: no race, no overlap, no useless barrier."""

from __future__ import annotations

import itertools
import random
import struct
from collections import namedtuple

import pytest

from llmgen.backends.cpu.kernels.layout import STEP_BYTES, STEP_NEXT
from llmgen.backends.cpu.plan import EVERYTHING, At, Each, Plan, Step, Value

NONE = namedtuple("none", "")()  # no arguments
PARTITIONS = (EVERYTHING, "tokens", ("rows", 64), ("rows", 128))


def random_program(rng: random.Random) -> tuple[list[Step], list[Value]]:
    """Steps that read and write random values, and the values that must survive."""
    values = [
        Value(16, 64 * rng.randint(0, 5) + rng.choice((0, 4)), rng.randint(1, 8), rng.random() < 0.4)
        for _ in range(rng.randint(1, 12))
    ]
    steps = []
    for _ in range(rng.randint(1, 25)):
        used = rng.sample(values, min(len(values), rng.randint(1, 4)))
        accesses = [(v, rng.choice(PARTITIONS), rng.random() < 0.5) for v in used]
        steps.append(Step("none:none", NONE, accesses))
    touched = {v for step in steps for v, _, _ in step.accesses}
    return steps, [v for v in values if v in touched and rng.random() < 0.15]


def epochs_of(steps: list[Step]) -> list[int]:
    """The number of barriers before each step."""
    numbers, epoch = [], 0
    for step in steps:
        numbers.append(epoch)
        epoch += step.barrier
    return numbers


def conflict(first: Step, second: Step) -> bool:
    """Whether two threads may touch the same element of a shared value, one of them writing."""
    for v, p, w in first.accesses:
        for v2, p2, w2 in second.accesses:
            if v is v2 and not v.private and (w or w2) and (p != p2 or p == EVERYTHING):
                return True
    return False


def check_barriers(steps: list[Step]) -> None:
    numbers = epochs_of(steps)
    assert steps[-1].barrier
    for j, step in enumerate(steps):
        same = [steps[i] for i in range(j) if numbers[i] == numbers[j]]
        assert not any(conflict(other, step) for other in same)
        if j and steps[j - 1].barrier:
            before = [steps[i] for i in range(j) if numbers[i] == numbers[j - 1]]
            assert any(conflict(other, step) for other in before), "a barrier that nobody needs"


def check_memory(plan: Plan, outputs: list[Value]) -> None:
    numbers = epochs_of(plan.steps)
    lives: dict[Value, list[int]] = {}
    for i, step in enumerate(plan.steps):
        for v, _, _ in step.accesses:
            lives.setdefault(v, []).append(i if v.private else numbers[i])
    for v in outputs:
        lives[v].append(len(plan.steps))
    for v in lives:
        size = plan.private_bytes if v.private else plan.shared_bytes
        assert v.offset % 64 == 0
        assert 0 <= v.offset <= v.offset + v.nbytes <= size
        for other in lives:
            if other is v or other.private != v.private or not v.nbytes or not other.nbytes:
                continue
            apart = v.offset + v.nbytes <= other.offset or other.offset + other.nbytes <= v.offset
            if not apart:
                assert max(lives[v]) < min(lives[other]) or max(lives[other]) < min(lives[v])


@pytest.mark.parametrize("seed", range(300))
def test_random_programs(seed: int) -> None:
    steps, outputs = random_program(random.Random(seed))
    plan = Plan(steps, outputs)
    check_barriers(plan.steps)
    check_memory(plan, outputs)


def test_memory_is_used_again() -> None:
    """A long chain needs room for two values, not for all."""
    values = [Value(16, 64, 1, True) for _ in range(30)]
    pairs = itertools.pairwise(values)
    steps = [Step("a:b", NONE, [(x, EVERYTHING, False), (y, EVERYTHING, True)]) for x, y in pairs]
    assert Plan(steps).private_bytes == 128


def test_own_rows_need_no_barrier() -> None:
    x, y = Value(64, 256, 1, False), Value(64, 256, 1, False)
    rows = ("rows", 64)
    steps = [
        Step("a:write", NONE, [(x, rows, True)]),
        Step("a:same_rows", NONE, [(x, rows, False), (y, rows, True)]),
        Step("a:all_rows", NONE, [(y, EVERYTHING, False)]),
    ]
    Plan(steps)
    assert [s.barrier for s in steps] == [False, True, True]


def test_tables() -> None:
    shared, private = Value(16, 64, 4, False), Value(16, 64, 4, True)
    first, second = Value(16, 64, 4, False), Value(16, 64, 1, True)
    eight = namedtuple("eight", "a b c d e f g h")
    there, behind = At(first, lambda t, n: 4 * t), At(second, lambda t, n: 8 * n)
    arguments = eight(7, 2.5, shared, private, there, behind, -3, Each(lambda t, n: 100 * t + n))
    accesses = [(v, EVERYTHING, True) for v in (shared, private, first, second)]
    steps = [Step("k:one", arguments, accesses), Step("k:two", NONE, [], stream=(5000, lambda t, n: 10 * t))]
    plan = Plan(steps)
    table = plan.table(
        3, 1_000_000, [2_000_000, 3_000_000, 4_000_000], {"k:one": 11, "k:two": 22}.__getitem__
    )
    assert table.shape[0] == 3
    assert table.strides[1] == STEP_BYTES
    bits = struct.unpack("<q", struct.pack("<d", 2.5))[0]
    for t in range(3):
        base = 2_000_000 + 1_000_000 * t
        assert table[t, 0, 0] == 11
        assert table[t, 1, 0] == 22
        assert table[t, 1, 1] == 1
        assert table[t, 0, 2 : 2 + len(arguments)].tolist() == [
            7,
            bits,
            1_000_000 + shared.offset,
            base + private.offset,
            1_000_000 + first.offset + 4 * t,
            base + second.offset + 8 * 3,
            -3,
            100 * t + 3,
        ]
        assert table[t, 0, STEP_NEXT // 8] == 5000 + 10 * t
        assert not table[t, 2:].any()  # the step loop prefetches two steps ahead


def test_a_renamed_value_is_nowhere_left() -> None:
    old, new = Value(16, 64, 1, False), Value(16, 64, 1, False)
    three = namedtuple("three", "x shifted n")
    step = Step("a:b", three(old, At(old, lambda t, n: 4), 5), [(old, "tokens", True)])
    step.rename({old: new})
    assert step.args.x is new
    assert step.args.shifted.value is new
    assert step.args.shifted.shift(0, 1) == 4
    assert step.args.n == 5
    assert step.accesses == [(new, "tokens", True)]
