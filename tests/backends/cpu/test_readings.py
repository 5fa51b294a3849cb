"""How a model finds out which way of reading the cache is fastest, with times that a test makes up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from llmgen.backends.cpu.readings import ROUNDS, Readings
from llmgen.model.decode_config import RULE, STREAMS, DecodeConfig, Measured, Reading

PLAN = DecodeConfig().resolved
SHORT, MIDDLE, LONG = 100, 1000, 5000
ENOUGH = 2 + ROUNDS * len(STREAMS)
"""Steps until a bucket is decided."""


def run(
    readings: Readings,
    steps: int,
    seconds: Callable[[int, int], float],
    length: int = LONG,
    n_threads: int = 2,
) -> list[int]:
    """Steps at a length, each of which takes what ``seconds(streams, number)`` says; returns their streams."""
    used = []
    for number in range(steps):
        reading = readings.choose(length, 1)
        readings.report(reading, length, 1, n_threads, seconds(reading.streams, number))
        used.append(reading.streams)
    return used


@pytest.mark.parametrize("fastest", STREAMS)
def test_the_fastest_is_kept(fastest: int) -> None:
    readings = Readings(PLAN, 2)
    used = run(readings, ENOUGH + 5, lambda streams, _: 0.8 if streams == fastest else 1.0)
    assert sorted(used[2:ENOUGH]) == sorted(ROUNDS * STREAMS)
    assert used[ENOUGH:] == [fastest] * 5
    assert readings.measured == {
        2: Measured(Reading(streams=fastest), dict.fromkeys(STREAMS, 1.0) | {fastest: 0.8})
    }
    assert readings.news
    assert readings.choose(SHORT, 1).streams == STREAMS[0]  # whose turn it is in a bucket of its own


def test_a_little_faster_or_seldom_faster_is_not_enough() -> None:
    little, seldom = Readings(PLAN, 2), Readings(PLAN, 2)
    run(little, ENOUGH, lambda streams, _: 0.99 if streams == 8 else 1.0)
    run(seldom, 2 * ENOUGH, lambda streams, number: 0.5 if streams == 8 and number < 12 else 1.0)
    assert little.measured[2].reading == seldom.measured[2].reading == RULE


def test_another_program_for_a_while_decides_nothing() -> None:
    readings = Readings(PLAN, 2)
    run(
        readings,
        ENOUGH,
        lambda streams, number: (3.0 if 5 <= number < 15 else 1.0) * (0.9 if streams == 2 else 1.0),
    )
    assert readings.measured[2].reading.streams == 2


def test_a_busy_machine_decides_nothing() -> None:
    noise = random.Random(3)
    readings = Readings(PLAN, 2)
    used = run(readings, 5 * ENOUGH, lambda streams, _: noise.choice((0.1, 1.0, 1.0, 1.3, 2.0)))
    assert not readings.measured
    assert used[3 * ENOUGH :] == [RULE.streams] * 2 * ENOUGH


def test_steps_with_fewer_threads_and_of_several_tokens_say_nothing() -> None:
    readings = Readings(PLAN, 2)
    used = run(readings, 3 * ENOUGH, lambda streams, _: 1.0, n_threads=1)
    assert set(used[1:]) == {RULE.streams}  # no way takes its turn where none is timed
    for _ in range(3 * ENOUGH):
        assert readings.choose(LONG, 5) == RULE
        readings.report(RULE, LONG, 5, 2, 1.0)
    assert not readings.measured


def test_the_ways_take_turns_again_once_all_threads_run() -> None:
    readings = Readings(PLAN, 2)
    run(readings, 9, lambda streams, _: 1.0)
    run(readings, 9, lambda streams, _: 1.0, n_threads=1)
    used = run(readings, ENOUGH, lambda streams, _: 0.8 if streams == 2 else 1.0)
    assert used[0] == RULE.streams
    assert readings.measured[2].reading == Reading(streams=2)


def test_what_is_known_is_not_measured() -> None:
    readings = Readings(PLAN, 2)
    known = Measured(Reading(streams=8), {8: 0.1})
    readings.take_over({1: known})
    assert run(readings, 3, lambda streams, _: 1.0, MIDDLE) == [8, 8, 8]
    assert readings.measured == {1: known}
    assert not readings.news


def test_where_no_attention_reads_so_nothing_is_measured() -> None:
    readings = Readings(PLAN, 2, matter=False)
    assert not readings.adapts
    run(readings, 2 * ENOUGH, lambda streams, _: 1.0)
    assert not readings.measured


@pytest.mark.parametrize("plan", ["none", "fixed"])
def test_other_plans_measure_nothing(plan: str) -> None:
    readings = Readings(DecodeConfig(plan).resolved, 2)
    assert set(run(readings, 2 * ENOUGH, lambda streams, _: 1.0)) == {1}
    assert not readings.measured
