"""Several named runs in one options file: ``llmgen run --config``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from llmgen import __version__
from llmgen.cli.run.manifest import sampling_values
from llmgen.sampling.params import SamplingParams
from program import HANGS_S, PROGRAM, environment, llmgen, refused

pytestmark = pytest.mark.usefixtures("compiled")
MANIFEST = """
# for all of them
model: {model}
max-tokens: 6
raw: true
runs:
  first: {{prompt: aab}}
  lost: {{model: not-there, prompt: x}}
  second:
    prompt: ba
    temp: 1.5
    kv-type: f32
    ctx: 64
    stop: ["\\n\\n", zz]
    logit_bias: {{a=b: -1.5, 7: 2}}
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "runs.yaml"
    path.write_text(MANIFEST.format(model=tiny.write(tmp_path / "tiny.gguf")))
    return path


def results(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_run_has_a_line_of_json_and_one_that_fails_loses_no_other(manifest: Path) -> None:
    done = llmgen("run", "--config", str(manifest), "--json")
    assert done.returncode == 1
    first, lost, second = results(done)
    assert [result["name"] for result in (first, lost, second)] == ["first", "lost", "second"]
    for result in (first, second):
        assert result["version"] == __version__
        assert result["model"] == result["options"]["model"] == str(manifest.parent / "tiny.gguf")
        assert len(result["fingerprint"]) == 64
        assert result["options"]["seed"] == result["seed"]
        assert result["completion_tokens"] <= result["options"]["max-tokens"] == 6
    assert "not-there" in lost["error"]
    assert (lost["model"], lost["options"]["prompt"]) == ("not-there", "x")
    assert (first["options"]["kv-type"], first["options"]["ctx"]) == ("f16", 256)
    assert (second["options"]["kv-type"], second["options"]["ctx"]) == ("f32", 64)
    assert second["options"]["logit-bias"] == ["a=b=-1.5", "7=2.0"]
    assert "error: run lost: there is no model 'not-there'" in done.stderr
    assert done.stderr.endswith("1 of 3 runs failed\n")


def test_what_was_printed_is_a_manifest_that_gives_the_same_again(manifest: Path) -> None:
    before = results(llmgen("run", "--config", str(manifest), "--json", "--samples", "2"))
    runs = {result["name"]: result["options"] for result in before if "error" not in result}
    again = manifest.with_name("again.yaml")
    again.write_text(json.dumps({"runs": runs}))  # JSON is YAML
    done = llmgen("run", "--config", str(again))
    assert done.returncode == 0, done.stderr
    after = {result["name"]: result for result in results(done)}
    assert set(after) == {"first", "second"}
    for result in before:
        if "error" not in result:
            repeated = after[result["name"]]
            for key in ("options", "fingerprint", "version", "token_ids"):
                assert repeated[key] == result[key]
            texts = [sample["text"] for sample in result["samples"]]
            assert [sample["text"] for sample in repeated["samples"]] == texts


def test_texts_stand_in_the_order_of_the_runs(manifest: Path) -> None:
    done = llmgen("run", "--config", str(manifest), "--temp", "0", input=b"not read")
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if line == "---"] == ["---"] * 2
    assert [line for line in done.stderr.splitlines() if line.startswith("run ")] == [
        "run first",
        "run lost",
        "run second",
    ]


def test_what_is_typed_holds_for_all_and_toml_is_as_good(manifest: Path) -> None:
    path = manifest.with_name("runs.toml")
    path.write_text('[run]\ntemp = 0.5\n[runs.a]\nprompt = "a"\n[runs.b]\nprompt = "b"\ntemp = 0\nseed = 4\n')
    done = llmgen(
        "run", str(manifest.with_name("tiny.gguf")), "--config", str(path), "-n", "1", "--raw", "--json"
    )
    assert done.returncode == 0, done.stderr
    a, b = (result["options"] for result in results(done))
    assert (a["temp"], a["max-tokens"], a["prompt"]) == (0.5, 1, "a")
    assert (b["temp"], b["seed"], b["prompt"]) == (0, 4, "b")


def test_the_options_of_every_run_can_be_shown(manifest: Path) -> None:
    done = llmgen("run", "--config", str(manifest), "--print-config")
    assert done.returncode == 0, done.stderr
    heads = [line.split("  ")[0] for line in done.stdout.splitlines() if line.startswith("[")]
    assert heads == ['[runs."first"]', '[runs."lost"]', '[runs."second"]']
    assert done.stdout.count("max-tokens = 6") == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("runs: 3", "must hold a name and its options"),
        ("runs: {}", "must hold a name and its options"),
        ("runs: {a: 3}", "must hold a name and its options"),
        ("runs: {1: {prompt: x}}", "must be texts; put quotes around numbers"),
        ("runs: {a: {tmep: 0}}", "[runs.a] tmep is not an option; did you mean temp?"),
        ("runs: {a: {temp: [1, 2]}}", "temp must be one value"),
        ("runs: {a: {}, a: {}}", "a is there twice"),
        ("runs: {ok: {model: m, prompt: x}, b: {prompt: x}}", "run b: missing argument 'MODEL'"),
        ("runs: {a: {prompt: x}}\ntmep: 1", "did you mean temp?"),
    ],
)
def test_a_mistake_is_found_before_any_run(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "runs.yaml"
    path.write_text(text)
    said = refused(llmgen("run", "--config", str(path)), code=2)
    assert says in said
    assert str(path) in said


def test_only_run_takes_runs(manifest: Path) -> None:
    said = refused(llmgen("bench", "m", "--config", str(manifest)), code=2)
    assert "`llmgen run` takes, not bench" in said
    said = refused(llmgen("run", "m", "x", LLMGEN_CONFIG=str(manifest)), code=2)
    assert "give their file to `llmgen run --config`" in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_them_all(manifest: Path) -> None:
    long = "runs: {a: {max-tokens: 1}, b: {max-tokens: 100000, ignore-eos: true, context-full: shift}, c: {}}"
    manifest.write_text(f"model: {manifest.with_name('tiny.gguf')}\nraw: true\nprompt: ab\n{long}\n")
    program = subprocess.Popen(
        [*PROGRAM, "run", "--config", str(manifest)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert program.stdout is not None
    before = b""
    while b"---\n" not in before or before.endswith(b"---\n"):  # until the second run's text comes
        before += program.stdout.read(1)
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=HANGS_S)
    assert program.returncode == 130
    assert said.decode().splitlines()[-1] == "ended in run 2 of 3"


def test_every_sampling_option_can_be_written_to_a_file() -> None:
    params = SamplingParams(stop="x", logit_bias={5: -1.5, "a=b": float("-inf")}, timeout=2)
    values = sampling_values(params)
    assert values["logit-bias"] == ["5=-1.5", "a=b=-inf"]
    assert values["samplers"].startswith("penalties;dry;")
    assert values["stop"] == ("x",)
    assert values["timeout"] == 2
    assert "seed" not in values
