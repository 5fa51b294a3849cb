"""``llmgen perplexity`` as a user sees it: figures, odd texts, interruptions."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from models import smollm2
from program import HANGS_S, PROGRAM, environment, llmgen, refused

pytestmark = pytest.mark.usefixtures("compiled")
TEXT = "The quick brown fox jumps over the lazy dog.\n" * 12


def measured(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return llmgen("perplexity", str(smollm2()), str(path), *arguments)


def test_perplexity(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 12)
    done = llmgen("perplexity", str(smollm2()), str(text), "-c", "32", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["windows"] == told["text_tokens"] // 32
    assert told["scored_tokens"] == told["windows"] * 15
    assert told["perplexity"] == pytest.approx(math.exp(told["nll"]))
    sliding = llmgen("perplexity", str(smollm2()), str(text), "-c", "32", "--stride", "16")
    assert f"{told['text_tokens'] - 1} scored" in sliding.stdout
    assert "±" in sliding.stdout
    assert (told["complete"], sliding.stderr) == (True, "")
    assert "fewer than one chunk" in refused(llmgen("perplexity", str(smollm2()), str(text)), 2)
    text.write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(llmgen("perplexity", str(smollm2()), str(text)), 2)


def test_odd_texts(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(TEXT.encode())
    plain = measured(text, "-c", "32").stdout
    text.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert measured(text, "-c", "32").stdout == plain
    marks = "<|im_start|>" * 3
    text.write_text(marks)
    told = json.loads(measured(text, "-c", "2", "--stride", "1", "--json").stdout)
    ids = json.loads(llmgen("tokenize", str(smollm2()), marks, "--json").stdout)["ids"]
    assert told["text_tokens"] == len(ids) > 3  # text, not special tokens
    text.write_text("Hello there")
    told = json.loads(measured(text, "--stride", "1", "--json").stdout)
    assert (told["scored_tokens"], told["windows"], told["nll_error"]) == (1, 1, None)
    assert "1 window of 512" in measured(text, "--stride", "1").stdout
    for content, found in (("", "no tokens"), ("a", "1 token,")):
        text.write_text(content)
        for options in ([], ["--stride", "1"]):
            assert found in refused(measured(text, *options), 2)


def test_a_size_that_scores_nothing_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    nothing = tmp_path / "absent"
    for options, named in (
        (["-c", "1"], "-c"),
        (["-c", "2"], "--stride"),
        (["--stride", "0"], "--stride"),
        (["--stride", "512"], "from 1 to 511"),
    ):
        assert named in refused(measured(nothing, *options), 2)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_reports_what_was_measured(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 500)
    child = subprocess.Popen(
        [*PROGRAM, "perplexity", str(smollm2()), str(text), "-c", "32", "--json", "--verbose"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "window 2 of" in line:
            break
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate(timeout=HANGS_S)
    assert child.returncode == 130
    told = json.loads(out)
    assert told["windows"] >= 1
    assert told["complete"] is False
    assert f"ended after {told['windows']} of " in errors.splitlines()[-1]


BREAKS = """
import sys
from llmgen.backends.cpu.model import Model
forward, calls = Model.forward, []
def failing(*args):
    calls.append(1)
    if len(calls) > 6:
        raise MemoryError
    return forward(*args)
Model.forward = failing
from llmgen.cli import main
main()
"""


def test_an_error_in_the_middle_costs_nothing_that_was_measured(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    arguments = ["perplexity", str(smollm2()), str(text), "-c", "32"]
    done = subprocess.run(
        [sys.executable, "-c", BREAKS, *arguments], capture_output=True, env=environment(), text=True
    )
    assert done.returncode == 1
    assert "3 chunks of 32" in done.stdout
    note, error = done.stderr.splitlines()
    assert note.startswith("ended after 3 of ")
    assert error.startswith("error: out of memory")
