"""What is in a repository of the hub, asked through huggingface_hub."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from llmgen.errors import DownloadError
from llmgen.hub import web
from llmgen.hub.contents import Candidate, File, candidates, companion
from llmgen.hub.references import HubReference
from llmgen.hub.settings import constants, no_telemetry

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Repository:
    """The models of a repository at one commit (or, where a mirror does not say which, at a branch)."""

    reference: HubReference
    commit: str
    models: list[Candidate]
    architecture: str | None = None
    """That of the models, as the hub has read it in one of the files; None where it does not say."""

    @property
    def has_commit(self) -> bool:
        """Whether it is known which commit it is."""
        return bool(_COMMIT.match(self.commit))

    @property
    def page(self) -> str:
        """What a browser shows of it."""
        return f"{web.endpoint()}/{self.reference.repo_id}"

    def url(self, file: File) -> str:
        """Where the file is fetched from."""
        path = f"{quote(self.commit, safe='')}/{quote(file.path)}"
        return f"{self.page}/resolve/{path}"


def look_up(reference: HubReference) -> Repository:
    """Ask the hub what is in the repository.

    Raises:
        DownloadError: it cannot be reached, or has no such repository for this user.
    """
    try:
        info = _ask(reference)
    except DownloadError as error:
        if not reference.bare:
            raise
        name = str(reference).removeprefix("hf.co/")
        raise DownloadError(f"{error}; there is no file {name} here either") from None
    commit = info.sha if isinstance(info.sha, str) and _COMMIT.match(info.sha) else reference.revision
    files = list(_files(info.siblings or []))
    return Repository(reference, commit, candidates(files), _architecture(info, files))


def _architecture(info: Any, files: Iterable[File]) -> str | None:
    """What the hub says of the models' architecture; None where it may have read it in a file beside them."""
    said = info.gguf.get("architecture") if isinstance(info.gguf, dict) else None
    beside = any(companion(file.path) for file in files if file.path.lower().endswith(".gguf"))
    return said if isinstance(said, str) and said and not beside else None


def _ask(reference: HubReference) -> Any:
    url, token = (
        web.endpoint(),
        web.token(),
    )  # the address first: huggingface_hub does not load with a bad one
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        with web.connecting(url), no_telemetry():
            return HfApi(library_name="llmgen").model_info(
                reference.repo_id,
                revision=None if reference.revision == "main" else reference.revision,
                files_metadata=True,
                timeout=constants().HF_HUB_ETAG_TIMEOUT,
            )
    except web.ConnectionBroken as error:
        raise web.unreachable(url, error) from None
    except HfHubHTTPError as error:
        answer = error.response
        raise web.refusal(
            answer.status_code, answer.headers, reference.repo_id, url, token, f"{url}/{reference.repo_id}"
        ) from None
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ):  # not JSON, or not with these keys
        raise not_a_hub(url) from None


def not_a_hub(url: str) -> DownloadError:
    """The sentence for an answer that is not the hub's."""
    return DownloadError(
        f"what answers at {url} is not a hub (a proxy's login page, perhaps); "
        "check the network, HF_ENDPOINT and the proxy's settings"
    )


def _files(siblings: Iterable[Any]) -> Iterable[File]:
    """The files as the hub lists them; what cannot be a hash or a number counts as unknown."""
    for entry in siblings:
        if not isinstance(entry.rfilename, str):
            raise not_a_hub(web.endpoint())
        lfs = entry.lfs
        size = entry.size if lfs is None else lfs.size
        yield File(
            entry.rfilename,
            size if type(size) is int else None,
            None if lfs is None else _matching(_SHA256, lfs.sha256),
            _matching(_COMMIT, entry.blob_id) if lfs is None else None,
        )


def _matching(pattern: re.Pattern[str], value: Any) -> str | None:
    return value if isinstance(value, str) and pattern.match(value) else None
