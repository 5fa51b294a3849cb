"""The file in which a batch keeps its answers until all are finished.

``OUT.part`` is written in the order in which answers are finished, one JSON line each, and
each line is on the disk before the next begins.  When every line of the input has its
answer, OUT is written in the input's order and moved into place in one step, and OUT.part
is removed.  An interrupted run leaves OUT.part, and the next run continues from it; lines
with an error instead of an answer are tried again.

The first line names what the answers depend on (model, options).  Every other line has the
number of its input line and a hash of it, so that after a change of the input only the
changed lines are computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from llmgen.cli.terminal.output import json_line
from llmgen.errors import LLMGenError, UsageError
from llmgen.files import is_at, naming, replacing, try_lock

_FORMAT = 1
_BEGINNING = b'{"llmgen_batch"'


def line_hash(line: bytes) -> str:
    """The hash by which an input line is recognized."""
    return hashlib.sha256(line).hexdigest()[:16]


class Journal:
    """The answers so far: a new journal, or one that is continued."""

    def __init__(
        self, out: Path, depends_on: dict[str, Any], restart: bool = False, overwrite: bool = True
    ) -> None:
        """``restart`` drops the answers of an earlier run; without ``overwrite``, OUT must not exist.

        Raises UsageError if OUT.part is something else, has other options, or is in use; OSError
        if it cannot be written.
        """
        self.path = part_of(out)
        self._out, self._overwrite = out, overwrite
        self._places: dict[int, tuple[int, str, str]] = {}  # input line -> offset, hash, finish_reason
        self._header = json.loads(json_line({"llmgen_batch": _FORMAT, **depends_on}))
        self._file = self._opened()
        try:
            if not overwrite:  # once more, under the lock: another run may just have finished
                refuse_existing(out)
            self._refuse_others()
            self._end = 0 if restart else self._read()
            self._cut()
            if not self._end:
                self._append(self._header)
        except BaseException:
            if not os.fstat(self._file.fileno()).st_size:
                self._remove()
            self.close()
            raise

    def _opened(self) -> BinaryIO:
        """OUT.part, locked."""
        while True:
            if self.path.exists() and not self.path.is_file():
                raise UsageError(
                    f"{self.path}, where answers are kept until all are there, is not a file; remove it, or give"
                    " another --output"
                )
            file: BinaryIO = open(self.path, "a+b")
            if (state := try_lock(file)) == "taken":
                file.close()
                raise UsageError(
                    f"another batch is writing {self.path}; wait for it, or give another --output"
                )
            if state == "unsupported" or is_at(file, self.path):
                return file
            file.close()  # another run removed it after it was opened

    def _refuse_others(self) -> None:
        """Refuse a file that no batch has written: it may be needed."""
        self._file.seek(0)
        found = self._file.read(len(_BEGINNING))
        if not _BEGINNING.startswith(found):  # a killed run may have written only part of it
            raise UsageError(
                f"{self.path} is not the journal of a batch, and answers are kept there until all are there;"
                " move it away, or give another --output"
            )

    def __contains__(self, place: tuple[int, str]) -> bool:
        """Whether an input line (number, hash) has its answer."""
        return self.ending(*place) is not None

    def ending(self, number: int, digest: str) -> str | None:
        """The finish_reason of the answer to an input line, or None if it has no answer."""
        _, known, reason = self._places.get(number, (0, "", ""))
        return reason if known == digest else None

    def __len__(self) -> int:
        return len(self._places)

    def add(self, number: int, digest: str, answer: dict[str, Any]) -> None:
        """Keep an answer; it is on the disk when this returns."""
        start = self._end
        self._append({"line": number, "hash": digest, "answer": answer})
        self._places[number] = (start, digest, str(answer.get("finish_reason")))

    def finish(self, lines: Iterable[tuple[int, str]]) -> None:
        """Write OUT from the answers to these lines (number, hash), in this order, and remove OUT.part.

        Raises OSError, and UsageError where OUT exists by now and is not to be overwritten; OUT.part then stays.
        """
        with replacing(self._out, 0o666) as file:
            for number, digest in lines:
                if (number, digest) in self:
                    file.write(json_line(self._answer(self._places[number][0])).encode() + b"\n")
            if not self._overwrite:  # another program may have written a file of that name meanwhile
                refuse_existing(self._out)
        self._remove()

    def close(self) -> None:
        """Close the file and leave it where it is."""
        self._file.close()

    def _remove(self) -> None:
        """Remove OUT.part if it is still this run's file."""
        is_ours = is_at(self._file, self.path)
        if os.name == "nt":  # an open file cannot be removed there; elsewhere the lock holds until it is gone
            self.close()
        if is_ours:
            self.path.unlink(missing_ok=True)
        self.close()

    def _append(self, record: dict[str, Any]) -> None:
        data = json_line(record).encode() + b"\n"
        try:
            with naming(self.path):
                self._file.write(data)
                self._file.flush()
                os.fsync(self._file.fileno())
        except BaseException:  # a full disk, Ctrl-C: half a line must not spoil the next one
            with suppress(OSError):
                self._cut()
            raise
        self._end += len(data)

    def _cut(self) -> None:
        """Drop everything after the last whole line."""
        os.ftruncate(self._file.fileno(), self._end)

    def _answer(self, offset: int) -> dict[str, Any]:
        self._file.seek(offset)
        try:
            return dict(json.loads(self._file.readline())["answer"])
        except (ValueError, LookupError, TypeError):
            raise LLMGenError(
                f"{self.path} was changed while this batch was writing it, and answers are lost; run the same"
                " command again, which computes them anew"
            ) from None

    def _read(self) -> int:
        """Read the answers in the file; returns the end of its last whole line.

        A damaged line costs only its own answer.
        """
        self._file.seek(0)
        end = 0
        for number, (line, record) in enumerate(_records(self._file)):
            if number == 0:
                self._check(record)
            elif record is not None and _is_answer(record) and "error" not in record["answer"]:
                self._places[record["line"]] = (
                    end,
                    record["hash"],
                    str(record["answer"].get("finish_reason")),
                )
            end += len(line)
        return end

    def _check(self, found: dict[str, Any] | None) -> None:
        if found == self._header:
            return
        advice = (
            f"finish that batch with its own options, or remove {self.path} (or give --restart) to begin anew"
        )
        if found is None:
            raise UsageError(f"the first line of {self.path} is damaged; {advice}")
        other = [key for key in {**found, **self._header} if found.get(key) != self._header.get(key)]
        names = ", ".join(key.replace("_", "-") for key in other)
        raise UsageError(f"{self.path} has answers that were made with other values of {names}; {advice}")


def part_of(out: Path) -> Path:
    """Where the answers are kept until all are finished."""
    return out.with_name(out.name + ".part")


def refuse_existing(out: Path) -> None:
    """Raises UsageError if OUT exists."""
    if out.exists():
        raise UsageError(f"{out} exists; give another name, or --overwrite to replace it")


def _is_answer(record: dict[str, Any]) -> bool:
    return type(record.get("line")) is int and isinstance(record.get("answer"), dict) and "hash" in record


def _records(file: BinaryIO) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each whole line and its JSON object, or None if it is not one."""
    for line in file:
        if not line.endswith(b"\n"):
            return
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        yield line, record if isinstance(record, dict) else None
