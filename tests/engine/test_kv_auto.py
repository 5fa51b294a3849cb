"""LLM(kv_type="auto"): a real model is measured, the result is kept and used again."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tiny
from llmgen import LLM, KVAutoConfig, KVCacheConfig, LLMGenError, SamplingParams, api_kv
from llmgen.backends.cpu.model import Model
from llmgen.engine import kv_plan_file

KINDS = ("f16", "q8_0")
GREEDY = SamplingParams(temp=0, max_tokens=5)


@pytest.fixture(autouse=True)
def _few_candidates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(api_kv, "CANDIDATES", tuple(map(KVCacheConfig.of, KINDS)))
    monkeypatch.setenv("LLMGEN_STATE", str(tmp_path / "state"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "tiny.gguf")


def opened(path: Path, **options: Any) -> tuple[LLM, list[str]]:
    """The model, and the candidates that were measured."""
    told: list[str] = []
    llm = LLM(
        path, n_ctx=128, n_threads=1, kv_report=lambda kinds, done, total: told.append(str(kinds)), **options
    )
    return llm, told


def test_a_model_is_measured_once(path: Path, tmp_path: Path) -> None:
    llm, told = opened(path, kv_type="auto")
    with llm:
        plan = llm.kv_plan
        assert plan is not None
        assert told == list(KINDS)
        assert llm.model.kv_type == str(plan.chosen)
        assert all(candidate.quality is not None for candidate in plan.candidates)
        assert plan.candidates[0].quality.mean_kl == 0  # type: ignore[union-attr]
        assert plan.candidates[1].quality.mean_kl > 0  # type: ignore[union-attr]
        text = llm.generate("ab", GREEDY).text
    assert (tmp_path / "state" / "kv-plans.json").exists()
    again, told = opened(path, kv_type="auto")
    with again:
        assert (told, again.kv_plan) == ([], plan)
    with LLM(path, n_ctx=128, n_threads=1, kv_type=plan.chosen) as plain:
        assert plain.kv_plan is None
        assert plain.generate("ab", GREEDY).text == text
    other, told = opened(path, kv_type=KVAutoConfig(max_mean_kl=0.2))
    with other:
        assert told == list(KINDS)


def test_what_another_process_measured_meanwhile_is_taken(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state" / "kv-plans.json"
    with opened(path, kv_type="auto")[0] as llm:
        plan, measured = llm.kv_plan, file.read_bytes()
    file.unlink()

    @contextmanager
    def meanwhile(at: Path, waiting: Callable[[], None]) -> Iterator[None]:
        assert at == file
        waiting()
        file.write_bytes(measured)  # by the process that this one waited for
        yield

    monkeypatch.setattr(api_kv, "measuring_alone", meanwhile)
    again, told = opened(path, kv_type="auto")
    with again:
        assert (told, again.kv_plan) == (["None"], plan)


def test_a_budget_leaves_out_what_is_too_large(path: Path, tmp_path: Path) -> None:
    with LLM(path, n_ctx=128, n_threads=1) as plain:
        f16 = plain.model.layout.bytes_for(128)
    kept = KVAutoConfig(budget_mb=(f16 - 1) / 1e6, plan_file=tmp_path / "mine.json")
    llm, told = opened(path, kv_type=kept)
    with llm:
        assert told == ["q8_0"]
        assert llm.model.kv_type == "q8_0"
    assert len(json.loads((tmp_path / "mine.json").read_text())["plans"]) == 1
    with pytest.raises(
        LLMGenError, match="no KV cache for 128 tokens fits into 0.001 MB: the smallest, q8_0"
    ):
        opened(path, kv_type=dataclasses.replace(kept, budget_mb=0.001))


@pytest.mark.parametrize("problem", ["a full disk", "no folder", "no home", "damage"])
def test_a_plan_that_cannot_be_kept_is_used(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    def full(path: Path) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    if problem == "a full disk":
        monkeypatch.setattr(kv_plan_file, "replacing", full)
    elif problem == "damage":
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "kv-plans.json").write_text("{}")
    else:
        (tmp_path / "file").touch()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv(
            "LLMGEN_STATE", "~nobody-here/state" if problem == "no home" else str(tmp_path / "file")
        )
    before = {file.name for file in tmp_path.iterdir()}
    with pytest.warns(
        UserWarning, match="is not kept, and will be measured again: cannot (write|use) the plan file"
    ):
        llm, told = opened(path, kv_type="auto")
    with llm:
        assert told == list(KINDS)
        assert llm.kv_plan is not None
        assert llm.model.kv_type == str(llm.kv_plan.chosen)
    assert {file.name for file in tmp_path.iterdir()} - {"state"} == before - {"state"}
    named = KVAutoConfig(plan_file=tmp_path / "tiny.gguf" / "plans.json")
    with pytest.raises(LLMGenError, match="cannot write the plan file .*tiny.gguf"):
        opened(path, kv_type=named)


def test_without_a_kind_that_passes(path: Path, tmp_path: Path) -> None:
    none = {"max_mean_kl": 0.0, "budget_mb": 0.012}  # which only q8_0 fits into
    llm, _ = opened(path, kv_type=KVAutoConfig(**none))
    with llm:
        assert llm.kv_plan is not None
        assert not llm.kv_plan.passed
        assert "mean KL" in llm.kv_plan.reason
    for kept in (True, False):
        if not kept:
            (tmp_path / "state" / "kv-plans.json").unlink()
        with pytest.raises(LLMGenError, match="mean KL .*, at most 0.*--kv-strict"):
            opened(path, kv_type=KVAutoConfig(strict=True, **none))


def test_one_kind_is_needed_where_nothing_is_measured(path: Path) -> None:
    from llmgen.gguf import GGUFFile

    with GGUFFile.open(path) as file, pytest.raises(LLMGenError, match="here one kind is needed"):
        Model.load(file, n_ctx=64, kv_type="auto")
