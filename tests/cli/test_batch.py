"""``llmgen batch`` as a user sees it: order, bad lines, interruptions, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from models import smollm2
from program import PROGRAM, environment, llmgen, refused

pytestmark = pytest.mark.usefixtures("compiled")
GREEDY = ["--raw", "--temp", "0", "-n", "8", "-c", "512"]


def write(path: Path, *items: Any) -> Path:
    path.write_text("".join(item if isinstance(item, str) else json.dumps(item) + "\n" for item in items))
    return path


def batch(source: Path, *arguments: str, **kw: Any) -> subprocess.CompletedProcess[str]:
    return llmgen("batch", str(smollm2()), str(source), *GREEDY, *arguments, **kw)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_out_for_each_line_in_and_bad_ones_have_an_error(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in.jsonl",
        '"The capital of France is"\n',
        "\n",
        {"prompt": [504, 3575, 282, 4649, 314], "id": "ids", "max_tokens": 3},
        "{not json}\n",
        {"prompt": "Hello", "tmp": 1},
        {"prompt": "x " * 1000, "id": 5},
        {"messages": [{"role": "user", "content": "Hi"}], "min-p": 0.1},
        {"id": 1},
        '{"prompt": "Hello", "temp": "hot"}\n',
    )
    done = batch(source)
    assert done.returncode == 1
    found = lines(done.stdout)
    assert [line["line"] for line in found] == [1, 3, 4, 5, 6, 7, 8, 9]
    alone = llmgen("run", str(smollm2()), "The capital of France is", *GREEDY)
    assert found[0]["text"] + "\n" == alone.stdout
    assert (found[1]["id"], found[1]["completion_tokens"]) == ("ids", 3)
    assert found[1]["token_ids"] == found[0]["token_ids"][:3]
    errors = {line["line"]: line["error"] for line in found if "error" in line}
    assert set(errors) == {4, 5, 6, 8, 9}
    assert "did you mean temp" in errors[5]
    assert "context" in errors[6]
    assert found[4]["id"] == 5
    told = done.stderr.splitlines()
    assert len(told) == 6
    assert "8 answers (5 failed)" in told[-1]


def test_an_interrupted_batch_goes_on_without_loss_or_repetition(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("POSIX signals")
    prompts = [f"Story number {i}:" for i in range(12)]
    source, out = write(tmp_path / "in.jsonl", *prompts_as_lines(prompts)), tmp_path / "out.jsonl"
    part = tmp_path / "out.jsonl.part"
    arguments = [str(source), "-o", str(out), *GREEDY, "--slots", "2", "--ignore-eos"]
    child = subprocess.Popen(
        [*PROGRAM, "batch", str(smollm2()), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (part.exists() and part.read_bytes().count(b"\n") >= 4):
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "the same command goes on" in errors
    assert not out.exists()
    kept = part.read_bytes().count(b"\n") - 1
    assert 3 <= kept < 12
    again = llmgen("batch", str(smollm2()), *arguments)
    assert again.returncode == 0, again.stderr
    assert not part.exists()
    found = lines(out.read_text())
    assert [line["line"] for line in found] == list(range(1, 13))
    whole = llmgen("batch", str(smollm2()), str(source), *GREEDY, "--ignore-eos")
    assert [line["token_ids"] for line in lines(whole.stdout)] == [line["token_ids"] for line in found]
    assert "exists" in refused(llmgen("batch", str(smollm2()), *arguments), 2)


def prompts_as_lines(prompts: list[str]) -> list[dict[str, str]]:
    return [{"prompt": prompt} for prompt in prompts]


def test_usage_and_files(tmp_path: Path) -> None:
    absent = tmp_path / "absent.jsonl"
    assert str(absent) in refused(batch(absent))
    source = write(tmp_path / "in.jsonl", '"a"\n')
    assert "--output" in refused(batch(source, "--restart"), 2)
    nowhere = tmp_path / "no" / "folder.jsonl"
    assert "folder" in refused(batch(source, "-o", str(nowhere)))
    slow = batch(source, "--timeout", "0.0001", "--ignore-eos")
    assert slow.returncode == 124
    assert lines(slow.stdout)[0]["finish_reason"] == "timeout"
