"""The thread team: jobs whose result shows every missing barrier, stopped at any moment, closed, forked."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from kernels.call import ControlBlock

from llmgen.backends.cpu.kernels.arguments import Binary
from llmgen.backends.cpu.plan import EVERYTHING, At, Plan, Step, Value
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.backends.cpu.runtime.team import ThreadTeam
from llmgen.errors import Interrupted
from program import HANGS_S

MOST = 4
LANES = 16
STEPS = 25


class Ring:
    """A program that adds up the neighbour's numbers, again and again: late or early readers spoil it."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        rows = ("rows", n_threads)
        self.values = [Value(LANES * n_threads, 4 * LANES * n_threads, 1, False) for _ in range(2)]
        steps = []
        for i in range(STEPS):
            x, out = self.values[i % 2], self.values[(i + 1) % 2]
            own = At(x, lambda t, n: 4 * LANES * t)
            other = At(x, lambda t, n: 4 * LANES * ((t + 1) % n))
            there = At(out, lambda t, n: 4 * LANES * t)
            args = Binary(
                x=own,
                x_stride=0,
                y=other,
                y_stride=0,
                out=there,
                out_stride=0,
                n=LANES,
                split_tokens=0,
                control=self.control.address,
            )
            steps.append(Step("pointwise:add", args, [(x, EVERYTHING, False), (out, rows, True)]))
        plan = Plan(steps, self.values)
        library = KernelLibrary.for_level(None)
        library.require(plan.kernels)
        self.memory = np.zeros(plan.shared_bytes // 4 + 16, dtype=np.float32)
        start = -self.memory.ctypes.data % 64 // 4
        self.table = plan.table(n_threads, self.memory[start:].ctypes.data, [0] * n_threads, library.address)
        first, last = (start + v.offset // 4 for v in self.values)
        self.start = self.memory[first : first + LANES * n_threads]
        self.end = (self.memory[last:] if STEPS % 2 else self.memory[first:])[: LANES * n_threads]

    control = ControlBlock(1)

    def run(self, team: ThreadTeam) -> bool:
        """Reset and run; False when stopped."""
        self.start[:] = np.repeat(np.arange(self.n_threads), LANES) % 3
        self.end[:] = -1
        return team.run(self.table.ctypes.data, self.table.strides[0], STEPS, self.n_threads)

    def right(self) -> bool:
        expected = np.arange(self.n_threads, dtype=np.float32) % 3
        for _ in range(STEPS):
            expected = expected + np.roll(expected, -1)
        return bool(np.array_equal(self.end, np.repeat(expected, LANES)))


@pytest.fixture
def team() -> Iterator[ThreadTeam]:
    made = ThreadTeam(MOST, KernelLibrary.for_level(None))
    yield made
    made.close()


def ours() -> set[threading.Thread]:
    """The workers of all teams; those of an earlier test's may end at any moment."""
    return {t for t in threading.enumerate() if t.name.startswith("llmgen-") and t.name[7:].isdigit()}


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
def test_many_runs(n_threads: int, team: ThreadTeam) -> None:
    ring = Ring(n_threads)
    for _ in range(100 if n_threads > 2 else 1000):
        assert ring.run(team)
        assert ring.right()


def test_the_number_of_threads_may_change_from_run_to_run(team: ThreadTeam) -> None:
    rings = {n: Ring(n) for n in range(1, MOST + 1)}
    rng = random.Random(1)
    for _ in range(150):
        ring = rings[rng.randint(1, MOST)]
        assert ring.run(team)
        assert ring.right()


def test_workers_that_sleep_wake_up(team: ThreadTeam) -> None:
    ring = Ring(2)
    for pause in (0.0, 0.002, 0.02, 0.2):
        time.sleep(pause)
        assert ring.run(team)
        assert ring.right()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_stopped_at_any_moment(n_threads: int, team: ThreadTeam) -> None:
    """Some hundred stops, before, during and after a run; what runs next is right."""
    ring, rng = Ring(n_threads), random.Random(n_threads)
    go, done, stopped = threading.Barrier(2), threading.Event(), 0

    def stopper() -> None:
        while True:
            go.wait()
            if done.is_set():
                return
            time.sleep(rng.random() * 200e-6)
            team.stop()

    thread = threading.Thread(target=stopper)
    thread.start()
    for _ in range(150):
        team.clear_stop()
        go.wait()
        while True:  # run until the stop has come
            if not ring.run(team):
                stopped += 1
                break
            assert ring.right()
            time.sleep(0)  # let the stopper in
        team.clear_stop()
        assert ring.run(team)
        assert ring.right()
    done.set()
    go.wait()
    thread.join()
    assert stopped == 150


def test_a_stop_before_the_run_ends_it(team: ThreadTeam) -> None:
    ring = Ring(2)
    team.stop()
    assert not ring.run(team)
    assert not ring.run(team)
    team.clear_stop()
    assert ring.run(team)
    assert ring.right()


def test_close_leaves_no_thread() -> None:
    before = ours()
    for _ in range(5):
        made = ThreadTeam(MOST, KernelLibrary.for_level(None))
        assert Ring(3).run(made)
        assert len(ours() - before) == 2
        made.close()
        made.close()
        assert ours() <= before
        with pytest.raises(Interrupted):
            Ring(2).run(made)
    assert ours() <= before


def test_a_forgotten_team_leaves_no_thread() -> None:
    before = ours()
    for _ in range(5):
        made = ThreadTeam(2, KernelLibrary.for_level(None))
        assert Ring(2).run(made)
        del made
        gc.collect()
    assert ours() <= before


def test_close_ends_a_running_job() -> None:
    made, ring, ended = ThreadTeam(2, KernelLibrary.for_level(None)), Ring(2), threading.Event()

    def forever() -> None:
        try:
            while ring.run(made):
                pass
        except Interrupted:
            pass
        ended.set()

    thread = threading.Thread(target=forever)
    thread.start()
    time.sleep(0.05)
    made.close()
    assert ended.wait(HANGS_S)
    thread.join()


def test_two_teams_at_once() -> None:
    teams = [ThreadTeam(2, KernelLibrary.for_level(None)) for _ in range(2)]
    wrong: list[int] = []

    def work(i: int) -> None:
        ring = Ring(2)
        for _ in range(50):
            if not ring.run(teams[i]) or not ring.right():
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for made in teams:
        made.close()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_a_fork_both_sides_work(team: ThreadTeam) -> None:
    ring = Ring(2)
    assert ring.run(team)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        good = all(ring.run(team) and ring.right() for _ in range(20))
        team.close()
        os._exit(0 if good else 1)
    for _ in range(20):
        assert ring.run(team)
        assert ring.right()
    until = time.monotonic() + HANGS_S
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
        time.sleep(0.01)
    if status == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert status == (child, 0)
