"""A file as read-only memory.

The mapping shows the file as it is on disk at any moment.  To replace a model, rename
a new file over the old one; a file that is rewritten or truncated while it is mapped
changes under the reader, and on most systems touching the missing pages ends the
process (see ``faults``).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from llmgen.errors import LLMGenError, shown
from llmgen.gguf.faults import watch
from llmgen.gguf.problems import problem


class MappedFile:
    """A whole regular file, mapped for reading.

    ``address`` is the address of its first byte, ``size`` the number of bytes.
    """

    def __init__(self, path: Path) -> None:
        """Map the file at ``path``; raises ModelFileError if that is impossible."""
        self.path = path
        self._map: mmap.mmap | None
        self._map, self._file = _map(path)
        self._state = _state(self._file)
        self._bytes: npt.NDArray[np.uint8] | None = np.frombuffer(self._map, np.uint8)
        self.size = len(self._map)
        self.address: int = self._bytes.ctypes.data
        watch(self)

    def is_cut_short(self) -> bool:
        """Whether the file on disk has become shorter than what is mapped; touching the rest ends the process."""
        return self._map is not None and self._map.size() < self.size

    @property
    def buffer(self) -> mmap.mmap:
        """The map itself.  LLMGenError after :meth:`close`."""
        if self._map is None:
            raise self._closed()
        return self._map

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The file, uint8 [size], read-only.  LLMGenError after :meth:`close`."""
        if self._bytes is None:
            raise self._closed()
        return self._bytes

    def _closed(self) -> LLMGenError:
        return LLMGenError(
            f"the model file {shown(str(self.path.name), quote=False)} was closed; open it again"
        )

    def read_into(self, room: memoryview, at: int) -> None:
        """Fill ``room`` with what the file has from byte ``at`` on.  Raises OSError, also where it ends before."""
        while room:
            read = os.preadv(self._file.fileno(), [room], at)
            if not read:
                raise OSError(f"{self.path} was cut short")
            room, at = room[read:], at + read

    def check_unchanged(self) -> None:
        """Raise ModelFileError if the file was written to since it was mapped; one renamed over it is another file."""
        if not self._file.closed and _state(self._file) != self._state:
            found = "the file was changed while it was in use, so results since then cannot be trusted"
            raise problem(
                self.path, found, "load it again, and replace a model by renaming another file over it"
            )

    def close(self) -> None:
        """Unmap the file, or leave that to the last array over it that is still in use."""
        mapped, self._map, self._bytes = self._map, None, None
        self._file.close()
        try:
            if mapped is not None:
                mapped.close()
        except BufferError:
            pass  # each array holds the map, which is unmapped when the last of them is gone


def _state(file: BinaryIO) -> tuple[int, int]:
    """The size and the modification time, of which one changes when the file is written to."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def _map(path: Path) -> tuple[mmap.mmap, BinaryIO]:
    """Map the regular, non-empty file at ``path``, which stays open."""
    try:
        _check_is_file(path)  # before open(), which would wait for the writer of a named pipe
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open(path, "rb"))
            if os.fstat(file.fileno()).st_size == 0:
                raise problem(path, "the file is empty, expected a GGUF model", "download it again")
            mapped = _in_large_pages(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            opened.pop_all()
            return mapped, file
    except FileNotFoundError:
        raise problem(path, "there is no such file", _where_to_look(path)) from None
    except PermissionError:
        raise problem(path, "no permission to read this file", "make it readable for this user") from None
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            found = f"the system has no room to map the {os.stat(path).st_size:,} bytes of this file"
            raise problem(
                path, found, "raise the limit on address space (ulimit -v) if there is one"
            ) from None
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise problem(path, f"the file cannot be read ({reason})", "check the path and the disk") from None


def _in_large_pages(mapped: mmap.mmap) -> mmap.mmap:
    """Ask the system to read the file in large pages, if it supports that for files.

    Memory in large pages is read 5% faster, because there are fewer addresses to translate.
    """
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without support for it
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _check_is_file(path: Path) -> None:
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise problem(path, "this is a folder, expected a .gguf file", "name the file inside it")
    if not stat.S_ISREG(mode):
        raise problem(
            path, "this is not a regular file, and no other can be mapped", "save the model to disk first"
        )


def _where_to_look(path: Path) -> str:
    if path.parts[:1] and path.parts[0].startswith("~"):
        return "'~' is not expanded here, write the path out"
    return "check the path"
