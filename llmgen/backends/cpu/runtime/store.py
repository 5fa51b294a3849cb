"""Where the object code of compiled kernels is kept between processes.

A file can never be stale: its name has a hash over the sources of its kernel and the
versions of numba, llvmlite and Python, and its folder's name one over the exact instruction
set.  A file that was truncated or altered fails its checksum.  Object code is code, so only
folders are read to which nobody but the user and root can write.  A read-only folder, as in
a container, is used as long as it has the kernels that are needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

from llmgen.backends.cpu.runtime.cpu import target
from llmgen.backends.cpu.runtime.sources import sources_hash
from llmgen.files import replacing

_MAGIC = b"llmgen-object-1\n"
_OTHERS_WRITE = 0o022


class ObjectStore:
    """Object code on disk, one file per kernel and level."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str, level: str) -> Path:
        """The file of a kernel; the kernels of a level are in one folder."""
        chosen = target(level)
        key = hashlib.sha256(f"{chosen.level}\n{chosen.cpu}\n{chosen.features}".encode()).hexdigest()
        sources = sources_hash(name)
        return self.folder / key[:24] / f"{name.replace(':', '.')}-{sources[:24]}.o"

    def load(self, name: str, level: str) -> bytes | None:
        """Object code, or None if there is none that can be trusted."""
        path = self.path(name, level)
        try:
            with open(path, "rb") as file:
                if not (_is_trusted(path.parent, follow=True) and _is_ours(os.fstat(file.fileno()))):
                    return None
                data = file.read()
        except OSError:
            return None
        head = len(_MAGIC) + 32
        if not data.startswith(_MAGIC) or hashlib.sha256(data[head:]).digest() != data[len(_MAGIC) : head]:
            return None
        return data[head:]

    def prepared(self, name: str, level: str) -> Path:
        """The file of a kernel, in a folder that is there.  Raises OSError."""
        path = self.path(name, level)
        # one by one, since parents=True would make the parents readable by everyone
        for folder in (self.folder, path.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_trusted(path.parent, follow=True):
            _empty(path.parent)
            path.parent.chmod(0o700)
        return path

    def save(self, name: str, level: str, code: bytes) -> None:
        """Store object code; another process sees all of it or nothing.  Raises OSError."""
        with replacing(self.prepared(name, level)) as file:
            file.write(_MAGIC + hashlib.sha256(code).digest() + code)


def readable_stores() -> list[ObjectStore]:
    """The stores that exist and can be trusted, the user's own first."""
    return [
        ObjectStore(folder)
        for folder, follow in ((_users_folder(), True), (_fallback_folder(), False))
        if _is_trusted(folder, follow)
    ]


def writable_store() -> ObjectStore | None:
    """The user's store; if it cannot be written, one in the temporary folder, with a warning.

    None, with a warning, if neither can be written.
    """
    wanted, fallback = _users_folder(), _fallback_folder()
    problem = _prepare(wanted, follow=True)
    if problem is None:
        return ObjectStore(wanted)
    other_problem = _prepare(fallback, follow=False)
    if other_problem is None:
        _warn(f"cannot keep compiled kernels in {wanted} ({problem}); keeping them in {fallback}")
        return ObjectStore(fallback)
    warn_not_kept(f"{wanted} ({problem}) nor in {fallback} ({other_problem})")
    return None


def warn_not_kept(where: str) -> None:
    """Warn that kernels could not be stored, and say what to do."""
    _warn(
        f"cannot keep compiled kernels in {where}; they will be compiled again at the next start, "
        "so free some space, or set LLMGEN_CACHE to a folder that can be written"
    )


def _warn(sentence: str) -> None:
    if "LLMGEN_STORE_WARNED" not in os.environ:
        os.environ["LLMGEN_STORE_WARNED"] = "1"  # child processes need not repeat it
        warnings.warn(sentence, stacklevel=2)


def _users_folder() -> Path:
    """Below $LLMGEN_CACHE, else the platform's per-user cache folder."""
    if path := os.environ.get("LLMGEN_CACHE"):
        return Path(os.path.expanduser(path)) / "kernels"
    import platformdirs

    return Path(platformdirs.user_cache_dir("llmgen", appauthor=False)) / "kernels"


def _fallback_folder() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    try:
        temporary = tempfile.gettempdir()
    except OSError:  # nothing can be written anywhere
        temporary = "/tmp"
    return Path(temporary) / f"llmgen-kernels-{user}"


def _status(folder: Path, follow: bool) -> os.stat_result:
    """The folder's status; links are not followed in the temporary folder, where anyone can place them."""
    return folder.stat() if follow else folder.lstat()


def _is_trusted(folder: Path, follow: bool) -> bool:
    """Whether only this user and root could have put a file there."""
    try:
        status = _status(folder, follow)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and _is_ours(status)


def _is_ours(status: os.stat_result) -> bool:
    """Whether it belongs to this user or root, and nobody else can write to it."""
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & _OTHERS_WRITE


def _prepare(folder: Path, follow: bool) -> str | None:
    """Make a folder that only this user can write; returns the reason if that fails."""
    if str(folder).startswith("~"):  # it would be a folder of that name right here
        return "no home folder is known"
    try:
        if follow:
            folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = _status(folder, follow)
        if not stat.S_ISDIR(status.st_mode):
            return "it is a link or a file"
        if hasattr(os, "getuid"):
            if status.st_uid != os.getuid():
                return "it belongs to another user"
            if status.st_mode & _OTHERS_WRITE:
                _empty(folder)
            if status.st_mode & 0o077:
                folder.chmod(0o700)
        handle, probe = tempfile.mkstemp(dir=folder)
        os.close(handle)
        os.unlink(probe)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _empty(folder: Path) -> None:
    """Remove everything that others could have put there."""
    while paths := list(folder.iterdir()):
        for path in paths:
            with suppress(FileNotFoundError):  # another process is removing it, too
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
