"""Run the real ``llmgen`` program from a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = [sys.executable, "-m", "llmgen"]


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
    timeout: float = 120,
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
    """Check that a run failed as it should: this code, an empty stdout, one sentence; return the sentence."""
    assert done.returncode == code, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")
