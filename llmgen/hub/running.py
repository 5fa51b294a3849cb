"""The llmgen processes that have a model open, for ``llmgen ps``.

Each has a file in the state folder, which it keeps locked.  The system frees the lock when
the process ends, however it ends, so a file that is not locked is a leftover and is removed;
the number of a process, which the system uses again, decides nothing.  After the JSON
come two counters that the process writes while it works: tokens and seconds.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from llmgen.files import is_at, read_bounded, try_lock
from llmgen.hub.state import state_folder

_COUNTERS = struct.Struct("<QdQd")
_MOST_BYTES = 100_000
_MOST_MODELS = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Process:
    """A process with a model: what it runs, since when, and what it has computed."""

    pid: int
    command: str
    path: str
    started: float
    generated_tokens: int
    generated_s: float
    prompt_tokens: int
    prompt_s: float

    @property
    def memory(self) -> int | None:
        """Bytes of memory it occupies (proc_pid_status(5)); None where the system does not tell."""
        with suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return None


class Registration:
    """The file of this process."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file, self._start = file, start
        self._counts = {"prompt": [0, 0.0], "generated": [0, 0.0]}

    def count(self, role: str, n_tokens: int, seconds: float) -> None:
        """Add a run: what its tokens are, how many, and how long it took."""
        entry = self._counts[role]
        entry[0] += n_tokens
        entry[1] += seconds
        with suppress(OSError, ValueError):  # a full disk, or the file is closed
            self._file.seek(self._start)
            self._file.write(_COUNTERS.pack(*self._counts["generated"], *self._counts["prompt"]))


@contextmanager
def registered(command: str, path: Path) -> Iterator[Registration | None]:
    """List this process for the length of the block; None where the state folder cannot be written."""
    registration = None
    try:
        file, name = _open()
        head = _begin(file, command, path)
        registration = Registration(file, head)
    except OSError as error:
        _log.debug("this process is not listed: %s", error)
    try:
        yield registration
    finally:
        if registration is not None:
            with suppress(OSError):
                name.unlink()
            with suppress(OSError):
                file.close()


def _begin(file: BinaryIO, command: str, path: Path) -> int:
    """Write what the process is; returns where its counters are.

    Windows lets nobody read a locked byte, which is the first one.
    """
    about = {"command": command, "path": os.path.abspath(path), "started": time.time()}
    head = b"\n" + json.dumps(about).encode() + b"\n"
    file.truncate(0)
    file.seek(0)
    file.write(head + _COUNTERS.pack(0, 0.0, 0, 0.0))
    return len(head)


def _open() -> tuple[BinaryIO, Path]:
    """A new locked file; several models in one process have one each."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(_MOST_MODELS):
        path = folder / f"{os.getpid()}-{number}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        file = open(handle, "r+b", buffering=0)
        # before it is locked it looks like a leftover, and may have been removed
        if try_lock(file) != "taken" and is_at(file, path):
            return file, path
        file.close()
    raise OSError("too many models")


def processes() -> list[Process]:
    """The processes that have a model open, the oldest first; what dead ones have left is removed."""
    found = []
    with suppress(OSError):
        for path in sorted(_folder().iterdir()):
            process = _read(path)
            if process is not None:
                found.append(process)
    return sorted(found, key=lambda process: process.started)


def _read(path: Path) -> Process | None:
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        pid = int(path.name.partition("-")[0])
        with open(path, "rb") as file:
            state = try_lock(file)
            if state == "held" or (state == "unsupported" and not _exists(pid)):
                if is_at(
                    file, path
                ):  # otherwise its process ended meanwhile, and opened a new one of that name
                    path.unlink()
                return None
            file.seek(1)
            data = read_bounded(file, _MOST_BYTES) or b""
            if not is_at(file, path):  # its process has ended, or another `ps` has just removed what one left
                return None
        head, _, counters = data.partition(b"\n")
        about = json.loads(head)
        return Process(
            *(pid, str(about["command"]), str(about["path"]), float(about["started"])),
            *_COUNTERS.unpack(counters[: _COUNTERS.size]),
        )
    return None


def _exists(pid: int) -> bool:
    """Whether there is a process of that number, which may be another one than wrote the file."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _folder() -> Path:
    return state_folder() / "running"
