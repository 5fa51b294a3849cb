"""A model file that goes away while it is in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from program import HANGS_S, PROGRAM, environment, llmgen

ENDLESS = ("--ignore-eos", "-n", "100000000", "--context-full", "shift", "--seed", "1", "--raw")


@pytest.fixture
def running(tmp_path: Path) -> tuple[Path, subprocess.Popen[bytes]]:
    """A model file, and a program in the middle of an endless answer of it."""
    path = tiny.write(tmp_path / "tiny.gguf")
    warm = llmgen("warmup", str(path))
    assert warm.returncode == 0, warm.stderr
    program = subprocess.Popen(
        [*PROGRAM, "run", str(path), "a b", *ENDLESS],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONFAULTHANDLER=None),
    )
    assert program.stdout is not None
    assert program.stdout.read(5)
    return path, program


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a mapped file cannot be cut")
def test_a_file_that_is_cut_short_ends_with_a_sentence(running: tuple[Path, subprocess.Popen[bytes]]) -> None:
    path, program = running
    os.truncate(path, 0)
    _, err = program.communicate(timeout=HANGS_S)
    assert program.returncode == 1
    [line] = err.decode().splitlines()
    assert line.startswith("error: ")
    assert "was cut short while it was in use" in line  # before a token's run, or in the middle of it


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_a_file_that_is_removed_stays_usable(running: tuple[Path, subprocess.Popen[bytes]]) -> None:
    path, program = running
    path.unlink()
    assert program.stdout is not None
    assert len(program.stdout.read(2000)) == 2000
    program.kill()
    _, err = program.communicate(timeout=HANGS_S)
    assert err == b""
