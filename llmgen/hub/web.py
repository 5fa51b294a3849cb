"""Talking to the hub and to other servers, through huggingface_hub's HTTP client.

That client knows the user's proxies and certificates.  Redirects are followed here, so
that the token goes to the server that it is for and to no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from llmgen.errors import DownloadError, UsageError, shown
from llmgen.hub.settings import constants, no_telemetry

if TYPE_CHECKING:
    import httpx2

_MOST_REDIRECTS = 8
_REDIRECTS = (301, 302, 303, 307, 308)
_TOKEN = "HF_TOKEN, or `hf auth login`"


class ConnectionBroken(Exception):
    """The connection broke, or the server is in trouble: trying again may help."""


class NotReached(ConnectionBroken):
    """There was no connection at all."""


def endpoint() -> str:
    """The hub's address: $HF_ENDPOINT, else huggingface.co.  Raises UsageError where it is none."""
    address = str(constants().ENDPOINT)
    try:
        parts = urlsplit(address)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_web = False
    if not is_web:
        raise UsageError(
            f"HF_ENDPOINT is {shown(address)}, expected the address of a hub, such as https://huggingface.co; "
            "correct it, or unset it"
        )
    return address


def token() -> str | None:
    """The user's token for the hub: $HF_TOKEN, or what `hf auth login` has kept."""
    from huggingface_hub.utils import build_hf_headers

    with no_telemetry():
        value = build_hf_headers(library_name="llmgen").get("authorization")
    if value is None:
        return None
    if not (value.isascii() and value.isprintable()):
        raise DownloadError(
            "the token that HF_TOKEN gives has characters in it that no token has; set it anew"
        )
    return value.removeprefix("Bearer ")


@contextmanager
def open_body(url: str, headers: Mapping[str, str], token: str | None) -> Iterator[httpx2.Response]:
    """The answer to a GET request, its body yet unread; ``token`` is sent to the server of ``url`` alone.

    Raises ConnectionBroken, and DownloadError for what no second try mends.
    """
    timeout = constants().HF_HUB_DOWNLOAD_TIMEOUT  # before anything of huggingface_hub: it says what is wrong
    from huggingface_hub.utils import get_session

    home = _origin(url)
    linked: dict[str, str] = {}
    for _ in range(_MOST_REDIRECTS):
        sent = {**headers, "Accept-Encoding": "identity", "User-Agent": "llmgen"}
        if token is not None and _origin(url) == home:
            sent["Authorization"] = f"Bearer {token}"
        with connecting(url):
            client = get_session()
            request = client.build_request("GET", url, headers=sent, timeout=timeout)
            answer = client.send(request, stream=True, follow_redirects=False)
        try:
            target = answer.headers.get("Location")
            if answer.status_code not in _REDIRECTS or not target:
                answer.headers.update({name: v for name, v in linked.items() if name not in answer.headers})
                yield answer
                return
            # the hub says what the file is, and where; the second server knows less
            linked |= {name: v for name, v in answer.headers.items() if name.lower().startswith("x-")}
            url = _followed(url, target)
        finally:
            answer.close()
    raise DownloadError(f"{_host(url)} redirects without an end; check the address, or try again later")


def _followed(url: str, target: str) -> str:
    try:
        following = urljoin(url, target)
        is_web = urlsplit(following).scheme in ("http", "https") and bool(_origin(following)[1])
    except ValueError:
        following, is_web = target, False
    if not is_web:
        raise DownloadError(f"{_host(url)} redirects to {shown(following)}, which is no web address")
    if url.startswith("https:") and not following.startswith("https:"):
        raise DownloadError(
            f"{_host(url)} redirects to {shown(_host(following))} without encryption; it was not followed"
        )
    return following


@contextmanager
def connecting(url: str) -> Iterator[None]:
    """Tell errors that a second try may mend (ConnectionBroken) from others (DownloadError)."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled:
        raise DownloadError(
            f"{_host(url)} is not asked, since HF_HUB_OFFLINE is set; unset it, or name a model that is here"
        ) from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise NotReached(_reason(error)) from None
    except (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
        raise ConnectionBroken(_reason(error)) from None
    except (httpx2.RequestError, httpx2.InvalidURL, httpx2.StreamError) as error:
        raise DownloadError(
            f"{shown(_host(url))} cannot be asked: {_reason(error)}; check the address and the proxy's settings"
        ) from None


def _reason(error: Exception) -> str:
    """The text of an HTTP client's error; some have none."""
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", type(error).__name__).lower()
    return shown(str(error).rstrip("."), quote=False) or words


def unreachable(url: str, why: object) -> DownloadError:
    """The sentence for a server that does not answer."""
    return DownloadError(
        f"cannot reach {_host(url)} ({why}); check the network, HF_ENDPOINT and the proxy's settings, "
        "or name a model that is here (`llmgen list`)"
    )


def refusal(
    status: int, headers: Mapping[str, str], what: str, url: str, token: str | None, page: str = ""
) -> DownloadError:
    """The sentence for an answer that is an error; ``what`` was asked for, and ``page`` shows its terms.

    The hub answers 401 for what is missing, private or gated, and tells with X-Error-Code which.
    """
    host, code = _host(url), headers.get("X-Error-Code", "")
    what = shown(what, quote=False)
    if code == "GatedRepo":
        return DownloadError(
            f"{what} is gated: its owner wants its terms accepted first; do that at {page or host}, "
            + ("with the account of your token" if token else f"and give your token ({_TOKEN})")
        )
    if status == 401 and "Invalid" in headers.get("X-Error-Message", "") and token is not None:
        return DownloadError(f"{host} does not know your token; give another one ({_TOKEN}), or none")
    if status == 401:
        way = " and the rights of your token" if token else f", or give a token that may read it ({_TOKEN})"
        return DownloadError(f"{host} has no {what}, or it is private; check the name{way}")
    if "://" in what and status in (404, 410):
        return DownloadError(f"there is no file at {what}; check the address")
    if status in (404, 410) or code in ("RepoNotFound", "EntryNotFound", "RevisionNotFound"):
        return DownloadError(f"{host} has no {what}; check the name")
    if status == 403:
        return DownloadError(f"{host} refuses {what} to you; your token may lack the right to read it")
    if status == 429:
        wait = headers.get("Retry-After", "")
        return DownloadError(
            f"{host} has had too many requests from you; try again "
            + (f"in {wait} seconds" if wait.isdecimal() and len(wait) < 6 else "later")
            + ("" if token else f", or with a token ({_TOKEN})")
        )
    if status >= 500:
        return DownloadError(f"{host} has a fault of its own (status {status}) at {what}; try again later")
    return DownloadError(
        f"{host} answers {what} with the status {status}; check the name, or try again later"
    )


def _host(url: str) -> str:
    return urlsplit(url).netloc or url


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port
