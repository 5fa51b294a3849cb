"""Reading the head of a file from front to back, never past its end."""

from __future__ import annotations

import mmap
from pathlib import Path
from struct import Struct
from typing import Any

from llmgen.errors import ModelFileError, shown
from llmgen.gguf.problems import CUT_SHORT, DOWNLOAD_AGAIN, problem

# Limits far above every real model, so that a malicious file costs little.
MAX_HEAD_BYTES = 1 << 28
MAX_STRINGS = 1 << 22  # in all arrays together; the largest vocabularies have some 700,000 with merges
MAX_ARRAYS = 1 << 16
MAX_STRING_BYTES = 1 << 26  # some files carry a whole tokenizer.json
MAX_KEY_BYTES = 65_535  # the limit of the format's own specification

_U32 = Struct("<I")
_U64 = Struct("<Q")


class Cursor:
    """A position in a mapped file.  Every read checks the file's size first.

    ``what`` names what is being read, for the message.
    """

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self.buffer = buffer
        self.path = path
        self.size = len(buffer)
        self.position = 0
        self.strings_left = MAX_STRINGS
        self.arrays_left = MAX_ARRAYS

    def problem(self, found: str, what_to_do: str = DOWNLOAD_AGAIN) -> ModelFileError:
        """The error for what was found in this file."""
        return problem(self.path, found, what_to_do)

    def skip(self, n_bytes: int, what: str) -> int:
        """Advance by ``n_bytes`` bytes, which must exist; returns where they start."""
        start = self.position
        end = start + n_bytes
        if end > self.size:
            raise self.problem(
                f"{what} takes {n_bytes:,} bytes at byte {start:,}, but the file ends at {self.size:,}",
                CUT_SHORT,
            )
        if end > MAX_HEAD_BYTES:
            raise self.problem(
                f"{what} ends at byte {end:,}, expected all metadata within {MAX_HEAD_BYTES:,} bytes"
            )
        self.position = end
        return start

    def bytes(self, n_bytes: int, what: str) -> bytes:
        """The next ``n_bytes`` bytes, copied."""
        start = self.skip(n_bytes, what)
        return self.buffer[start : start + n_bytes]

    def number(self, form: Struct, what: str) -> Any:
        """The next number of the given form."""
        return form.unpack_from(self.buffer, self.skip(form.size, what))[0]

    def u32(self, what: str) -> int:
        """The next unsigned 32-bit number."""
        value: int = _U32.unpack_from(self.buffer, self.skip(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """The next unsigned 64-bit number."""
        value: int = _U64.unpack_from(self.buffer, self.skip(8, what))[0]
        return value

    def count(self, what: str, item_bytes: int, limit: int = 1 << 62) -> int:
        """The next 64-bit number, as a count of items that take at least ``item_bytes`` bytes each.

        Raises if the rest of the file cannot hold so many, or if there are more than
        ``limit``; so a caller may allocate memory for this count.
        """
        count = self.u64(f"the number of {what}")
        left = self.size - self.position
        if count * item_bytes > left:
            raise self.problem(f"the file claims {count:,} {what}, but only {left:,} bytes follow")
        if count > limit:
            raise self.problem(f"the file has {count:,} {what}, expected at most {limit:,}")
        return count

    def text(self, what: str, max_bytes: int) -> str:
        """The next string, which must be UTF-8 and at most ``max_bytes`` long: a key or a name."""
        n_bytes = self.u64(f"the length of {what}")
        if n_bytes > max_bytes:
            raise self.problem(f"{what} is {n_bytes:,} bytes long, expected at most {max_bytes:,}")
        raw = self.bytes(n_bytes, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.problem(f"{what} is {shown(raw, 40)}, which is not valid UTF-8") from None
