"""Fetching from a real HTTP server that speaks the hub's API: what comes, how it is checked and where it lies."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants, try_to_load_from_cache

import hub_server
import tiny
from hub_fetches import DATA, OTHER, left, pull
from hub_server import COMMIT, Hub, sha256
from llmgen import hub
from llmgen.errors import DownloadError
from llmgen.gguf import check_model
from llmgen.hub.references import parse
from llmgen.hub.remote import Watch
from program import HANGS_S


def test_a_file_goes_into_the_cache_of_the_hub(hub_at: Hub) -> None:
    hub_at.add("o/r", {"sub/m-Q4_K_M.gguf": DATA, "m-Q8_0.gguf": OTHER, "README.md": b"x"})
    seen: list[tuple[str, int, int]] = []
    path = pull(watch=Watch(lambda *step: seen.append(step)))
    assert path.read_bytes() == DATA
    assert str(path) == try_to_load_from_cache("o/r", "sub/m-Q4_K_M.gguf")
    assert path.resolve().name == sha256(DATA)
    assert left(hub_at) == [sha256(DATA), "main"]
    assert seen[-1] == ("download", len(DATA), len(DATA))


def test_the_hub_is_asked_for_nothing_else(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub would fetch a list of coding agents, and name them and torch, in a user's own process too."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    hub_at.add("o/r", {"m.gguf": DATA})
    pull()
    assert [one.path.partition("?")[0] for one in hub_at.asked] == [
        "/api/models/o/r",
        f"/o/r/resolve/{hub_server.COMMIT}/m.gguf",
        "/o/r/m.gguf",
    ]
    assert not any("agent/" in one.headers["user-agent"] for one in hub_at.asked)
    assert constants.HF_HUB_DISABLE_TELEMETRY is False


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
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1.0)
    asked_again = threading.Event()

    def stop(offset: int) -> None:
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", HANGS_S)  # of the connections that follow
        if len(hub_at.bodies) > 1:
            asked_again.set()
        elif offset >= 65_536:
            asked_again.wait(HANGS_S)

    hub_at.before_body = stop
    assert pull().read_bytes() == DATA
    first, second = hub_at.bodies
    assert "range" not in first.headers
    # where the server is held up before, too, less has come
    assert second.headers.get("range", "bytes=0-") in [f"bytes={n}-" for n in range(0, 65_537, 1 << 14)]


def test_a_mirror_without_commits_and_a_file_that_changes(hub_at: Hub) -> None:
    repo = hub_at.add("o/r", {"m.gguf": DATA}, commit=None)
    assert pull().read_bytes() == DATA
    repo.files["m.gguf"] = OTHER
    assert pull().read_bytes() == OTHER


# -- several at once, and interruptions


def test_four_at_once_fetch_one_body(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    all_wait = threading.Event()
    waiting: list[str] = []
    hub_at.before_body = lambda offset: (offset < 100_000 or all_wait.wait(HANGS_S)) and None
    paths: list[Path] = []

    def progress(step: str, done: int, total: int) -> None:
        if step == "wait":
            waiting.append(step)
            if len(waiting) >= 3:
                all_wait.set()

    threads = [threading.Thread(target=lambda: paths.append(pull(watch=Watch(progress)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_S)
    assert len(set(paths)) == 1
    assert len(paths) == 4
    assert len(hub_at.bodies) == 1


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
