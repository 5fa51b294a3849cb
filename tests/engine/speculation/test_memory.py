"""What guessing has shown, kept in a file: what it is good for, and what a bad file does."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from archs import build_arch
from engine.speculation.machine import Clock, answers
from engine.speculation.test_costs import FLAT, QWEN, STEEP
from llmgen import LLM, SamplingParams
from llmgen.engine.speculation.costs import StepCosts
from llmgen.engine.speculation.experience import DRAFT, Experience
from llmgen.engine.speculation.memory import GuessMemory

SEEDS = range(8)


def known() -> tuple[StepCosts, Experience]:
    """Of a program that has run for a while: a plain step takes 0.1 s, runs of two and three 1.2 and 1.5 times that."""
    costs, experience = StepCosts(draft_share=0.25), Experience()
    for n_tokens, cost in ((1, 0.1), (2, 0.12), (3, 0.15)):
        for _ in range(4):
            costs.ran(n_tokens, 1, cost)
            costs.guessed([1], 0.04)
    for i in range(30):
        experience.judged(DRAFT, i % 10 > 0, 0.9)
    return costs, experience


def test_another_program_begins_with_what_was_kept(tmp_path):
    memory = GuessMemory(tmp_path / "state" / "guesses.json", "model", "draft", 2)
    memory.save(*known())
    costs, experience = StepCosts(draft_share=0.25), Experience()
    memory.load(costs, experience)
    for _ in range(3):
        assert costs.wants_plain(1)
        costs.ran(1, 1, 0.2)  # a slower moment
    assert not costs.wants_plain(1)
    assert costs.knows(2)
    assert [round(costs.of(n), 3) for n in (1, 2, 3)] == [0.2, 0.24, 0.3]
    assert costs.guess_s == pytest.approx(0.08, rel=0.05)
    assert experience.expected(DRAFT) == pytest.approx(known()[1].expected(DRAFT), abs=0.01)
    assert experience.all_right([0.9]) == pytest.approx(known()[1].all_right([0.9]), abs=0.01)


def test_it_holds_for_what_it_was_measured_with_only(tmp_path):
    path = tmp_path / "guesses.json"
    GuessMemory(path, "model", "draft", 2).save(*known())
    GuessMemory(path, "model", "draft", 4).save(*known())
    for what in (("model", "draft", 1), ("model", "another", 2), ("another", "draft", 2)):
        costs = StepCosts(draft_share=0.25)
        GuessMemory(path, *what).load(costs, Experience())
        assert not costs.knows(2)
        assert costs._kept == {}
    assert len(json.loads(path.read_text())["entries"]) == 2  # the second one did not replace the first


def test_first_answers_gain_more_after_a_program_that_gained(monkeypatch, tmp_path):
    """All guesses are right: with fewer, answers differ by more than known costs gain, two or three percent."""

    def times(memory=None):
        return [answers(Clock(monkeypatch, i), QWEN, 0.2, 1.0, seed=i, memory=memory)[0] for i in SEEDS]

    memory = GuessMemory(tmp_path / "guesses.json", "it")
    answers(Clock(monkeypatch), QWEN, 0.2, 1.0, lengths=(200,), seed=9, memory=memory)
    for fresh, knowing in zip(times(), times(memory), strict=True):
        assert knowing < fresh - 0.01


@pytest.mark.parametrize("steps", [FLAT, STEEP])
def test_after_a_program_that_did_not_gain_nothing_more_is_lost(monkeypatch, tmp_path, steps):
    memory = GuessMemory(tmp_path / "guesses.json", "it")
    for i in SEEDS:
        [time] = answers(Clock(monkeypatch, i), steps, 0.4, 0.2, seed=i, memory=memory)
        assert time < 1.03


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"{}",
        b'{"format": "llmgen guesses", "version": 2, "entries": []}',
        b'{"format": "llmgen guesses", "version": 1, "entries": 3}',
        b'{"format": "llmgen guesses", "version": 1, "entries": [3, {"key": 4}]}',
        b"[" * 100_000,
    ],
)
def test_a_file_of_something_else_is_replaced(tmp_path, content):
    path = tmp_path / "guesses.json"
    path.write_bytes(content)
    memory = GuessMemory(path, "it")
    memory.load(StepCosts(0.25), Experience())
    memory.save(*known())
    assert len(json.loads(path.read_text())["entries"]) >= 1


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("runs", {"2": "x"}),
        ("runs", {"2": -1.0}),
        ("runs", {"1": 1.0}),
        ("runs", {"999": 1.0}),
        ("runs", {"2": float("nan")}),
        ("runs", []),
        ("guess", None),
        ("guess", -1),
        ("guess", 10**400),
        ("gain", float("nan")),
        ("kinds", {"0": [3, 2]}),
        ("kinds", {"0": [1, 2, 3]}),
        ("kinds", {"x": [1, 2]}),
        ("kinds", {"0": [1, 10**400]}),
        ("kinds", {"0": [float("nan"), 2]}),
        ("confidence", [[0, 0]]),
        ("confidence", None),
    ],
)
def test_an_impossible_figure_makes_an_entry_useless(tmp_path, part, value):
    path = tmp_path / "guesses.json"
    memory = GuessMemory(path, "it")
    memory.save(*known())
    content = json.loads(path.read_text())
    [entry] = content["entries"]
    entry["costs" if part in entry["costs"] else "experience"][part] = value
    path.write_text(json.dumps(content))
    costs, experience = StepCosts(draft_share=0.25), Experience()
    memory.load(costs, experience)
    for _ in range(3):
        costs.ran(1, 1, 0.1)
    assert not costs.knows(2)
    assert experience.expected(DRAFT) == Experience().expected(DRAFT)


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    memory = GuessMemory(tmp_path / "file" / "guesses.json", "it")
    memory.save(*known())
    memory.load(StepCosts(), Experience())


def test_without_a_home_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    GuessMemory(Path("~/state/guesses.json"), "it").save(*known())
    assert os.listdir(tmp_path) == []


def test_a_link_to_itself_is_no_error(tmp_path):
    path = tmp_path / "guesses.json"
    path.symlink_to(path)
    memory = GuessMemory(path, "it")
    memory.save(*known())
    memory.load(StepCosts(), Experience())


def test_programs_that_end_at_once_lose_nothing(tmp_path):
    path = tmp_path / "guesses.json"
    costs, experience = known()
    memories = [GuessMemory(path, i) for i in range(12)]
    with ThreadPoolExecutor(len(memories)) as pool:
        list(pool.map(lambda memory: memory.save(costs, experience), memories))
    assert len(json.loads(path.read_text())["entries"]) == len(memories)


def test_too_little_was_seen_to_be_kept(tmp_path):
    path = tmp_path / "guesses.json"
    GuessMemory(path, "it").save(StepCosts(0.25), Experience())
    assert not path.exists()


def test_a_model_keeps_it_when_it_is_closed(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMGEN_STATE", str(tmp_path))
    ran = StepCosts.ran  # whatever else the machine does, guessing pays
    monkeypatch.setattr(StepCosts, "ran", lambda costs, n, n_own, _: ran(costs, n, n_own, 1 + 0.1 * n))
    path = build_arch("llama-dense")
    params = SamplingParams(temp=0.0, max_tokens=120, ignore_eos=True)
    texts = []
    for _ in range(2):
        with LLM(path, n_ctx=256, n_threads=1, lookup=True) as llm:
            texts.append(llm.generate([1, *range(10, 40)] * 2, params).token_ids)
    assert texts[0] == texts[1]
    assert "guesses.json" in os.listdir(tmp_path)  # on a quiet machine beside how the cache is read
