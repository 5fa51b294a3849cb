"""Names of models that lie elsewhere: in a repository of the Hugging Face hub, or at a URL.

hf.co/OWNER/REPO[:TYPE]        hf.co/OWNER/REPO/FILE.gguf
OWNER/REPO[:TYPE]              OWNER/REPO/FILE.gguf
https://huggingface.co/...     as a browser shows it
https://HOST/PATH/FILE.gguf    any other server
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmgen.errors import ModelFileError, shown
from llmgen.hub.splits import first_part
from llmgen.visible import is_hidden

_PREFIXES = ("hf.co/", "huggingface.co/", "www.huggingface.co/")
_NAME = r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"  # the hub's own rule
_REPOSITORY = re.compile(rf"(?P<owner>{_NAME})/(?P<repo>{_NAME})(?::(?P<tag>[A-Za-z0-9][A-Za-z0-9_.-]*))?\Z")
_LONGEST_PART = 255  # bytes: what file systems take
_FORMS = "hf.co/OWNER/REPO, hf.co/OWNER/REPO:TYPE or hf.co/OWNER/REPO/FILE.gguf"


@dataclass(frozen=True)
class HubReference:
    """A model in a repository of the hub: the one file ``file``, or the one of the type ``tag``, or our choice."""

    owner: str
    repo: str
    tag: str | None = None
    file: str | None = None
    revision: str = "main"
    bare: bool = field(default=False, compare=False)
    """Whether it was named without hf.co, and could have been meant as a path."""

    @property
    def repo_id(self) -> str:
        """``OWNER/REPO``."""
        return f"{self.owner}/{self.repo}"

    def __str__(self) -> str:
        end = f"/{self.file}" if self.file else f":{self.tag}" if self.tag else ""
        return f"hf.co/{self.repo_id}{end}"


@dataclass(frozen=True)
class UrlReference:
    """A model file at a URL; of a split model, the first part."""

    url: str

    @property
    def file(self) -> str:
        """The name of the file."""
        from urllib.parse import unquote, urlsplit  # here, because completion must be instant

        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    def __str__(self) -> str:
        return self.url


Reference = HubReference | UrlReference


def parse(model: str) -> Reference | None:
    """The place that MODEL names elsewhere; None where it is a path or a plain name.

    Raises:
        ModelFileError: it names a place, and one that cannot be.
    """
    if re.match(r"https?://", model, re.IGNORECASE):
        return _of_url(model)
    for prefix in _PREFIXES:
        if model.lower().startswith(prefix):
            found = _in_repository(model[len(prefix) :])
            if found is None:
                raise ModelFileError(f"{shown(model)} names no model on the hub; the forms are {_FORMS}")
            return found
    named = _in_repository(model) if _cannot_be_a_path(model) else None
    return replace(named, bare=True) if named else None


def names_on_the_hub(model: str) -> bool:
    """Whether a name has one of the forms of the hub's models."""
    try:
        return isinstance(parse(model), HubReference)
    except ModelFileError:
        return False


def safe_path(path: str) -> bool:
    """Whether a file's path, which a stranger wrote, stays below the folder that it is put into."""
    return all(_safe_part(part) for part in path.split("/"))


def _safe_part(part: str) -> bool:
    if part in ("", ".", "..") or len(part.encode("utf-8", "surrogatepass")) > _LONGEST_PART:
        return False
    # a backslash and a colon (a drive, a stream) mean something on Windows
    return not any(character in '\\:*?"<>|' or is_hidden(character) for character in part)


def _cannot_be_a_path(model: str) -> bool:
    """Whether ``OWNER/REPO...`` is meant: a path's first folder would be here."""
    first = model.partition("/")[0]
    return bool(re.match(r"[A-Za-z0-9_]", first)) and "/" in model and not Path(first).is_dir()


def _in_repository(text: str, revision: str = "main") -> HubReference | None:
    """``OWNER/REPO[:TYPE]`` or ``OWNER/REPO/FILE.gguf``."""
    owner, _, rest = text.partition("/")
    repo, slash, file = rest.partition("/")
    if slash:
        found = _REPOSITORY.match(f"{owner}/{repo}")
        if not found or found["tag"] or not file.lower().endswith(".gguf") or not safe_path(file):
            return None
        return HubReference(owner, repo, file=first_part(file), revision=revision)
    found = _REPOSITORY.match(text)
    if not found or repo.lower().endswith(".gguf"):
        return None
    tag = found["tag"]
    return HubReference(found["owner"], found["repo"], None if tag in (None, "latest") else tag)


def _of_url(url: str) -> Reference:
    """A URL of the hub, as a browser shows it or as a download link, or of any other server."""
    from urllib.parse import unquote, urlsplit

    if not url.isprintable() or " " in url:
        raise ModelFileError(f"{shown(url)} is not a URL: it has blanks or control characters in it")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ModelFileError(f"{shown(url)} is not a URL: {error}") from None
    if not host or parts.username or parts.password:
        raise ModelFileError(
            f"{shown(url.replace(parts.netloc, '...'))} has {'a password' if host else 'no host'} in it; "
            "give the URL of a .gguf file that can be fetched without one"
        )
    if (host, port) in _hub_hosts():
        return _of_hub_url(url, unquote(parts.path).strip("/"))
    reference = UrlReference(first_part(url.partition("#")[0]))
    if not reference.file.lower().endswith(".gguf") or not safe_path(reference.file):
        raise ModelFileError(f"{shown(url)} is not the URL of a .gguf file; give the one of the file itself")
    return reference


def _hub_hosts() -> set[tuple[str, int | None]]:
    """The hosts (and ports) that are the hub: its own, and that of $HF_ENDPOINT."""
    from urllib.parse import urlsplit

    hosts: set[tuple[str, int | None]] = {(prefix.rstrip("/"), None) for prefix in _PREFIXES}
    try:
        own = urlsplit(os.environ.get("HF_ENDPOINT", ""))
        hosts.add((own.hostname or "", own.port))
    except ValueError:
        pass
    return hosts


def _of_hub_url(url: str, path: str) -> HubReference:
    """``OWNER/REPO``, and perhaps ``/tree/REVISION`` or ``/resolve/REVISION/FILE.gguf``."""
    match path.split("/"):
        case [owner, repo] | [owner, repo, "tree", "main"]:
            found = _in_repository(f"{owner}/{repo}")
        case [owner, repo, "resolve" | "blob" | "raw", revision, *file] if safe_path(revision):
            found = _in_repository("/".join([owner, repo, *file]), revision) if file else None
        case _:
            found = None
    if found is None:
        raise ModelFileError(f"{shown(url)} names no model on the hub; the forms are {_FORMS}")
    return found
