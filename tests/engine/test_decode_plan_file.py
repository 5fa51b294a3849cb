"""Readings in the plan file: kept beside the plans, for a time, and never needed."""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tiny
from llmgen import LLM, SamplingParams
from llmgen.api_decode import KeptReadings, PlannedReading, planned_readings
from llmgen.backends.cpu import readings
from llmgen.engine.decode_plan_file import decode_key, keep_readings, kept_readings
from llmgen.engine.kv_plan import Candidate, Plan
from llmgen.engine.kv_plan_file import default_file, keep, kept
from llmgen.errors import LLMGenError
from llmgen.gguf import GGUFFile
from llmgen.model.decode_config import BUCKETS, DecodeConfig, Measured, Reading
from llmgen.model.kv_config import KVAutoConfig, KVCacheConfig

FOUND = {0: Measured(Reading(8, 4), {1: 0.25, 4: 0.125}), 2: Measured(Reading(8, 1), {1: 0.5})}


def test_kept_readings_are_the_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "plans.json"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    assert kept_readings(path, "a", 3, 60) == {}
    keep_readings(path, "a", {1: FOUND[0]}, 3)
    keep_readings(path, "b", FOUND, 3)
    keep_readings(path, "a", FOUND, 3)
    assert kept_readings(path, "a", 3, 60) == kept_readings(path, "b", 3, 60) == FOUND
    assert kept_readings(path, "c", 3, 60) == kept_readings(path, "a", 2, 60) == {}
    assert len(json.loads(path.read_text())["decode"]) == 2
    for later, holds in ((59, True), (61, False), (-10, False)):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        assert bool(kept_readings(path, "a", 3, 60)) == holds


def test_plans_and_readings_leave_one_another_alone(tmp_path: Path) -> None:
    path, config, f16 = tmp_path / "plans.json", KVAutoConfig(), KVCacheConfig()
    plan = Plan(100, None, (Candidate(f16, 10, 1000, True),), f16, "because", True)
    keep(path, "plan", config, plan)
    keep_readings(path, "a", FOUND, 3)
    keep(path, "other", config, plan)
    assert kept(path, "plan", None, config) == kept(path, "other", None, config) == plan
    assert kept_readings(path, "a", 3, 60) == FOUND


@pytest.mark.parametrize(
    "bucket",
    [
        *(1, {}, {"together": 9, "streams": 4, "seconds": {}}, {"together": 8, "streams": 3, "seconds": {}}),
        *({"together": 8, "streams": 4, "seconds": {"x": 1}}, {"together": 8, "streams": 4, "seconds": [1]}),
        *({"together": 8, "streams": 4.0, "seconds": {}}, {"together": 8, "streams": True, "seconds": {}}),
        *({"together": 8, "streams": 4, "seconds": {"4": n}} for n in (10**400, math.nan, math.inf, 0)),
    ],
)
def test_a_damaged_entry_is_as_good_as_none(tmp_path: Path, bucket: object) -> None:
    path = tmp_path / "plans.json"
    keep_readings(path, "a", FOUND, 3)
    content = json.loads(path.read_text())
    content["decode"][0]["buckets"][0] = bucket
    path.write_text(json.dumps(content))
    assert kept_readings(path, "a", 3, 60) == {}
    keep_readings(path, "a", FOUND, 3)
    assert kept_readings(path, "a", 3, 60) == FOUND


def test_a_time_that_is_too_large_for_a_float_is_damage(tmp_path: Path) -> None:
    path, config, f16 = tmp_path / "plans.json", KVAutoConfig(), KVCacheConfig()
    keep(path, "plan", config, Plan(100, None, (Candidate(f16, 10, 1000, True),), f16, "because", True))
    keep_readings(path, "a", FOUND, 3)
    content = json.loads(path.read_text())
    content["decode"][0]["measured"] = 10**400
    path.write_text(json.dumps(content))
    assert kept_readings(path, "a", 3, 60) == {}
    content["plans"][0]["measured"] = 10**400
    path.write_text(json.dumps(content))
    assert kept_readings(path, "a", 3, 60) == {}
    with pytest.raises(LLMGenError, match="damaged"):
        kept(path, "plan", None, config)


def test_what_is_kept_at_the_same_time_is_all_there(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: keep_readings(path, key, FOUND, 3), "abcd"))
    assert [kept_readings(path, key, 3, 60) for key in "abcd"] == [FOUND] * 4
    assert [file.name for file in tmp_path.iterdir()] == ["plans.json"]


def test_a_bucket_that_another_program_has_just_added_stays(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    keep_readings(path, "a", {1: FOUND[0]}, 3, 60)
    keep_readings(path, "a", {2: FOUND[0]}, 3, 60)  # by a program that found nothing when it began
    assert kept_readings(path, "a", 3, 60) == {1: FOUND[0], 2: FOUND[0]}
    keep_readings(path, "a", {0: FOUND[0]}, 3)  # what is older than no time at all is left out
    assert kept_readings(path, "a", 3, 60) == {0: FOUND[0]}


def test_a_file_of_something_else_is_neither_used_nor_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text("{}")
    assert kept_readings(path, "a", 3, 60) == {}
    for other in (path, path / "below"):
        with pytest.raises(LLMGenError, match="cannot (use|write) the plan file .*--kv-plan"):
            keep_readings(other, "a", FOUND, 3)
    assert path.read_text() == "{}"


def test_the_key_says_everything_that_counts() -> None:
    parts = [("model", "machine", "f16", BUCKETS), ("other", "machine", "f16", BUCKETS)]
    parts += [("model", "other", "f16", BUCKETS), ("model", "machine", "q8_0", BUCKETS)]
    parts += [("model", "machine", "f16", (512,))]
    assert len({decode_key(*each) for each in parts}) == len(parts)


def test_without_a_home_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "_SPREAD", math.inf)
    monkeypatch.setenv("LLMGEN_STATE", "~nobody-here/state")
    monkeypatch.chdir(tmp_path)
    path = tiny.write(tmp_path / "tiny.gguf")
    with LLM(path, n_ctx=128, n_threads=1) as llm:
        llm.generate("ab", SamplingParams(max_tokens=60, temp=0, ignore_eos=True))
        assert llm.model.readings.news
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


def test_what_is_kept_of_other_buckets_stays(tmp_path: Path) -> None:
    class Opened:
        decode_plan, kv_type, kernel_level, n_threads = DecodeConfig().resolved, "f16", "generic", 2
        fingerprint = "a model"

        def __init__(self) -> None:
            self.readings = readings.Readings(self.decode_plan, 2)

    first, second = Opened(), Opened()
    for model, bucket in ((first, 0), (second, 2)):
        model.readings.take_over({bucket: FOUND[bucket]})
        model.readings.news = True
        KeptReadings(model, tmp_path / "plans.json", 60).save()  # type: ignore[arg-type]
    third = Opened()
    KeptReadings(third, tmp_path / "plans.json", 60).load()  # type: ignore[arg-type]
    assert third.readings.measured == FOUND


def test_an_answer_is_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "_SPREAD", math.inf)  # on a busy machine, too
    monkeypatch.setenv("LLMGEN_STATE", str(tmp_path / "state"))
    path, params = tiny.write(tmp_path / "tiny.gguf"), SamplingParams(max_tokens=60, temp=0, ignore_eos=True)
    with LLM(path, n_ctx=128, n_threads=1) as llm:
        text = llm.generate("ab", params).text
        measured = llm.model.readings.measured
        assert list(measured) == [0]
    assert json.loads(default_file().read_text())["decode"][0]["buckets"][1:] == [None, None]
    with LLM(path, n_ctx=128, n_threads=1) as again:
        assert again.model.readings.measured == measured
        assert again.generate("ab", params).text == text
        assert not again.model.readings.news
    with GGUFFile.open(path) as file:
        plan = Plan(
            128, None, (Candidate(KVCacheConfig(), 10, 1000, True),), KVCacheConfig(), "because", True
        )
        first, *others = planned_readings(file, plan, KVAutoConfig(), DecodeConfig(), 1)
    assert first == PlannedReading(0, 512, measured[0])
    assert others == [PlannedReading(512, 2048, None), PlannedReading(2048, None, None)]
    with LLM(path, n_ctx=128, n_threads=1, decode_plan="none") as plain:
        assert plain.generate("ab", params).text == text
        assert not plain.model.readings.measured
