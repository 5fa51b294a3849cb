"""The conversations that are kept automatically: a file for each, in the user's state folder.

A program that has one open holds a lock file beside it, so that two terminals never write
the same conversation.  If the file system has no locks, a file that another program has
changed is recognized by its size and time, and left alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from llmgen.cli.chats import store
from llmgen.errors import LLMGenError, UsageError
from llmgen.files import is_at, try_lock
from llmgen.hub.state import state_folder

_KEPT = 100
_KEPT_PIPED = 20
_PIPED = "-piped"
_MOST_TITLE = 60
_LEFTOVER_S = 60.0
"""How old a lock is at least that counts as one that a killed program has left."""


def chats_folder() -> Path:
    """Where the conversations are."""
    return state_folder() / "chats"


class KeptFile:
    """The file of one conversation, which only this program writes until :meth:`close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BinaryIO | None = None
        self._left = _signature(path)  # the file as this program found or left it
        self._was_taken = False

    @classmethod
    def new(cls, piped: bool) -> KeptFile:
        """For a conversation that begins now; ``piped``: it comes from a pipe.  Nothing is written yet."""
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        return cls(chats_folder() / f"{now}-{os.getpid()}{_PIPED if piped else ''}.json")

    def take(self) -> bool:
        """Lock the file; False if another program has it open.  Raises OSError.

        What others have written before the first time is what this program finds: it is to be read after that.
        """
        if self._lock is None:
            self._lock = _hold(_lock_path(self.path))
            if self._lock is not None and not self._was_taken:
                self._left, self._was_taken = _signature(self.path), True
        return self._lock is not None

    def adopt(self) -> None:
        """Make a piped conversation one that is typed; the file must be locked."""
        if is_piped(self.path):
            typed = KeptFile(self.path.with_stem(self.path.stem.removesuffix(_PIPED)))
            if not typed.path.exists() and typed.take():
                self.path.rename(typed.path)
                self.close()
                self.path, self._lock, self._left = typed.path, typed._lock, _signature(typed.path)

    def write(self, content: dict[str, Any]) -> bool:
        """Write the conversation; False, with nothing changed, if another program has written it since.

        Raises LLMGenError and OSError.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.take() or _signature(self.path) not in (None, self._left):
            return False
        store.save(self.path, content)
        self._left = _signature(self.path)
        return True

    def rename(self, title: str) -> None:
        """Give the conversation a title; its time stays the same.  The file must be locked.

        Raises LLMGenError and OSError.
        """
        state = self.path.stat()
        if not self.write({**store.load(self.path), "title": title}):
            raise LLMGenError(f"another program has just changed {self.path}; try again")
        os.utime(self.path, ns=(state.st_atime_ns, state.st_mtime_ns))

    def discard(self) -> None:
        """Remove the file if only this program has written it.  Raises OSError."""
        if self._left is not None and _signature(self.path) == self._left and self.take():
            self.path.unlink()
            self._left = None

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            place = _lock_path(self.path)
            with suppress(OSError):  # if an open file cannot be removed, an empty one stays
                if is_at(self._lock, place):
                    place.unlink()
            self._lock.close()
            self._lock = None


def _signature(path: Path) -> tuple[int, int, int] | None:
    """What distinguishes one version of a file from the next; None if there is no file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.stem}.lock")


def _hold(place: Path) -> BinaryIO | None:
    """The lock file, locked; None if another program holds it."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        file: BinaryIO = os.fdopen(os.open(place, flags, 0o600), "r+b")
        state = try_lock(file)
        if state == "unsupported" or (state == "held" and is_at(file, place)):
            return file
        file.close()
        if state == "taken":
            return None  # otherwise its last holder removed it after it was opened


def is_piped(path: Path) -> bool:
    """Whether a conversation came only from a pipe."""
    return path.stem.endswith(_PIPED)


# -- all of them


@dataclass(frozen=True)
class Entry:
    """One conversation in the folder; if the file cannot be read, ``error`` says why."""

    path: Path
    changed: datetime
    title: str = ""
    named: bool = False
    """Whether the user gave the title; else it is the first message."""
    model: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    error: str = ""

    @property
    def id(self) -> str:
        """The file's name without its extension."""
        return self.path.stem


def files() -> list[Path]:
    """The files, the latest first."""
    found = []
    for path in chats_folder().glob("*.json"):
        with suppress(OSError):  # another program may have removed it since
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]


def entries() -> Iterator[Entry]:
    """The conversations, the latest first."""
    for path in files():
        with suppress(FileNotFoundError):
            yield read(path)


def read(path: Path) -> Entry:
    """What a file holds.  Raises FileNotFoundError."""
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    try:
        saved = store.load(path)
    except LLMGenError as error:
        if isinstance(error.__cause__, FileNotFoundError):  # another program has just removed it
            raise error.__cause__ from None
        return Entry(path, changed, error=str(error))
    users = [message["content"] for message in saved["messages"] if message["role"] == "user"]
    named = isinstance(saved.get("title"), str) and bool(saved["title"])
    title = saved["title"] if named else " ".join(users[0][: 10 * _MOST_TITLE].split()) if users else ""
    model = Path(str(saved.get("model", ""))).stem
    return Entry(path, changed, title, named, model, tuple(saved["messages"]))


def latest() -> Entry:
    """The latest conversation.  Raises UsageError if there is none."""
    entry = next((entry for entry in entries() if not entry.error), None)
    if entry is None:
        raise UsageError("there is no conversation to resume yet; leave --resume out")
    return entry


def find(name: str) -> Entry:
    """The conversation with this title, number in the list, or id (or beginning of one).

    Raises UsageError if there is none, or more than one.
    """
    listed = list(entries())
    if name.isascii() and name.isdigit() and len(name) < 4:
        if 1 <= int(name) <= len(listed):
            return listed[int(name) - 1]
        raise UsageError(f"there is no conversation {name}; `llmgen chats` lists {len(listed)} of them")
    ways = (
        [entry for entry in listed if entry.id == name],
        [entry for entry in listed if entry.named and entry.title.casefold() == name.casefold()],
        [entry for entry in listed if name and entry.id.startswith(name)],
    )
    matches = next(filter(None, ways), [])
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise UsageError(
            f"there is no conversation {name!r}; give a title or a number that `llmgen chats` shows, or an id"
        )
    raise UsageError(f"{name!r} are {len(matches)} conversations: {_some(matches)}; give one of these ids")


def _some(matches: list[Entry]) -> str:
    return ", ".join(entry.id for entry in matches[:3]) + (", ..." if len(matches) > 3 else "")


def prune() -> None:
    """Remove the oldest conversations, counting typed and piped ones separately.

    Conversations with a title or open in a program stay, and so do other files.
    """
    found = files()
    typed = [path for path in found if not is_piped(path)]
    piped = [path for path in found if is_piped(path)]
    for path in (*typed[_KEPT:], *piped[_KEPT_PIPED:]):
        with suppress(OSError):
            if _may_go(path):
                remove(path, _may_go)  # asked again under the lock: it may just have been given a title
    for lock in chats_folder().glob(".*.lock"):
        with suppress(OSError):
            _remove_leftover(lock)


def _may_go(path: Path) -> bool:
    entry = read(path)
    return not entry.named and not entry.error


def _remove_leftover(lock: Path) -> None:
    """Remove the lock of a conversation that is not there, left by a program that was killed.

    Not a new one: whoever makes it may not have locked it yet, and would find that somebody else has.
    """
    kept = KeptFile(lock.with_name(lock.stem.removeprefix(".") + ".json"))
    if time.time() - lock.stat().st_mtime > _LEFTOVER_S and not kept.path.exists() and kept.take():
        kept.close()


def remove(path: Path, may_go: Callable[[Path], bool] = lambda path: True) -> bool:
    """Remove a conversation if ``may_go`` holds for it; False if a program has it open.  Raises OSError."""
    kept = KeptFile(path)
    if not kept.take():
        return False
    try:
        if may_go(path):
            path.unlink(missing_ok=True)
    finally:
        kept.close()
    return True
