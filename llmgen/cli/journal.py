"""The file in which a batch keeps its answers until all are there.

``OUT.part`` is written in the order in which answers are done, one JSON line each, and
each line is on the disk before the next begins.  When every line of the input has its
answer, OUT is written in the input's order and put in place in one step, and OUT.part
is removed.  A run that was interrupted leaves OUT.part, from which the next one goes on;
lines that have an error in place of an answer are tried again.

The first line tells what the answers depend on (model, options); every other has the
number of its input line and a hash of it, so that an input that was changed in between
costs only the changed lines.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from llmgen.cli.output import json_line
from llmgen.errors import LLMGenError, UsageError
from llmgen.files import replacing, try_lock

_FORMAT = 1


def line_hash(line: bytes) -> str:
    """What an input line is recognized by."""
    return hashlib.sha256(line).hexdigest()[:16]


class Journal:
    """The answers so far: opened anew, or gone on with."""

    def __init__(self, out: Path, depends_on: dict[str, Any], restart: bool = False) -> None:
        """``restart`` forgets what is there.

        Raises UsageError where OUT.part belongs to other options, OSError where it cannot be written.
        """
        self.path = out.with_name(out.name + ".part")
        self._out = out
        self._places: dict[int, tuple[int, str, str]] = {}  # input line -> offset, its hash, how it ended
        self._header = json.loads(json_line({"llmgen_batch": _FORMAT, **depends_on}))
        self._file: BinaryIO = open(self.path, "a+b")
        try:
            if try_lock(self._file) == "taken":
                raise UsageError(
                    f"another batch is writing {self.path}; wait for it, or give another --output"
                )
            self._end = 0 if restart else self._read()
            self._cut()
            if not self._end:
                self._append(self._header)
        except BaseException:
            self._file.close()
            raise

    def __contains__(self, place: tuple[int, str]) -> bool:
        """Whether an input line (number, hash) has its answer."""
        return self.ending(*place) is not None

    def ending(self, number: int, digest: str) -> str | None:
        """The finish_reason of the answer to an input line, or None where it has none."""
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
        """Write OUT from the answers to these lines (number, hash), in this order, and remove OUT.part."""
        with replacing(self._out, 0o666) as file:
            for number, digest in lines:
                if (number, digest) in self:
                    file.write(json_line(self._answer(self._places[number][0])).encode() + b"\n")
        self.close()
        self.path.unlink(missing_ok=True)  # somebody else may have removed it

    def close(self) -> None:
        """Close the file and leave it where it is."""
        self._file.close()

    def _append(self, record: dict[str, Any]) -> None:
        data = json_line(record).encode() + b"\n"
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except BaseException:  # a full disk, Ctrl-C: the half line must not spoil one that comes after it
            with suppress(OSError):
                self._cut()
            raise
        self._end += len(data)

    def _cut(self) -> None:
        """Drop what comes after the last whole line."""
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
        """Take note of the answers in the file; returns the end of its last whole line."""
        self._file.seek(0)
        end = 0
        for number, (line, record) in enumerate(_records(self._file)):
            if number == 0:
                self._check(record)
            elif record is None or not _is_answer(record):
                break
            elif "error" not in record["answer"]:
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
        if found is None or "llmgen_batch" not in found:
            raise UsageError(f"{self.path} is not the journal of a batch; {advice}")
        other = [key for key in {**found, **self._header} if found.get(key) != self._header.get(key)]
        names = ", ".join(key.replace("_", "-") for key in other)
        raise UsageError(f"{self.path} has answers that were made with other values of {names}; {advice}")


def _is_answer(record: dict[str, Any]) -> bool:
    return type(record.get("line")) is int and isinstance(record.get("answer"), dict) and "hash" in record


def _records(file: BinaryIO) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each whole line and what it holds; None where that is no JSON object."""
    for line in file:
        if not line.endswith(b"\n"):
            return
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        yield line, record if isinstance(record, dict) else None
