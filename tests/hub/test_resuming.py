"""Fetches that break off, servers that change their mind, and what an earlier fetch has left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from huggingface_hub import constants

from hub_fetches import DATA, OTHER, left, partial, pull
from hub_server import Hub, sha256
from llmgen.errors import DownloadError
from llmgen.hub.remote import Watch
from program import HANGS_S

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


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_it_goes_on_after_an_interruption(hub_at: Hub, kind: signal.Signals) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    half, gone = threading.Event(), threading.Event()

    def stop_at_half(offset: int) -> None:
        if offset >= 131_072 and not gone.is_set():
            half.set()
            gone.wait(HANGS_S)

    hub_at.before_body = stop_at_half
    environment = {**os.environ, "HF_HUB_CACHE": constants.HF_HUB_CACHE}
    child = subprocess.Popen(
        [sys.executable, "-m", "llmgen", "pull", "o/r"],
        *(None, None, None, subprocess.PIPE, subprocess.PIPE),
        env=environment,
    )
    assert half.wait(HANGS_S)
    path = partial()
    while path.stat().st_size < 131_072:  # until the child has written what was sent
        assert child.poll() is None
    child.send_signal(kind)
    out, error = child.communicate(timeout=HANGS_S)
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
