"""A hub to test against: an HTTP server that speaks what llmgen uses of the Hugging Face hub's API.

Listings come from one port; files are redirected to a second one, as the hub does it.  What
goes wrong is set on the object: connections that are cut, ranges that are ignored, headers
that are missing, pages in place of files.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

DIRECTLY = {"NO_PROXY": "*", "no_proxy": "*"}
"""Variables for whoever asks it: a user's proxy is not between them.  Lower case counts for more where both are set."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@cache
def sha256(data: bytes) -> str:
    """The hash that the hub announces."""
    return hashlib.sha256(data).hexdigest()


@cache
def git_sha1(data: bytes) -> str:
    """The hash of a file that is no LFS file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Asked:
    """A request that came in."""

    server: str
    path: str
    headers: dict[str, str]
    status: int = 0


@dataclass
class Repo:
    """A repository: its files, and who may read it."""

    files: dict[str, bytes]
    commit: str | None = COMMIT
    gated: bool = False
    private: bool = False
    lfs: bool = True
    gguf: object = None
    """What the hub has read in one of the GGUF files."""
    announced: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the listing says of a file in place of the truth."""


@dataclass
class Hub:
    """The two servers, what is on them, and what goes wrong."""

    url: str = ""
    files_url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    plain: dict[str, bytes] = field(default_factory=dict)
    """Path -> file, on the second server, without a hub."""
    token: str = "hf_right"
    asked: list[Asked] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    """For the next answers with a file: after how many bytes the connection is cut."""
    no_ranges: bool = False
    omit: set[str] = field(default_factory=set)
    etags: list[str] = field(default_factory=list)
    """The ETags of the next answers with a file; then that of its content."""
    changed: str = ""
    """When the files were changed (Last-Modified)."""
    range_begins: int | None = None
    """Where a partial answer begins, whatever was asked for."""
    page: bytes | None = None
    """What every request gets, with status 200, in place of what it asked for."""
    moved: dict[str, str] = field(default_factory=dict)
    """Repository -> where the hub redirects whoever asks for its listing."""
    api_status: int = 0
    api_body: bytes | None = None
    file_statuses: list[int] = field(default_factory=list)
    redirect: Callable[[str], str] | None = None
    before_body: Callable[[int], None] = lambda offset: None
    """Called with the offset before a block of a file is sent."""

    @property
    def bodies(self) -> list[Asked]:
        """The requests that were answered with (a part of) a file."""
        return [one for one in self.asked if one.server == "files" and one.status in (200, 206)]

    def add(self, repo_id: str, files: dict[str, bytes], **options: Any) -> Repo:
        """Put a repository onto the hub."""
        self.repos[repo_id] = repo = Repo(files, **options)
        return repo


class _Handler(BaseHTTPRequestHandler):
    """What both servers do; their classes are made in :func:`serving`."""

    hub: Hub
    name: str
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Be silent."""

    def do_GET(self) -> None:
        self.close_connection = True
        self.asked = Asked(self.name, self.path, {k.lower(): v for k, v in self.headers.items()})
        self.hub.asked.append(self.asked)
        if self.hub.page is not None:
            self._send(200, self.hub.page, {"Content-Type": "text/html; charset=utf-8"})
        elif self.name == "files":
            self._file(unquote(urlsplit(self.path).path).lstrip("/"))
        else:
            self._api(unquote(urlsplit(self.path).path).strip("/").split("/"))

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.asked.status = status
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, status: int, code: str = "", message: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(status, b'{"error": "no"}', {name: v for name, v in headers.items() if v})

    # -- the hub

    def _api(self, parts: list[str]) -> None:
        if self.hub.api_status:
            return self._fail(self.hub.api_status)
        if self.hub.api_body is not None:
            return self._send(200, self.hub.api_body, {"Content-Type": "application/json"})
        authorization = self.headers.get("Authorization")
        if authorization not in (None, f"Bearer {self.hub.token}"):
            return self._fail(401, message="Invalid credentials in Authorization header")
        repo_id = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repo_id in self.hub.moved:
            if parts[0] == "api":
                return self._send(307, b"", {"Location": self.hub.moved[repo_id]})
            repo_id = "/".join(urlsplit(self.hub.moved[repo_id]).path.split("/")[3:5])
        repo = self.hub.repos.get(repo_id)
        if repo is None or (repo.private and authorization is None):
            return self._fail(401 if authorization is None else 404, "RepoNotFound", "Repository not found")
        if parts[0] == "api":
            return self._listing(repo_id, repo, parts[4:])
        if repo.gated and authorization is None:
            return self._fail(401, "GatedRepo", "Access is restricted")
        return self._resolve(repo_id, repo, parts[3], "/".join(parts[4:]))

    def _listing(self, repo_id: str, repo: Repo, rest: list[str]) -> None:
        if rest and rest[:1] == ["revision"] and rest[1] not in ("main", repo.commit):
            return self._fail(404, "RevisionNotFound", "Invalid rev id")
        siblings = [self._entry(repo, path, data) for path, data in repo.files.items()]
        answer = {"id": repo_id, "sha": repo.commit, "siblings": siblings, "gguf": repo.gguf}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})
        return None

    def _entry(self, repo: Repo, path: str, data: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
        if repo.lfs:
            entry["lfs"] = {"size": len(data), "sha256": sha256(data), "pointerSize": 134}
        return {**entry, **repo.announced.get(path, {})}

    def _resolve(self, repo_id: str, repo: Repo, revision: str, path: str) -> None:
        if revision not in (repo.commit, "main"):
            return self._fail(404, "RevisionNotFound", "Invalid rev id")
        if path not in repo.files:
            return self._fail(404, "EntryNotFound", "Entry not found")
        data = repo.files[path]
        headers = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{sha256(data)}"'}
        if repo.commit:
            headers["X-Repo-Commit"] = repo.commit
        target = f"{self.hub.files_url}/{repo_id}/{path}"
        if self.hub.redirect is not None:
            target = self.hub.redirect(target)
        kept = {} if "linked" in self.hub.omit else headers
        return self._send(302, b"", {**kept, "Location": target})

    # -- the server of files

    def _file(self, path: str) -> None:
        owner, _, rest = path.partition("/")
        repo, _, name = rest.partition("/")
        data = self.hub.plain.get(path)
        if data is None and f"{owner}/{repo}" in self.hub.repos:
            data = self.hub.repos[f"{owner}/{repo}"].files.get(name)
        if data is None:
            return self._fail(404)
        if self.hub.file_statuses and (status := self.hub.file_statuses.pop(0)):
            return self._fail(status)
        etag = self.hub.etags.pop(0) if self.hub.etags else f'"{sha256(data)[:32]}"'
        begin = self._begin(etag)
        if begin is not None and begin >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return self._stream(data, begin, etag)

    def _begin(self, etag: str) -> int | None:
        asked = self.headers.get("Range", "")
        known = {self.hub.changed, "" if "etag" in self.hub.omit else etag} - {""}
        if self.hub.no_ranges or not asked or not {self.headers.get("If-Range")} <= {None, *known}:
            return None
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def _stream(self, data: bytes, begin: int | None, etag: str) -> None:
        self.asked.status = 200 if begin is None else 206
        if begin is not None and self.hub.range_begins is not None:
            begin = self.hub.range_begins
        part = data[begin or 0 :]
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(len(part)),
            "ETag": etag,
            "Connection": "close",
        }
        if self.hub.changed:
            headers["Last-Modified"] = self.hub.changed
        if begin is not None:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        self.send_response(self.asked.status)
        for name, value in headers.items():
            if name.lower() not in self.hub.omit:
                self.send_header(name, value)
        self.end_headers()
        cut = self.hub.cuts.pop(0) if self.hub.cuts else len(part)
        for offset in range(0, min(cut, len(part)), 1 << 14):
            self.hub.before_body((begin or 0) + offset)
            self.wfile.write(part[offset : min(offset + (1 << 14), cut)])
            self.wfile.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no error here."""


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub for the length of the block."""
    hub = Hub()
    servers = []
    for name in ("hub", "files"):
        handler = type(name, (_Handler,), {"hub": hub, "name": name})
        servers.append(_Server(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
    hub.url, hub.files_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
