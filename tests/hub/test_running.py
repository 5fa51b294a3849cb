"""The list of running processes, which survives killed ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from llmgen.files import try_lock
from llmgen.hub import running
from llmgen.hub.running import processes, registered

CHILD = """
import pathlib, sys
from llmgen.hub.running import registered
with registered("run", pathlib.Path("/m.gguf")) as registration:
    registration.count("prompt", 10, 2.0)
    for i in range(5):
        registration.count("generated", 1, 0.25)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own."""
    monkeypatch.setenv("LLMGEN_STATE", str(tmp_path))
    return tmp_path / "running"


def child() -> subprocess.Popen[bytes]:
    """A process that is listed."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_a_process_is_listed_while_it_runs(folder: Path) -> None:
    assert processes() == []
    process = child()
    [seen] = processes()
    assert (seen.pid, seen.command, seen.path) == (process.pid, "run", "/m.gguf")
    assert (seen.prompt_tokens, seen.prompt_s) == (10, 2.0)
    assert (seen.generated_tokens, seen.generated_s) == (5, 1.25)
    if sys.platform == "linux":
        assert (seen.memory or 0) > 1 << 20
    process.communicate(b"")
    assert processes() == []
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_killed_process_is_gone_though_its_number_is_in_use_again(folder: Path) -> None:
    process = child()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    [left] = folder.iterdir()
    left.rename(folder / f"{os.getpid()}-5")
    assert processes() == []
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks")
def test_a_model_that_is_opened_again_while_somebody_looks_stays_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = registered("run", Path("a"))
    again = registered("run", Path("b"))
    first.__enter__()

    def lock_late(file: IO[bytes]) -> str:
        monkeypatch.setattr(running, "try_lock", try_lock)
        first.__exit__(None, None, None)
        again.__enter__()  # a new file of the name that was opened
        return try_lock(file)

    monkeypatch.setattr(running, "try_lock", lock_late)
    assert processes() == []  # the file that was opened is gone
    assert [Path(process.path) for process in processes()] == [Path("b").absolute()]
    again.__exit__(None, None, None)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks")
def test_what_another_ps_is_just_removing_is_not_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = registered("run", Path("a"))
    left.__enter__()

    def lock_late(file: IO[bytes]) -> str:
        """The other one has locked the file that a killed process left, and removes it."""
        for path in folder.iterdir():
            path.unlink()
        return "taken"

    monkeypatch.setattr(running, "try_lock", lock_late)
    assert processes() == []
    left.__exit__(None, None, None)


def test_several_models_in_one_process() -> None:
    with registered("run", Path("a")), registered("run", Path("b")):
        assert [Path(process.path) for process in processes()] == [Path("a").absolute(), Path("b").absolute()]
    assert processes() == []


@pytest.mark.parametrize("content", [b"", b"\n", b"\n{}", b"\nnull\n", b"\n[1]\n" + bytes(32), b"\xff" * 100])
def test_files_that_are_none_of_ours(folder: Path, content: bytes) -> None:
    folder.mkdir()
    for name in ("1-0", "x", "-", f"{os.getpid()}-0"):
        (folder / name).write_bytes(content)
    assert processes() == []
    with registered("run", Path("a")):
        assert len(processes()) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "running").write_text("a file")
    with registered("run", Path("a")) as registration:
        assert registration is None
        assert processes() == []
