"""Fetching from a hub: a real HTTP server that speaks its API, with everything that goes wrong on the way."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants, try_to_load_from_cache

import hub_server
import tiny
from hub_server import COMMIT, Hub, sha256
from llmgen import hub
from llmgen.errors import DownloadError
from llmgen.gguf import check_model
from llmgen.hub.references import parse
from llmgen.hub.remote import Watch

DATA = b"GGUF" + bytes(range(256)) * 1000
OTHER = b"GGUF" + bytes(reversed(range(256))) * 1000
LOGIN = b"<!DOCTYPE html><html><title>Sign in</title></html>"


def pull(name: str = "o/r", memory: int | None = None, watch: Watch | None = None) -> Path:
    """Fetch what a name means, as ``llmgen pull`` does it."""
    reference = parse(name)
    assert reference is not None
    return hub.fetch_reference(reference, memory, watch)


def left(hub_at: Hub) -> list[str]:
    """Files in the cache and in the models folder that are no link and no lock: contents, branches, partial files."""
    folders = [Path(constants.HF_HUB_CACHE), Path(os.environ["LLMGEN_MODELS"])]
    paths = [path for folder in folders for path in folder.rglob("*")]
    return sorted(p.name for p in paths if p.is_file() and not p.is_symlink() and p.suffix != ".lock")


def test_a_file_goes_into_the_cache_of_the_hub(hub_at: Hub) -> None:
    hub_at.add("o/r", {"sub/m-Q4_K_M.gguf": DATA, "m-Q8_0.gguf": OTHER, "README.md": b"x"})
    seen: list[tuple[str, int, int]] = []
    path = pull(watch=Watch(lambda *step: seen.append(step)))
    assert path.read_bytes() == DATA
    assert str(path) == try_to_load_from_cache("o/r", "sub/m-Q4_K_M.gguf")
    assert path.resolve().name == sha256(DATA)
    assert left(hub_at) == [sha256(DATA), "main"]
    assert seen[-1] == ("download", len(DATA), len(DATA))


def test_an_architecture_that_does_not_run_is_refused_before_the_fetch(hub_at: Hub) -> None:
    repo = hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA}, gguf={"architecture": "new\x1b[31m", "total": 1})
    watch = Watch(runs=lambda name: name == "llama")
    for name in ("o/r", "o/r:Q4_K_M"):
        with pytest.raises(
            DownloadError, match=r"architecture 'new\\x1b\[31m', which llmgen does not run"
        ) as raised:
            pull(name, watch=watch)
        assert "hf.co/o/r/FILE.gguf" in str(raised.value)
    assert hub_at.bodies == []
    assert pull("o/r/m-Q4_K_M.gguf", watch=watch).read_bytes() == DATA
    repo.gguf = {"architecture": "llama"}
    assert pull(watch=watch).read_bytes() == DATA


@pytest.mark.parametrize("said", [None, [], "clip", {}, {"architecture": 5}, {"architecture": ""}])
def test_without_word_of_an_architecture_it_is_fetched(hub_at: Hub, said: object) -> None:
    hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA}, gguf=said)
    assert pull(watch=Watch(runs=lambda name: False)).read_bytes() == DATA


def test_the_architecture_of_a_file_beside_the_model_does_not_count(hub_at: Hub) -> None:
    files = {"m-Q4_K_M.gguf": DATA, "mmproj-m-F16.gguf": OTHER}
    hub_at.add("o/r", files, gguf={"architecture": "clip"})
    assert pull(watch=Watch(runs=lambda name: name == "llama")).read_bytes() == DATA


def test_what_is_here_is_used_without_the_network(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA, "m-Q8_0.gguf": OTHER})
    assert hub.find("o/r") == parse("o/r")
    path = pull()
    before = len(hub_at.asked)
    for name in ("o/r", "hf.co/o/r", "o/r:Q4_K_M", "o/r:q4", "o/r/m-Q4_K_M.gguf"):
        assert hub.find(name) == path
    for name in ("o/r:Q8_0", "o/r/m-Q8_0.gguf", "o/r2"):
        assert hub.find(name) == parse(name)
    assert len(hub_at.asked) == before


def test_a_file_that_another_program_has_fetched_is_used(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA})
    folder = Path(constants.HF_HUB_CACHE) / "models--o--r"
    for path, text in (("blobs/etag", DATA), ("refs/main", COMMIT.encode())):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text)
    pointer = folder / "snapshots" / COMMIT / "m-Q4_K_M.gguf"
    pointer.parent.mkdir(parents=True)
    pointer.symlink_to("../../blobs/etag")
    assert hub.find("o/r") == pointer
    assert pull() == pointer
    assert hub_at.bodies == []


def test_again_fetches_only_what_has_changed(hub_at: Hub) -> None:
    repo = hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA, "README.md": b"x"})
    pull()
    repo.commit = COMMIT[::-1]  # another file has changed
    path = pull()
    assert path.read_bytes() == DATA
    assert repo.commit in path.parts
    assert len(hub_at.bodies) == 1
    repo.files["m-Q4_K_M.gguf"], repo.commit = OTHER, COMMIT.replace("0", "f")
    assert pull().read_bytes() == OTHER
    assert hub.find("o/r").read_bytes() == OTHER  # type: ignore[union-attr]


def test_a_file_of_an_earlier_commit_is_still_found(hub_at: Hub) -> None:
    """Another file of the repository was fetched since, at a later commit."""
    repo = hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA, "m-Q8_0.gguf": OTHER})
    early = pull("o/r:Q8_0")
    repo.commit = COMMIT[::-1]
    late = pull("o/r:Q4_K_M")
    assert hub.find("o/r:Q8_0") == early
    assert hub.find("o/r") == late


def test_a_damaged_file_in_the_cache_is_fetched_again(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA})
    path = pull()
    path.resolve().write_bytes(DATA[:1000])
    assert pull().read_bytes() == DATA


def test_the_reason_for_the_choice_is_said_in_a_line(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m-Q6_K.gguf": DATA, "m-Q8_0.gguf": OTHER})
    lines: list[str] = []
    pull(watch=Watch(say=lines.append))
    assert lines == ["o/r has no Q4_K_M; Q6_K is the nearest"]


def test_all_parts_of_a_split_model_come(hub_at: Hub) -> None:
    parts = {f"Q8_0/m-0000{i}-of-00003.gguf": DATA + bytes([i]) for i in (1, 2, 3)}
    hub_at.add("o/r", parts)
    seen: list[int] = []
    path = pull("o/r/Q8_0/m-00002-of-00003.gguf", watch=Watch(lambda step, done, total: seen.append(done)))
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == {
        Path(n).name: d for n, d in parts.items()
    }
    assert path.name == "m-00001-of-00003.gguf"
    assert seen == sorted(seen)
    assert seen[-1] == 3 * len(DATA) + 3
    next(iter(path.parent.glob("*00002*"))).unlink()
    assert hub.find("o/r") == parse("o/r")  # not whole any more


def test_a_split_model_with_a_part_missing_is_refused_before_anything_is_fetched(hub_at: Hub) -> None:
    hub_at.add("o/r", {f"m-Q8_0-0000{i}-of-00003.gguf": DATA for i in (1, 3)})
    with pytest.raises(DownloadError, match=r"lacks 'm-Q8_0-00002-of-00003\.gguf'"):
        pull("o/r:Q8_0")
    assert hub_at.bodies == []


# -- connections


def test_a_connection_that_breaks_is_gone_on_with(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.cuts = [100_000, 50_000, 0, 0]
    assert pull().read_bytes() == DATA
    ranges = [one.headers.get("range") for one in hub_at.bodies]
    assert ranges == [None, "bytes=100000-", *["bytes=150000-"] * 3]
    assert left(hub_at) == [sha256(DATA), "main"]


def test_one_that_breaks_again_and_again_is_given_up_and_gone_on_with_later(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.cuts = [100_000, *[0] * 5]
    with pytest.raises(
        DownloadError, match=r"breaks again and again.*0\.1 MB of o/r/m\.gguf are here and are kept"
    ):
        pull()
    assert pull().read_bytes() == DATA
    assert hub_at.bodies[-1].headers["range"] == "bytes=100000-"


def test_a_server_in_trouble_is_asked_again(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.file_statuses = [503, 0, 500]
    hub_at.cuts = [70_000]
    assert pull().read_bytes() == DATA
    hub_at.repos["o/r"].files = {"n.gguf": OTHER}
    hub_at.file_statuses = [502] * 5
    with pytest.raises(DownloadError, match="status 502"):
        pull("o/r/n.gguf")


def test_a_server_without_ranges_sends_all_again(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.cuts, hub_at.no_ranges = [100_000], True
    assert pull().read_bytes() == DATA
    assert [one.status for one in hub_at.bodies] == [200, 200]


def test_a_changed_etag_starts_over(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.cuts, hub_at.etags = [100_000], ['"old"']
    assert pull().read_bytes() == DATA
    assert hub_at.bodies[1].headers["if-range"] == '"old"'
    assert [one.status for one in hub_at.bodies] == [200, 200]


def test_another_part_than_was_asked_for_starts_over(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    hub_at.cuts, hub_at.range_begins = [100_000], 5
    assert pull().read_bytes() == DATA
    assert [one.status for one in hub_at.bodies] == [200, 206, 200]


def test_what_an_earlier_fetch_has_left_is_read_first(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    partial().write_bytes(DATA[:1000])
    seen: list[tuple[str, int, int]] = []
    pull(watch=Watch(lambda *step: seen.append(step)))
    assert seen[:2] == [("check", 1000, 1000), ("download", 1000, len(DATA))]


def partial(name: str = sha256(DATA)) -> Path:
    path = Path(constants.HF_HUB_CACHE) / "models--o--r" / "blobs" / f"{name}.llmgen-part"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize(
    "there", [DATA, DATA[:-1], DATA[:1000], OTHER[:1000], OTHER, DATA + b"more", b"<html>", b""], ids=len
)
def test_whatever_an_earlier_fetch_left_the_result_is_right(hub_at: Hub, there: bytes) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    partial().write_bytes(there)
    assert pull().read_bytes() == DATA
    assert left(hub_at) == [sha256(DATA), "main"]


def url_partial(hub_at: Hub, content: bytes, version: str) -> str:
    """What an earlier fetch of a URL has left, of that version; returns the URL."""
    name = f"{hub_at.files_url}/m.gguf"
    hub_at.plain["m.gguf"] = DATA
    path = pull(name)
    path.rename(path.with_name("m.gguf.llmgen-part"))
    path.with_name("m.gguf.llmgen-part").write_bytes(content)
    path.with_name("m.gguf.llmgen-part.json").write_text(json.dumps({"version": version}))
    return name


def test_nothing_after_the_last_byte_of_a_file_of_unknown_size(hub_at: Hub) -> None:
    hub_at.omit = {"content-length"}
    assert pull(url_partial(hub_at, DATA, f'"{sha256(DATA)[:32]}"')).read_bytes() == DATA
    assert hub_at.asked[-1].status == 416


@pytest.mark.parametrize("missing", [set(), {"etag"}])
@pytest.mark.parametrize("version", ["", '"old"', 'W/"old"', "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_the_rest_of_another_version_is_not_taken(hub_at: Hub, version: str, missing: set[str]) -> None:
    """No hash tells what is whole, so only the same version may be gone on with."""
    hub_at.omit = missing
    assert pull(url_partial(hub_at, OTHER[:100_000], version)).read_bytes() == DATA


def test_without_an_etag_the_date_of_the_change_counts(hub_at: Hub) -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    hub_at.omit, hub_at.changed = {"etag"}, date
    assert pull(url_partial(hub_at, DATA[:100_000], date)).read_bytes() == DATA
    assert (hub_at.asked[-1].status, hub_at.asked[-1].headers["if-range"]) == (206, date)


@pytest.mark.parametrize(
    ("announced", "says"),
    [
        (
            {"lfs": {"size": len(DATA), "sha256": sha256(OTHER), "pointerSize": 1}},
            "arrived damaged: its hash is",
        ),
        (
            {"lfs": {"size": len(DATA) - 1, "sha256": sha256(DATA), "pointerSize": 1}},
            "more than the 256003 bytes",
        ),
        (
            {"lfs": {"size": len(DATA) + 1, "sha256": sha256(DATA), "pointerSize": 1}},
            "has 256004 bytes there",
        ),
        ({"lfs": None, "blobId": "0" * 40}, "arrived damaged: its hash is"),
        ({"lfs": {"size": -1, "sha256": sha256(DATA), "pointerSize": 1}}, "-1 bytes, which no model"),
        (
            {"lfs": {"size": 1 << 60, "sha256": sha256(DATA), "pointerSize": 1}},
            "free some space|which no model",
        ),
        (
            {"lfs": {"size": 10**400, "sha256": sha256(DATA), "pointerSize": 1}},
            "free some space|which no model",
        ),
    ],
)
def test_what_is_not_as_announced_is_not_kept(hub_at: Hub, announced: dict[str, object], says: str) -> None:
    hub_at.add("o/r", {"m.gguf": DATA}, announced={"m.gguf": announced})
    with pytest.raises(DownloadError, match=says):
        pull()
    assert left(hub_at) == []


def test_a_file_that_is_no_lfs_file_is_checked_by_gits_hash(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA}, lfs=False)
    assert pull().resolve().name == hub_server.git_sha1(DATA)


def test_a_mirror_that_announces_nothing(hub_at: Hub) -> None:
    """No commit, no hash, no size, no ETag, no length."""
    unknown = {"lfs": None, "blobId": None, "size": None}
    hub_at.add("o/r", {"m.gguf": DATA}, commit=None, announced={"m.gguf": unknown})
    hub_at.omit = {"etag", "content-length", "linked"}
    lines: list[str] = []
    path = pull(watch=Watch(say=lines.append))
    assert path.read_bytes() == DATA
    assert lines == ["o/r/m.gguf: the server gives neither a hash nor a size to check the file with"]
    assert hub.find("o/r") == path
    assert left(hub_at) == [sha256(DATA), "main"]


def test_what_nothing_was_announced_of_is_looked_at_itself(hub_at: Hub, tmp_path: Path) -> None:
    """Without a length, a connection that is cut looks like the end of the file."""
    tiny.write(tmp_path / "m.gguf")
    hub_at.plain["m.gguf"] = data = (tmp_path / "m.gguf").read_bytes()
    hub_at.omit, hub_at.cuts = {"content-length", "etag"}, [len(data) - 100]
    name = f"{hub_at.files_url}/m.gguf"
    with pytest.raises(DownloadError, match="did not arrive whole, so nothing was kept"):
        pull(name, watch=Watch(check=check_model))
    assert left(hub_at) == []
    assert pull(name, watch=Watch(check=check_model)).read_bytes() == data


def test_a_server_that_stops_sending_is_asked_again(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    asked_again = threading.Event()

    def stop(offset: int) -> None:
        if len(hub_at.bodies) > 1:
            asked_again.set()
        elif offset >= 65_536:
            asked_again.wait(60)

    hub_at.before_body = stop
    assert pull().read_bytes() == DATA
    assert hub_at.bodies[1].headers["range"] == "bytes=65536-"


def test_a_mirror_without_commits_and_a_file_that_changes(hub_at: Hub) -> None:
    repo = hub_at.add("o/r", {"m.gguf": DATA}, commit=None)
    assert pull().read_bytes() == DATA
    repo.files["m.gguf"] = OTHER
    assert pull().read_bytes() == OTHER


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


# -- several at once, and interruptions


def test_four_at_once_fetch_one_body(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    all_wait = threading.Event()
    waiting: list[str] = []
    hub_at.before_body = lambda offset: (offset < 100_000 or all_wait.wait(60)) and None
    paths: list[Path] = []

    def progress(step: str, done: int, total: int) -> None:
        if step == "wait":
            waiting.append(step)
            if len(waiting) == 3:
                all_wait.set()

    threads = [threading.Thread(target=lambda: paths.append(pull(watch=Watch(progress)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(paths)) == 1
    assert len(paths) == 4
    assert len(hub_at.bodies) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_it_goes_on_after_an_interruption(hub_at: Hub, kind: signal.Signals) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    half, gone = threading.Event(), threading.Event()

    def stop_at_half(offset: int) -> None:
        if offset >= 131_072 and not gone.is_set():
            half.set()
            gone.wait(60)

    hub_at.before_body = stop_at_half
    environment = {**os.environ, "HF_HUB_CACHE": constants.HF_HUB_CACHE}
    child = subprocess.Popen(
        [sys.executable, "-m", "llmgen", "pull", "o/r"],
        *(None, None, None, subprocess.PIPE, subprocess.PIPE),
        env=environment,
    )
    assert half.wait(60)
    path = partial()
    while path.stat().st_size < 131_072:  # until the child has written what was sent
        assert child.poll() is None
    child.send_signal(kind)
    out, error = child.communicate(timeout=60)
    gone.set()
    assert out == b""
    if kind == signal.SIGINT:
        assert child.returncode == 130
        assert error.decode().splitlines()[-1] == (
            "hf.co/o/r: what has arrived is kept; the same command goes on from there"
        )
    assert pull().read_bytes() == DATA
    assert hub_at.bodies[-1].headers["range"] == "bytes=131072-"
    assert left(hub_at) == [sha256(DATA), "main"]


# -- URLs


def test_a_url(hub_at: Hub) -> None:
    hub_at.plain["x/a b.gguf"] = DATA
    name = f"{hub_at.files_url}/x/a%20b.gguf"
    assert hub.find(name) == parse(name)
    hub_at.cuts = [100_000]
    path = pull(name)
    assert path.read_bytes() == DATA
    assert path.name == "a b.gguf"
    assert hub.find(name) == path
    assert left(hub_at) == ["a b.gguf"]


def test_a_url_whose_file_changes_during_the_fetch(hub_at: Hub) -> None:
    hub_at.plain["m.gguf"] = DATA
    hub_at.cuts = [100_000]

    def change(offset: int) -> None:
        if offset > 80_000:
            hub_at.plain["m.gguf"] = OTHER

    hub_at.before_body = change
    assert pull(f"{hub_at.files_url}/m.gguf").read_bytes() == OTHER


def test_a_url_of_a_split_model(hub_at: Hub) -> None:
    for i in (1, 2):
        hub_at.plain[f"m-0000{i}-of-00002.gguf"] = DATA + bytes([i])
    path = pull(f"{hub_at.files_url}/m-00002-of-00002.gguf")
    assert path.name == "m-00001-of-00002.gguf"
    assert left(hub_at) == [f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    with contextlib.suppress(FileNotFoundError):
        path.with_name("m-00002-of-00002.gguf").unlink()
    assert not isinstance(hub.find(f"{hub_at.files_url}/m-00001-of-00002.gguf"), Path)
