"""Conversations in files: readable JSON, written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from llmgen.errors import LLMGenError
from llmgen.files import read_bounded, replacing

FORMAT = "llmgen conversation"
VERSION = 1
_MOST_BYTES = 64 << 20
_TEXTS = ("role", "content", "reasoning_content")


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.  Raises LLMGenError, also for a pipe or a device, which may be endless."""
    try:
        file = open(
            os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb"
        )
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    except IsADirectoryError:
        pass
    except (OSError, ValueError) as error:
        raise LLMGenError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    raise LLMGenError(
        f"cannot read {path}: it is {'a folder' if path.is_dir() else 'not a regular file'}; give a file"
    )


def write_atomically(path: Path, text: str) -> None:
    """Write the text to a file that only the user may read; a failure leaves the file as it was.

    Raises LLMGenError, also if the folder does not exist: its name may be mistyped.
    """
    try:
        if not path.parent.is_dir():
            raise LLMGenError(f"cannot write {path}: there is no folder {path.parent}; make it first")
        # A link stays a link; its target is replaced.
        target = path.resolve()
        if target.exists() and not target.is_file():  # a device would be replaced by a file
            what = "a folder" if target.is_dir() else "a pipe or a device"
            raise LLMGenError(f"cannot write {path}: it is {what}; give a file")
        with replacing(target) as file:
            file.write(text.encode("utf-8", "surrogatepass"))
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # the others: bad names, circular links
        raise LLMGenError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a conversation: ``messages`` and other facts about it."""
    saved = datetime.now(UTC).isoformat(timespec="seconds")
    value = {"format": FORMAT, "version": VERSION, "saved": saved, **content}
    write_atomically(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def load(path: Path) -> dict[str, Any]:
    """Read a conversation that :func:`save` wrote, or a bare list of messages.  Raises LLMGenError."""
    with open_file(path) as file:
        data = read_bounded(file, _MOST_BYTES)
    if data is None:
        raise LLMGenError(f"{path} has more than {_MOST_BYTES >> 20} MB, expected a conversation")
    try:
        value = json.loads(data.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError):
        raise LLMGenError(f"{path} is not JSON, expected a conversation that /save wrote") from None
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict) or not _are_messages(value.get("messages")):
        raise LLMGenError(f"{path} holds no list of messages, expected a conversation that /save wrote")
    if isinstance(value.get("version"), int) and value["version"] > VERSION:
        raise LLMGenError(
            f"{path} has version {value['version']}, expected at most {VERSION}; get a newer llmgen"
        )
    return value


def _are_messages(value: Any) -> bool:
    """Whether this is a list of messages with text content, a system message only at its head."""
    if not isinstance(value, list):
        return False
    for i, message in enumerate(value):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            return False
        if not all(isinstance(message.get(name, ""), str) for name in _TEXTS):
            return False
        if message["role"] not in (("system", "user") if i == 0 else ("user", "assistant")):
            return False
    return True


def as_markdown(messages: list[dict[str, Any]], title: str) -> str:
    """The conversation as Markdown."""
    out = [f"# {title}", ""]
    for message in messages:
        out += [f"## {message['role'].capitalize()}", "", message["content"].strip("\n"), ""]
    return "\n".join(out)
