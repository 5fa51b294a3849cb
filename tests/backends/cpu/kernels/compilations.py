"""What the tests of the cache of kernels share: two small kernels, and processes that require them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgen.backends.cpu.runtime.cpu import target
from llmgen.backends.cpu.runtime.store import ObjectStore, readable_stores

KERNEL = "team:dismiss"  # a small one
OTHER = "team:post"
LEVEL = target().level
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX permissions and signals")


def stored() -> ObjectStore:
    """The only store that can be read."""
    (only,) = readable_stores()
    return only


def run(script: str, **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


REQUIRE = f"""
import os
from llmgen.backends.cpu.runtime.library import KernelLibrary
def say(text):  # whole lines, whichever thread it is
    os.write(1, (text + "\\n").encode())
KernelLibrary().require([{KERNEL!r}, {OTHER!r}], lambda *p: say(f"progress {{p}}"))
print("done", flush=True)
"""


def objects(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file())
