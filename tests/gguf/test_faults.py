"""A model file that is cut short while a program of somebody else's uses it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from llmgen.errors import ModelFileError
from llmgen.gguf import GGUFFile
from program import HANGS_S

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere a mapped file cannot be cut"
)

OPEN = """
import os, sys
{before}
from llmgen.gguf import GGUFFile
file = GGUFFile.open(sys.argv[1])
data = file.tensors["token_embd.weight"].data
os.truncate(sys.argv[1], 0)
data.sum()
"""
OWN = "import ctypes; own = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda n: os._exit(7)); "
OWN += f"ctypes.CDLL(None).signal({int(signal.SIGBUS)}, own)"


def lose(path: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Open the file, cut it, and touch what is gone."""
    return subprocess.run(
        [sys.executable, "-c", OPEN.format(before=before), str(path)],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )


def test_the_process_ends_as_ever_but_says_why(tmp_path: Path) -> None:
    done = lose(tiny.write(tmp_path / "tiny.gguf"))
    assert done.returncode == -signal.SIGBUS
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: the model file {tmp_path}/tiny.gguf was cut short while it was in use")


def test_a_handler_of_the_application_stays_the_only_one(tmp_path: Path) -> None:
    done = lose(tiny.write(tmp_path / "tiny.gguf"), before=OWN)
    assert (done.returncode, done.stderr) == (7, "")


def test_pythons_fault_handler_stays_the_only_one(tmp_path: Path) -> None:
    done = lose(tiny.write(tmp_path / "tiny.gguf"), before="import faulthandler; faulthandler.enable()")
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.startswith("Fatal Python error: Bus error")
    assert "error: the model file" not in done.stderr


def test_the_next_call_of_a_model_raises(tmp_path: Path) -> None:
    from llmgen.backends.cpu.model import Model

    path = tiny.write(tmp_path / "tiny.gguf")
    with GGUFFile.open(path) as file:
        model = Model.load(file, n_ctx=64, n_threads=1)
        seq = model.new_sequence()
        model.prefill(seq, [1, 2, 3])
        whole = path.read_bytes()
        with path.open("r+b") as writer:
            writer.truncate(100)
        for call in (lambda: model.prefill(seq, [1]), lambda: model.decode([seq], [1])):
            with pytest.raises(ModelFileError, match=f"cut short .* expected the {len(whole):,} bytes"):
                call()
        path.write_bytes(whole)  # the same file again
        model.decode([seq], [1])
        model.close()


def test_several_threads_that_lose_a_page_at_once_tell_it_once() -> None:
    """Writing lets other threads go on: one comes to the same point meanwhile."""
    script = """
import os
from llmgen.gguf import faults
faults.explain_lost_pages(exit_code=3)
[handler] = faults._kept
write = os.write
def interrupted(*arguments):
    handler(7)
    return write(*arguments)
os.write = interrupted
handler(7)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("error: ") == 1
