"""``llmgen plan`` and --kv-type auto: what they say, and what they keep."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path

import pytest

import tiny
from archs import build_arch
from llmgen.api_decode import PlannedReading
from llmgen.cli.plan import _print, _print_readings
from llmgen.engine.kv_measure import Quality
from llmgen.engine.kv_plan import CANDIDATES, Candidate, Plan
from llmgen.model.decode_config import Measured, Reading
from llmgen.model.kv_config import KVCacheConfig
from program import llmgen, refused

CONTEXT = ("-c", "128", "-t", "1")
SMALL = ("--kv-budget", "0.008")
"""MB that only 4 bits fit into."""


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny.write(tmp_path / "tiny.gguf"))


def test_a_plan_as_json_and_as_a_table(model: str, tmp_path: Path) -> None:
    kept = ("--kv-plan", str(tmp_path / "plans.json"))
    done = llmgen("plan", model, *CONTEXT, *SMALL, *kept, "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    fitting = [entry["kinds"] for entry in plan["candidates"] if entry["fits"]]
    assert fitting == ["q4_0", "k=q4_0,v=nf4", "nf4"]
    assert plan["chosen"] in fitting
    assert (plan["n_ctx"], plan["budget_bytes"]) == (128, 8000)
    measured = [entry for entry in plan["candidates"] if entry["quality"]]
    assert [entry["kinds"] for entry in measured] == fitting
    assert all(entry["quality"]["tokens"] == 68 for entry in measured)
    assert [(one["above"], one["up_to"]) for one in plan["decode"]] == [(0, 512), (512, 2048), (2048, None)]
    assert not any(one["measured"] for one in plan["decode"][1:])  # the context does not reach them
    table = llmgen("plan", model, *CONTEXT, *SMALL, *kept)
    assert "measuring" in done.stderr
    assert "measuring" not in table.stderr  # the plan was kept
    lines = table.stdout.splitlines()
    assert lines[0].split()[:3] == ["KV", "cache", "context"]
    assert sum("too big" in line for line in lines) == 5
    [end] = [i for i, line in enumerate(lines) if line.startswith(f"{plan['chosen']} for 128 tokens")]
    assert lines[end] == f"{plan['chosen']} for 128 tokens (at most 8.0 kB): {plan['reason']}"
    assert sum("chosen" in line for line in lines[:end]) == 1
    nowhere = str(tmp_path / "plans.json")  # no folder
    again = llmgen("plan", model, *CONTEXT, *SMALL, "--json", LLMGEN_STATE=nowhere)
    assert "measuring" in again.stderr
    assert again.returncode == 0
    assert json.loads(again.stdout).keys() == plan.keys()
    warnings = [line for line in again.stderr.splitlines() if line.startswith("warning:")]
    assert len(warnings) == 1
    assert f"not kept, and will be measured again: cannot write the plan file {nowhere}" in warnings[0]
    again = llmgen("plan", model, *CONTEXT, *SMALL, *kept, "--again")
    assert "measuring" in again.stderr


def test_a_model_without_keys_has_nothing_to_plan(tmp_path: Path) -> None:
    kept = tmp_path / "plans.json"
    done = llmgen("plan", str(build_arch("mamba-dense")), "--kv-plan", str(kept))
    assert done.stdout == "this model keeps no keys and values, so there is nothing to plan\n"
    assert done.stderr == ""
    assert not kept.exists()


def test_a_model_that_generates_no_tokens_is_refused(tmp_path: Path) -> None:
    done = llmgen("plan", str(build_arch("dream-dense")), "--kv-plan", str(tmp_path / "plans.json"))
    assert refused(done, 1) == (
        "KV cache kinds are measured over generated tokens, and dream models write by diffusion; "
        "name a kind (--kv-type)"
    )


def test_why_kinds_fail_stands_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """In a column of its own it would make the others too narrow for a terminal."""
    f16, nf4 = KVCacheConfig(), KVCacheConfig(k="nf4", v="nf4")
    bad = Candidate(nf4, 5, 500, True, failed=("mean KL 0.2, at most 0.1", "ratio 2, at most 1.05"))
    _print(Plan(100, None, (Candidate(f16, 10, 1000, True), bad), f16, "because", True))
    _, _, row, _, why, end = capsys.readouterr().out.splitlines()
    assert row.split() == ["nf4", "500", "B", "fails"]
    assert why == "nf4 fails: mean KL 0.2, at most 0.1; ratio 2, at most 1.05"
    assert end.startswith("f16 for 100 tokens")


def test_the_table_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the longest kinds, and figures as long as they get: nothing is broken in two."""
    quality = Quality(68, 2.0, -0.0128, 1.0129, 1.54e-2, 1.0)
    rows = [Candidate(kinds, 999_900, 999_900_000, True, quality, 9999, 0.12345) for kinds in CANDIDATES]
    rows[0] = dataclasses.replace(rows[0], fits=False)
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    _print(Plan(4096, None, tuple(rows), CANDIDATES[3], "because", True))
    lines = [line for line in terminal.getvalue().splitlines() if "999.9 MB" in line]
    assert len(lines) == len(CANDIDATES)
    for line, kinds in zip(lines, CANDIDATES, strict=True):
        figures = "999.9 MB -0.0128 1.0129 1.5e-02 100% 9999 123.45".split()
        assert line.split()[: 1 + len(figures)] == [str(kinds), *figures]


def test_readings_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = Measured(Reading(streams=2), {1: 0.004, 2: 0.003, 4: 0.0035, 8: 0.0041})
    _print_readings([PlannedReading(0, 512, None), PlannedReading(512, None, found)])
    _, head, row = capsys.readouterr().out.splitlines()
    assert head.split() == "context 1 stream, ms 2 streams, ms 4 streams, ms 8 streams, ms".split()
    assert row.split() == "over 512 4.00 3.00 3.50 4.10 2 chosen".split()


def test_run_takes_the_plan(model: str, tmp_path: Path) -> None:
    options = (*CONTEXT, *SMALL, "--kv-plan", str(tmp_path / "plans.json"), "--kv-max-mean-kl", "0")
    done = llmgen(
        *("run", model, "ab", "--raw", "-n", "2", "--seed", "1", "--json", "--kv-type", "auto", *options),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "warning: KV cache: no kind that fits passes the gates" in done.stderr
    assert "mean KL" in done.stderr
    told = json.loads(done.stdout)
    assert not told["kv_plan"]["passed"]
    assert told["kv_type"] in told["kv_plan"]["reason"]
    says = refused(llmgen("run", model, "ab", "--raw", "--kv-type", "auto", *options, "--kv-strict"), 1)
    assert says.startswith("KV cache: no kind that fits passes the gates")


def test_wrong_options(model: str, tmp_path: Path) -> None:
    says = refused(llmgen("run", model, "ab", "--kv-budget", "5"), 2)
    assert "--kv-budget goes with --kv-type auto" in says
    assert "--kv-max-ppl-ratio" in refused(llmgen("plan", model, "--kv-max-ppl-ratio", "0.5"), 2)
    assert "allow more (--kv-budget)" in refused(llmgen("plan", model, *CONTEXT, "--kv-budget", "0.001"), 1)
    (tmp_path / "other.json").write_text("{}")
    says = refused(llmgen("plan", model, *CONTEXT, "--kv-plan", str(tmp_path / "other.json")), 1)
    assert "it is no file of plans" in says
    assert "llmgen plan" in refused(llmgen("inspect", model, "--kv-type", "auto"), 2)
