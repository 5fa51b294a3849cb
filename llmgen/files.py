"""Files that are written whole or not at all, bounded reading, and locks between processes.

A file is written next to its final path under a hidden name, ``.llmgen-*.tmp``, and then
renamed.  A program that is killed half-way leaves such a file; the next write into the
same folder removes it.  A lock, which the system frees when its holder dies, tells
leftovers from files that are being written.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, TypeVar

from llmgen.errors import UsageError, kind_of

_PREFIX, _SUFFIX = ".llmgen-", ".tmp"
_POLL_SECONDS = 0.2
_ATTEMPTS = 10
_MOVES_OPEN_FILES = os.name != "nt"
_Made = TypeVar("_Made")


def path_of(name: object, what: str) -> Path:
    """The path that an argument of the library names; UsageError for what is none, ``what`` says whose it is."""
    if isinstance(name, (str, os.PathLike)) and isinstance(path := os.fspath(name), str):
        return Path(path)
    hint = "; decode it with os.fsdecode" if isinstance(name, bytes) else ""
    raise UsageError(f"{what} must be given as a text or a path, not {kind_of(name)}{hint}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of an open file name it, which the system leaves out after it was opened."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` at the end of the block, with ``mode`` less the umask.

    The system takes the umask off where the file is made: asking for it would change it for a moment, for all
    threads.  The file has reached the disk by the end.  After an error in the block nothing has changed.
    Several processes may write the same path at once: the last one wins.  Raises OSError, also
    where ``path`` is a folder, a pipe or a device, which would be gone.
    """
    _check_replaceable(path)
    _remove_leftovers(path.parent)
    temporary = new_name(path.parent)
    try:  # also around its making: Ctrl-C may come before the file has a variable here
        with _new_file(temporary, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if _MOVES_OPEN_FILES:  # while its lock is still held
                os.replace(temporary, path)
        if not _MOVES_OPEN_FILES:
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _check_replaceable(path: Path) -> None:
    """Raise OSError where something other than a plain file or a link has that name."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, "it is a folder", str(path))
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))


def new_name(folder: Path) -> str:
    """A name that no file has, which does not depend on the final one, since that may be long."""
    return os.path.join(folder, f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")


def _new_file(name: str, mode: int) -> BinaryIO:
    """A new locked file of that name."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), mode)

    while True:
        file = open(name, "wb", opener=opened)
        # before it is locked it looks like a leftover, and may have been removed
        if try_lock(file) != "taken" and is_at(file, name):
            return file
        file.close()


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed programs left: files that no process has locked."""
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError), open(path, "rb", opener=_open_own) as file:
            # somebody else may have removed it meanwhile, and its writer made a new one of that name
            if try_lock(file) == "held" and is_at(file, path):
                path.unlink()


def read_bounded(file: BinaryIO, limit: int) -> bytes | None:
    """What a file or pipe holds; None where that is more than ``limit`` bytes: it may have no end."""
    data = file.read(limit + 1)
    return data if len(data) <= limit else None


def _open_own(path: str, flags: int) -> int:
    """Open a plain file without waiting for a pipe or following a link.  Raises OSError for anything else."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("not a plain file")
    return handle


def is_at(file: IO[bytes], path: str | Path) -> bool:
    """Whether ``path`` is still the file that was opened."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def try_lock(file: IO[bytes]) -> str:
    """Try to lock: "held", "taken" by another process, or "unsupported" here."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return "taken"
    except (OSError, ImportError):
        return "unsupported"
    return "held"


@contextmanager
def try_folder_lock(path: Path) -> Iterator[str]:
    """Lock the file ``path`` for the length of the block if it is free, and remove it at the end; its folder is made.

    Yields "held", "taken" where another process holds it, and "unsupported" where the file
    system has no locks.  The system frees the lock when its holder dies.
    """
    while True:
        with made_in(path.parent, lambda: path.open("ab")) as file:
            state = try_lock(file)
            if state == "held" and not is_at(file, path):
                continue  # its last holder removed it after it was opened here; open the new file
            try:
                yield state
            finally:
                if state != "taken":
                    with suppress(OSError):  # if an open file cannot be removed, an empty one stays
                        path.unlink()
            return


def made_in(folder: Path, make: Callable[[], _Made]) -> _Made:
    """Make a file in a folder, which is made too; other programs may remove it as long as it is empty.

    Raises OSError.
    """
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):  # removed just now
            folder.mkdir(parents=True, exist_ok=True)
            return make()
    return make()


class _Held(threading.local):
    """The locks that a thread has waited for and holds."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()


_held = _Held()


@contextmanager
def folder_lock(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """The same, but wait while another process holds it, and call ``waiting`` repeatedly meanwhile.

    Yields True under the lock, and False if the file system has no locks (the caller must
    then not touch what may belong to another process), or if this very thread holds it: an object that is
    garbage may be closed in the middle of anything, and would wait for ever.
    """
    if path in _held.paths:
        yield False
        return
    while True:
        with try_folder_lock(path) as state:
            if state != "taken":
                _held.paths.add(path)
                try:
                    yield state == "held"
                finally:
                    _held.paths.discard(path)
                return
        waiting()
        time.sleep(_POLL_SECONDS)
