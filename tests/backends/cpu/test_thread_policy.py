"""How many threads run: a made-up machine says how long a run takes, and the policy must find out."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from llmgen.backends.cpu.runtime.thread_policy import ThreadPolicy


class Machine:
    """``n_cpus`` processors, on some of which others are busy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_cpus: int, busy: int = 0) -> None:
        self.n_cpus, self.busy, self.told = n_cpus, busy, True
        monkeypatch.setattr(os, "cpu_count", lambda: n_cpus)

    def others(self, own: int) -> int:
        return self.busy if self.told else 0

    def seconds(self, n_threads: int) -> float:
        """Threads that share a processor with somebody take twice as long, and all wait for them."""
        shared = n_threads > self.n_cpus - self.busy
        return 0.01 / n_threads * (3 if shared and n_threads > 1 else 1)

    def run(self, policy: ThreadPolicy, times: int, n_tokens: int = 1) -> list[int]:
        chosen = []
        for _ in range(times):
            n = policy.choose(n_tokens)
            wall = self.seconds(n) * n_tokens
            lost = wall / 2 if n > self.n_cpus - self.busy else 0.0
            policy.report(n, n_tokens, wall, lost, 0)
            chosen.append(n)
        return chosen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    return lambda *args: Machine(monkeypatch, *args)


def test_a_quiet_machine_keeps_all_threads(machine: Callable[..., Machine]) -> None:
    quiet = machine(4)
    assert set(quiet.run(ThreadPolicy(4, others=quiet.others), 500)) == {4}


def test_one_thread_stays_one(machine: Callable[..., Machine]) -> None:
    loaded = machine(1, 3)
    policy = ThreadPolicy(1, others=loaded.others)
    assert set(loaded.run(policy, 100)) == {1}
    assert policy.choose(512) == 1


def test_the_first_run_looks_around(machine: Callable[..., Machine]) -> None:
    loaded = machine(2, 1)
    chosen = loaded.run(ThreadPolicy(2, others=loaded.others), 400)
    assert chosen[0] == 1
    assert chosen.count(2) <= 20  # two threads are tried now and then, ever more seldom


def test_what_comes_later_is_noticed_by_its_effect(machine: Callable[..., Machine]) -> None:
    later = machine(2)
    policy = ThreadPolicy(2, others=later.others)
    assert set(later.run(policy, 50)) == {2}
    later.busy, later.told = 1, False
    chosen = later.run(policy, 300)
    assert chosen.count(1) > 280
    later.busy = 0
    assert later.run(policy, 2000)[-1] == 2  # and its end, too


@pytest.mark.parametrize("busy", [1, 3, 9])
def test_many_threads_leave_only_the_taken_processors(machine: Callable[..., Machine], busy: int) -> None:
    large = machine(16)
    policy = ThreadPolicy(16, others=large.others)
    large.run(policy, 50)
    large.busy = busy
    assert large.run(policy, 300)[-1] == 16 - busy
    large.busy = busy // 2
    assert large.run(policy, 3000)[-1] == 16 - busy // 2


def test_trouble_without_other_processes_halves_the_threads(machine: Callable[..., Machine]) -> None:
    confined = machine(16)
    policy = ThreadPolicy(16, others=confined.others)
    confined.run(policy, 50)
    confined.busy, confined.told = 10, False  # a quota, say
    assert 8 in confined.run(policy, 20)


def test_one_delayed_run_changes_nothing(machine: Callable[..., Machine]) -> None:
    quiet = machine(4)
    policy = ThreadPolicy(4, others=quiet.others)
    for _ in range(20):
        quiet.run(policy, 50)
        policy.report(4, 1, 0.02, 0.015, 0)
        assert set(quiet.run(policy, 40)) == {4}


@pytest.mark.parametrize(("waits", "tried"), [(100, {4}), (2000, {2, 4})])
def test_yields_count_by_the_time_they_take(
    machine: Callable[..., Machine], waits: int, tried: set[int]
) -> None:
    quiet = machine(4)
    policy = ThreadPolicy(4, others=quiet.others)
    chosen = set()
    for _ in range(100):
        chosen.add(policy.choose(1))
        policy.report(policy.current, 1, 0.002, 0.0, waits)
    assert chosen == tried


def test_a_wrong_first_look_is_put_right(machine: Callable[..., Machine]) -> None:
    passing = machine(2, 1)
    policy = ThreadPolicy(2, others=passing.others)
    assert passing.run(policy, 1) == [1]
    passing.busy = 0
    assert passing.run(policy, 30)[-1] == 2


@pytest.mark.parametrize("runs", [40, 400, 4000])
def test_the_end_of_a_known_disturbance_is_noticed_within_42_runs(
    machine: Callable[..., Machine], runs: int
) -> None:
    changing = machine(2)
    policy = ThreadPolicy(2, others=changing.others)
    changing.run(policy, 50)
    changing.busy = 1
    assert changing.run(policy, runs)[-1] == 1
    changing.busy = 0
    assert set(changing.run(policy, 100)[42:]) == {2}


def test_what_the_system_hides_is_not_tried_again_and_again(machine: Callable[..., Machine]) -> None:
    hidden = machine(2)
    policy = ThreadPolicy(2, others=hidden.others)
    hidden.run(policy, 50)
    hidden.busy = 1
    hidden.run(policy, 40)
    hidden.told = False  # they seem to have gone
    assert hidden.run(policy, 2000).count(2) <= 30  # as seldom as after any decision


def test_processors_that_get_free_after_the_first_look_are_taken(machine: Callable[..., Machine]) -> None:
    large = machine(16, 12)
    policy = ThreadPolicy(8, others=large.others)
    assert large.run(policy, 4) == [4] * 4
    policy._hold = policy._left = 1024  # as after many decisions for four threads
    large.busy = 5  # more than the four threads that the policy does without, but fewer than before
    assert 8 in large.run(policy, 48)


def test_a_long_run_looks_around_each_time(machine: Callable[..., Machine]) -> None:
    changing = machine(8)
    policy = ThreadPolicy(8, others=changing.others)
    seen = []
    for busy in (0, 2, 20):
        changing.busy = busy
        seen.append(policy.choose(512))
    assert seen == [8, 6, 1]
