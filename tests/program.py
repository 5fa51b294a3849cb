"""Run the real ``llmgen`` program from a test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

PROGRAM = [sys.executable, "-m", "llmgen"]
HANGS_S = 600
"""After this a program counts as hanging: it may first have to compile all kernels on a busy machine."""


_SIGNALLED = """
import os, pkgutil, sys
place, nth, number = sys.argv[1:4]
del sys.argv[1:4]
owner, _, name = place.rpartition(".")
owner = pkgutil.resolve_name(owner)
function, calls = getattr(owner, name), []

def counted(*args, **options):
    result = function(*args, **options)
    calls.append(name)
    if len(calls) == int(nth):
        os.kill(os.getpid(), int(number))
    return result

setattr(owner, name, counted)
from llmgen.cli import main
main()
"""


def signalled(method: str, call: int = 1, number: int = signal.SIGINT) -> list[str]:
    """The program, to which a signal comes right after the nth call of a method (``module:Class.method``).

    However slow the test is, it cannot come too late.
    """
    return [sys.executable, "-c", _SIGNALLED, method, str(call), str(int(number))]


def environment(**changes: str | None) -> dict[str, str]:
    """The test's environment with changes; None removes. The caller's terminal settings are left out."""
    variables = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LLMGEN_DEBUG", "FORCE_COLOR")}
    for name, value in changes.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    return variables


def llmgen(
    *arguments: str,
    input: bytes | str | None = None,
    cwd: Path | None = None,
    timeout: float = HANGS_S,
    **changes: str | None,
) -> subprocess.CompletedProcess[str]:
    """Run ``llmgen`` with stdin, stdout and stderr as pipes; stdin is empty unless ``input`` is given."""
    data = input.encode() if isinstance(input, str) else input or b""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        input=data,
        capture_output=True,
        cwd=cwd,
        timeout=timeout,
        env=environment(**changes),
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
    )


def refused(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """Check that a run failed as it should: this code, an empty stdout, one sentence; return the sentence.

    A line before it may say that kernels were compiled.
    """
    assert done.returncode == code, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@dataclass(frozen=True)
class Seen:
    """What a program left: its exit code, what came to the terminal, what went into a pipe as stdout."""

    code: int
    terminal: str
    piped: str = ""

    @property
    def screen(self) -> list[str]:
        """The lines that a terminal shows in the end; knows carriage returns and line breaks only."""
        lines = []
        for row in self.terminal.replace("\r\n", "\n").split("\n"):
            shown = ""
            for part in row.split("\r"):
                shown = part + shown[len(part) :]
            lines.append(shown.rstrip())
        return lines


def in_terminal(
    *arguments: str, stdout: int | None = None, input: bytes | None = None, columns: int = 80, **changes: str
) -> Seen:
    """Run ``llmgen`` at a pseudo-terminal; ``stdout`` and stdin (``input``) may lead elsewhere.

    ``stdout`` is a file descriptor or subprocess.PIPE.
    """
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    program = subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=slave if input is None else subprocess.PIPE,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        env=environment(**{"TERM": "xterm", **changes}),
    )
    os.close(slave)
    seen = bytearray()

    def watch() -> None:
        with contextlib.suppress(OSError):  # the terminal's end, once the program is gone
            while block := os.read(master, 1 << 16):
                seen.extend(block)

    watcher = threading.Thread(target=watch)
    watcher.start()
    piped, _ = program.communicate(input, timeout=HANGS_S)
    watcher.join()
    os.close(master)
    return Seen(program.returncode, seen.decode(), (piped or b"").decode())
