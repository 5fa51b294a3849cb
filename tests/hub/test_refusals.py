"""Who gets the token, and what a fetch refuses: errors, login pages, hostile names, full disks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from hub_fetches import DATA, LOGIN, left, partial, pull
from hub_server import COMMIT, Hub
from llmgen.errors import DownloadError

# -- who may read what


def test_the_token_goes_to_the_hub_alone(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", hub_at.token)
    hub_at.add("o/r", {"m.gguf": DATA}, private=True, gated=True)
    hub_at.cuts = [1000]
    assert pull().read_bytes() == DATA
    sent = {(one.server, one.headers.get("authorization")) for one in hub_at.asked}
    assert sent == {("hub", f"Bearer {hub_at.token}"), ("files", None)}


def test_a_listing_that_is_elsewhere_gets_no_token(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository that was renamed is redirected on the hub itself; another server is none of it."""
    monkeypatch.setenv("HF_TOKEN", hub_at.token)
    hub_at.add("o/new", {"m.gguf": DATA})
    hub_at.moved["o/r"] = f"{hub_at.url}/api/models/o/new?blobs=true"
    assert pull("o/r/m.gguf").read_bytes() == DATA
    hub_at.moved["o/s"] = f"{hub_at.files_url}/api/models/o/new"
    with pytest.raises(DownloadError):
        pull("o/s")
    assert {one.headers.get("authorization") for one in hub_at.asked if one.server == "files"} == {None}


def test_a_url_gets_no_token(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", hub_at.token)
    hub_at.plain["m.gguf"] = DATA
    pull(f"{hub_at.files_url}/m.gguf")
    assert [one.headers.get("authorization") for one in hub_at.asked] == [None]


@pytest.mark.parametrize(
    ("options", "token", "says"),
    [
        ({"gated": True}, None, r"o/r/m.gguf is gated.*do that at http://127.*/o/r, and give your token"),
        (
            {"private": True},
            None,
            r"has no o/r, or it is private; check the name, or give a token that may read it",
        ),
        ({}, "hf_wrong", "does not know your token; give another one"),
        ({}, "hf_\xe4", "characters in it that no token has"),
    ],
)
def test_what_is_not_for_everybody(
    hub_at: Hub, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool], token: str | None, says: str
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub_at.add("o/r", {"m.gguf": DATA}, **options)
    with pytest.raises(DownloadError, match=says):
        pull()
    assert not (Path(constants.HF_HUB_CACHE) / "models--o--r").exists()


def test_a_url_that_leads_nowhere(hub_at: Hub) -> None:
    with pytest.raises(DownloadError, match="there is no file at http://.*/m.gguf; check the address"):
        pull(f"{hub_at.files_url}/m.gguf")


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "has no o/r, or it is private"),
        (403, "refuses o/r to you"),
        (404, "has no o/r; check the name"),
        (429, "too many requests from you; try again later"),
        (503, "a fault of its own"),
        (418, "status 418"),
    ],
)
def test_errors_of_the_listing(hub_at: Hub, status: int, says: str) -> None:
    hub_at.api_status = status
    with pytest.raises(DownloadError, match=says):
        pull()


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "or it is private"), (403, "refuses o/r/m.gguf"), (404, "has no o/r/m.gguf"), (410, "has no o/r")],
)
def test_errors_of_the_file(hub_at: Hub, status: int, says: str) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.file_statuses = [status]
    with pytest.raises(DownloadError, match=says):
        pull()
    assert left(hub_at) == []


def test_a_repository_that_is_not_there(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DownloadError, match="has no o/nothing, or it is private"):
        pull("o/nothing")
    monkeypatch.setenv("HF_TOKEN", hub_at.token)
    with pytest.raises(
        DownloadError, match="has no o/nothing; check the name; there is no file o/nothing here either"
    ):
        pull("o/nothing")
    with pytest.raises(DownloadError, match="has no o/nothing; check the name$"):
        pull("hf.co/o/nothing")


def test_a_login_page(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.plain["m.gguf"] = DATA
    hub_at.page = LOGIN
    with pytest.raises(DownloadError, match="is not a hub .a proxy's login page"):
        pull()
    with pytest.raises(
        DownloadError, match="sent a web page .a login page, perhaps. in place of the GGUF file http.*/m.gguf"
    ):
        pull(f"{hub_at.files_url}/m.gguf")
    assert left(hub_at) == []


def test_something_else_in_place_of_the_file(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": b"version https://git-lfs.github.com/spec/v1"})
    with pytest.raises(DownloadError, match="sent something else .'application/octet-stream'. in place"):
        pull()
    assert left(hub_at) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"id": 1, "siblings": 3}',
        b'{"id": "o/r", "siblings": [{}]}',
        b"\xff",
        b"[" * 99_999,
    ]
    + [
        b'{"id": "o/r", "siblings": [{"rfilename": 7}]}',
        b'{"id": "o/r", "siblings": [{"rfilename": "a", "lfs": 1}]}',
    ],
)
def test_a_listing_that_is_none(hub_at: Hub, body: bytes) -> None:
    hub_at.api_body = body
    with pytest.raises(DownloadError, match="is not a hub|has no GGUF model"):
        pull()


@pytest.mark.parametrize(
    "path",
    [
        "../../../evil.gguf",
        "/evil.gguf",
        "a/../../evil.gguf",
        "C:\\evil.gguf",
        "..\\evil.gguf",
        "e\x1b[2J.gguf",
    ],
)
def test_names_that_lead_out_of_the_cache(hub_at: Hub, path: str) -> None:
    hub_at.add("o/r", {path: DATA})
    with pytest.raises(DownloadError, match="has no GGUF model") as raised:
        pull()
    assert "\x1b" not in str(raised.value)
    assert left(hub_at) == []


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("file:///etc/passwd", "which is no web address"),
        ("ftp://127.0.0.1/x", "which is no web address"),
        ("http://127.0.0.1:9/x", "cannot reach 127.0.0.1"),
        ("http://[::1/x", "which is no web address"),
        ("http://\x7f/", "cannot be asked|redirects to"),
    ],
)
def test_redirects_that_lead_nowhere(hub_at: Hub, target: str, says: str) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.redirect = lambda _: target
    with pytest.raises(DownloadError, match=says):
        pull()


def test_redirects_without_an_end(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.redirect = lambda _: f"{hub_at.url}/o/r/resolve/{COMMIT}/m.gguf"
    with pytest.raises(DownloadError, match="redirects without an end"):
        pull()


def test_no_network(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"cannot reach 127\.0\.0\.1:9 .*or name a model that is here"):
        pull()
    with pytest.raises(DownloadError, match=r"cannot reach 127\.0\.0\.1:9"):
        pull("http://127.0.0.1:9/m.gguf")


def test_offline_by_the_users_wish(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        pull()
    assert hub_at.asked == []


# -- the disk


def test_a_full_disk_is_noticed_before_the_download(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DownloadError, match="needs 1 MB in .*set HF_HOME to a folder on another disk"):
        pull()
    hub_at.plain["m.gguf"] = DATA
    with pytest.raises(DownloadError, match="needs 1 MB in .*set LLMGEN_MODELS to a folder"):
        pull(f"{hub_at.files_url}/m.gguf")
    assert [one.headers.get("range") for one in hub_at.bodies] == [None]


def test_what_is_here_counts_as_space(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    partial().write_bytes(DATA[:-500])
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1000))
    assert pull().read_bytes() == DATA


def test_a_folder_that_cannot_be_written(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    Path(constants.HF_HUB_CACHE).parent.mkdir()
    Path(constants.HF_HUB_CACHE).write_text("a file")
    with pytest.raises(DownloadError, match="cannot write m.gguf into .*set HF_HOME"):
        pull()
