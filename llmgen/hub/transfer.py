"""One file over HTTP, into a partial file that a later call goes on with.

The partial file outlives errors, Ctrl-C and a killed process.  Its companion ``.json``
remembers which version of the file the bytes belong to: the server's ETag, else the date of
the last change.  The next call asks for the rest (``Range``, ``If-Range``); a server that
sends the whole file again, or another version of it, makes it start over.  At the end the
size and the hash are compared with those that were announced.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from llmgen.errors import DownloadError, shown
from llmgen.files import made_in, read_bounded
from llmgen.hub import web
from llmgen.hub.space import check_space

if TYPE_CHECKING:
    import httpx2

_log = logging.getLogger(__name__)
_CHUNK = 1 << 20
_MAGIC = b"GGUF"
PARTIAL = ".llmgen-part"
_MOST_FAILURES = 5
"""Connections that may break one after the other without a single new byte."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18}|\*)\Z")
_LARGEST = 1 << 50

Report = Callable[[str, int, int], None]
"""``report(step, done, total)`` in bytes, with step "check" (what an earlier transfer has left is read) or
"download"; total 0 where the server does not say it."""


@dataclass(frozen=True)
class Body:
    """What is to be fetched, and what is known of it beforehand."""

    url: str
    what: str
    """Its name in messages: a repository, or the URL."""
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    token: str | None = None
    page: str = ""
    """Where its terms can be accepted."""
    elsewhere: str = "LLMGEN_MODELS"
    """The variable that moves what is fetched to another disk."""

    @property
    def has_hash(self) -> bool:
        """Whether a hash was announced."""
        return self.sha256 is not None or self.git_sha1 is not None


@dataclass(frozen=True)
class Fetched:
    """What arrived: its SHA-256, and whether a hash or a size was known to compare it with."""

    sha256: str
    size: int
    hash_checked: bool
    size_checked: bool


def transfer(body: Body, partial: Path, report: Report) -> Fetched:
    """Fetch ``body`` into ``partial``, going on with what is there, and check it.

    Raises:
        DownloadError: it is refused, cannot be reached, or is not what was announced.
        OSError: the disk.
    """
    if body.size is not None and not 0 < body.size < _LARGEST:
        raise DownloadError(
            f"{body.what} is announced with {shown(body.size)} bytes, which no model file has"
        )
    with _Partial(partial, body.what, report) as part:
        resumed = part.size > 0
        try:
            return _complete(body, part, report)
        except _WrongContent as error:
            part.start_over()
            if not resumed:
                raise DownloadError(str(error)) from None
            _log.debug("%s: %s; starting over", body.what, error)
        try:  # what was there may have been damaged, or of another version
            return _complete(body, part, report)
        except _WrongContent as error:
            part.start_over()
            raise DownloadError(str(error)) from None


def partial_path(path: Path) -> Path:
    """Where the file that is to be at ``path`` grows until it is complete."""
    return path.with_name(path.name + PARTIAL)


def partial_files(folder: Path) -> list[Path]:
    """The partial files in a folder, which interrupted transfers have left."""
    return sorted(folder.glob(f"*{PARTIAL}"))


def what_is_partial(partial: Path) -> str:
    """The name, as in :class:`Body`, of what a partial file is the beginning of; empty where it is unknown."""
    return _noted(partial, "what")


def remove_partial(partial: Path) -> None:
    """Remove a partial file and its companion.  Raises OSError."""
    partial.unlink(missing_ok=True)
    _note_of(partial).unlink(missing_ok=True)


def _note_of(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _noted(partial: Path, key: str) -> str:
    """A text from the companion of a partial file; empty where it has none."""
    with suppress(OSError, ValueError, RecursionError), open(_note_of(partial), "rb") as file:
        note = json.loads(read_bounded(file, 10_000) or b"")
        if isinstance(note, dict) and isinstance(note.get(key), str):
            return str(note[key])
    return ""


class _WrongContent(Exception):
    """All bytes arrived, and they are not those that were announced."""


class _Partial:
    """The partial file, the hash of what is in it, and the version of the file that it belongs to."""

    def __init__(self, path: Path, what: str, report: Report) -> None:
        self.path, self._what = path, what
        self._note = _note_of(path)
        self._file: BinaryIO = made_in(path.parent, lambda: open(path, "ab+"))
        self.version = _noted(path, "version")
        self._hash(report)

    def __enter__(self) -> _Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self.size == 0:
            remove_partial(self.path)

    def _hash(self, report: Report) -> None:
        self.digest, self.size = hashlib.sha256(), 0
        there = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        while block := self._file.read(_CHUNK):
            self.digest.update(block)
            self.size += len(block)
            report("check", self.size, there)

    def start_over(self, version: str = "") -> None:
        """Drop what is there; what comes belongs to this version."""
        self._file.truncate(0)
        self.digest, self.size, self.version = hashlib.sha256(), 0, version
        self._note.write_text(json.dumps({"version": version, "what": self._what}), encoding="utf-8")

    def append(self, block: bytes) -> None:
        """Write what has arrived, at once: a killed process loses nothing."""
        self._file.write(block)
        self._file.flush()
        self.digest.update(block)
        self.size += len(block)

    def finish(self) -> None:
        """Bring it to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._note.unlink(missing_ok=True)


def _complete(body: Body, part: _Partial, report: Report) -> Fetched:
    """Fetch the rest over as many connections as it takes, and check the whole."""
    first, most, failures = part.size, part.size, 0
    while True:
        try:
            known = _fetch_rest(body, part, report)
            break
        except web.ConnectionBroken as error:
            _log.debug("%s: %s at byte %d", body.what, error, part.size)
            failures = 0 if part.size > most else failures + 1
            most = max(most, part.size)
            offline = isinstance(error, web.NotReached) and most == first
            if failures >= _MOST_FAILURES or offline:
                raise _given_up(body, part, error) from None
            time.sleep(PAUSES_S[failures])
    fetched = _check(known, part)
    part.finish()
    return fetched


def _given_up(body: Body, part: _Partial, error: Exception) -> DownloadError:
    if part.size == 0:
        return web.unreachable(body.url, error)
    return DownloadError(
        f"the connection to {_host(body.url)} breaks again and again ({error}); {part.size / 1e6:.1f} MB of "
        f"{body.what} are here and are kept: the same command goes on from there"
    )


def _fetch_rest(body: Body, part: _Partial, report: Report) -> Body:
    """One connection: append what it brings; returns what is known of the file by then."""
    if body.size is not None and part.size == body.size:
        return body
    if not part.version and not body.has_hash:
        part.start_over()  # nothing would tell that the rest is of another version
    headers = {}
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
        if part.version and not part.version.startswith("W/"):
            headers["If-Range"] = part.version
    with web.open_body(body.url, headers, body.token) as answer:
        known = _known(body, answer)
        if answer.status_code == 416 and part.size:
            return _after_last_byte(known, part, answer)
        _check_answer(known, part, answer)
        if answer.status_code == 206 and not _goes_on(known, part, answer):
            part.start_over()
            raise web.ConnectionBroken("the server sent another part of the file than was asked for")
        if answer.status_code == 200:
            part.start_over(_version(answer))
        if known.size is not None:
            check_space(known.size - part.size, part.path.parent, body.what, body.elsewhere)
        _append(known, part, answer, report)
    if known.size is not None and part.size < known.size:
        if _announced_size(answer) == part.size:
            raise _WrongContent(f"{body.what} has {part.size} bytes there, announced were {known.size}")
        raise web.ConnectionBroken(f"it ended at byte {part.size} of {known.size}")
    return known


def _append(body: Body, part: _Partial, answer: httpx2.Response, report: Report) -> None:
    with web.connecting(body.url):
        report("download", part.size, body.size or 0)
        head = b"" if part.size == 0 else _MAGIC
        for block in answer.iter_raw():
            if len(head) < len(_MAGIC):
                head = (head + block)[: len(_MAGIC)]
                _check_magic(body, head, answer)
            if part.size + len(block) > (body.size or _LARGEST):
                raise _WrongContent(f"{body.what} has more than the {body.size} bytes that were announced")
            part.append(block)
            report("download", part.size, body.size or 0)


def _check_magic(body: Body, head: bytes, answer: httpx2.Response) -> None:
    """Refuse at the first bytes what is no GGUF file: a login page, an error page, a pointer file."""
    if _MAGIC.startswith(head[: len(_MAGIC)]):
        return
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
    page = kind in ("text/html", "application/xhtml+xml") or head.lstrip()[:1] == b"<"
    raise DownloadError(
        f"{_host(str(answer.request.url))} sent "
        + (
            "a web page (a login page, perhaps)"
            if page
            else f"something else ({shown(kind or 'of no type')})"
        )
        + f" in place of the GGUF file {body.what}; nothing was kept, check the address, the network and the proxy"
    )


def _known(body: Body, answer: httpx2.Response) -> Body:
    """The size and the hash: those of the listing, else what the answer's headers say."""
    size, sha256 = body.size, body.sha256
    if size is None:
        size = _announced_size(answer)
    linked = answer.headers.get("X-Linked-Etag", "").removeprefix("W/").strip('"')
    if sha256 is None and body.git_sha1 is None and _SHA256.match(linked):
        sha256 = linked
    return replace(body, size=size, sha256=sha256)


def _announced_size(answer: httpx2.Response) -> int | None:
    headers = answer.headers
    if found := _CONTENT_RANGE.match(headers.get("Content-Range", "")):
        return int(found[2]) if found[2] != "*" else None
    texts = [headers.get("X-Linked-Size", "")]
    texts += [headers.get("Content-Length", "")] if answer.status_code == 200 else []
    return next((int(text) for text in texts if text.isdecimal() and len(text) < 19), None)


def _check_answer(body: Body, part: _Partial, answer: httpx2.Response) -> None:
    status, headers = answer.status_code, answer.headers
    if status >= 500 or status == 408:
        raise web.ConnectionBroken(f"the server answers with the status {status}")
    if status not in (200, 206) or (status == 206 and part.size == 0):
        url = str(answer.request.url)
        raise web.refusal(status, headers, body.what, url, body.token, body.page)
    if headers.get("Content-Encoding", "identity") not in ("identity", ""):
        raise DownloadError(
            f"{_host(body.url)} compresses what it sends, though it was asked not to; it cannot be fetched from there"
        )
    if body.size is not None and not 0 < body.size < _LARGEST:
        raise DownloadError(f"{body.what} is announced with {body.size} bytes, which no model file has")


def _version(answer: httpx2.Response) -> str:
    """What tells this version of a file from others, as ``If-Range`` takes it; empty where nothing does."""
    return str(answer.headers.get("ETag") or answer.headers.get("Last-Modified", ""))


def _goes_on(body: Body, part: _Partial, answer: httpx2.Response) -> bool:
    """Whether the answer is the rest of the version whose beginning is here."""
    found = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    if found is None or found[1] is None or int(found[1]) != part.size:
        return False
    if version := _version(answer):
        return version == part.version or not part.version
    return body.has_hash or not part.version.startswith("W/")  # else If-Range has settled it


def _after_last_byte(body: Body, part: _Partial, answer: httpx2.Response) -> Body:
    """Status 416: there is nothing after the bytes that are here; they are all, or of another version."""
    found = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    size = int(found[2]) if found and found[2] != "*" else body.size
    if size == part.size == (body.size or size):
        return replace(body, size=size)
    part.start_over()
    raise web.ConnectionBroken("the server has another version of the file")


def _check(body: Body, part: _Partial) -> Fetched:
    """Compare the whole with what was announced."""
    if part.size == 0:
        raise _WrongContent(f"{body.what} is empty on the server; nothing was kept")
    if body.size is not None and part.size != body.size:
        raise _WrongContent(
            f"{body.what} has {part.size} bytes, announced were {body.size}; nothing was kept"
        )
    sha256 = part.digest.hexdigest()
    found, expected = sha256, body.sha256
    if expected is None and body.git_sha1 is not None:
        found, expected = _git_sha1(part.path, part.size), body.git_sha1
    if expected is not None and found != expected:
        raise _WrongContent(
            f"{body.what} arrived damaged: its hash is {found}, announced was {expected}; nothing was kept, try again"
        )
    return Fetched(sha256, part.size, expected is not None, body.size is not None)


def _git_sha1(path: Path, size: int) -> str:
    """The hash by which git names a file's content (gitformat-objects: "blob", its size, its bytes)."""
    digest: Any = hashlib.sha1(b"blob %d\0" % size)
    with open(path, "rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return str(digest.hexdigest())


def _host(url: str) -> str:
    return urlsplit(url).netloc
