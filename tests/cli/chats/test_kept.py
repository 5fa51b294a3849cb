"""The folder of conversations: who may write which, which ones go, and how they are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmgen.cli.chats import kept, store
from llmgen.errors import UsageError
from program import environment

HI: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi  there\nyou"}],
    "model": "/models/tiny.gguf",
}


def saved(name: str, hour: int, **more: object) -> Path:
    """A conversation that was last written in that hour."""
    path = kept.chats_folder() / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    store.save(path, {**HI, **more})
    os.utime(path, (3600 * hour, 3600 * hour))
    return path


def titled(title: str, path: Path) -> None:
    file = kept.KeptFile(path)
    assert file.take()
    file.rename(title)
    file.close()


def test_the_oldest_go_by_when_they_were_written_not_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_KEPT", 2)
    monkeypatch.setattr(kept, "_KEPT_PIPED", 1)
    old = saved("20200101", 9)  # gone on with a moment ago
    new, newest, named = saved("20240101", 1), saved("20240102", 8), saved("20200102", 2, title="Keep me")
    pipes = [saved(f"2023010{n}-piped", 5 + n) for n in range(3)]
    held = kept.KeptFile(saved("20200103", 0))
    assert held.take()
    odd = kept.chats_folder() / "odd.json"
    odd.write_text("not ours")
    os.utime(odd, (0, 0))
    kept.prune()
    left = {old, newest, named, held.path, odd, pipes[-1]}
    assert set(kept.files()) == left
    assert not new.exists()
    held.close()
    kept.prune()
    assert set(kept.files()) == left - {held.path}
    assert not list(kept.chats_folder().glob(".*"))  # no lock stays


def test_one_program_has_it(tmp_path: Path) -> None:
    path = saved("one", 1)
    code = (
        "import sys; from pathlib import Path; from llmgen.cli.chats.kept import KeptFile\n"
        "file = KeptFile(Path(sys.argv[1])); print(file.take(), flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        *([sys.executable, "-c", code, str(path)],),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    mine = kept.KeptFile(path)
    assert not mine.take()
    assert not mine.write(HI)
    assert not kept.remove(path)
    other.kill()  # the system frees the lock
    other.communicate()
    assert mine.write(HI)
    mine.close()


def test_a_file_that_another_has_changed_is_left_alone() -> None:
    file = kept.KeptFile(saved("one", 1))
    assert file.write(HI)
    file.path.write_text("edited by hand")
    assert not file.write(HI)
    assert file.path.read_text() == "edited by hand"
    file.path.unlink()
    assert file.write(HI)
    file.discard()
    assert not file.path.exists()


def test_what_another_writes_while_this_program_does_not_hold_it_is_left_alone() -> None:
    file = kept.KeptFile(saved("one", 1))
    assert file.write(HI)
    file.close()
    file.path.write_text("another's")
    assert not file.write(HI)
    assert file.path.read_text() == "another's"
    file.close()


def test_what_was_piped_and_is_now_typed_counts_as_typed() -> None:
    file = kept.KeptFile(saved("one-piped", 1))
    assert file.take()
    file.adopt()
    assert kept.files() == [kept.chats_folder() / "one.json"]
    assert file.write(HI)
    file.close()
    assert os.listdir(kept.chats_folder()) == ["one.json"]


def test_finding() -> None:
    with pytest.raises(UsageError, match="no conversation to resume"):
        kept.latest()
    one, two = saved("2024-one", 1), saved("2024-two", 2, title="The Sea")
    broken = kept.chats_folder() / "broken.json"
    broken.write_text("{")
    assert kept.latest().path == two
    assert "is not JSON" in next(kept.entries()).error
    assert kept.find("2").path == kept.find("the sea").path == kept.find("2024-t").path == two
    assert (kept.find("3").path, kept.find("3").title, kept.find("3").model) == (one, "Hi there you", "tiny")
    for name, says in (
        ("4", "lists 3"),
        ("0", "lists 3"),
        ("2024", "are 2 conversations"),
        ("", "no conversation ''"),
    ):
        with pytest.raises(UsageError, match=says):
            kept.find(name)


def test_a_title_does_not_change_the_order() -> None:
    saved("new", 2)
    titled("Old times", saved("old", 1))
    assert [entry.title for entry in kept.entries()] == ["Hi there you", "Old times"]


def test_a_lock_that_was_just_made_is_no_leftover() -> None:
    path = saved("one", 1)
    lock = kept.chats_folder() / ".two.lock"
    lock.touch()  # a program that begins a conversation has made it, and is about to lock it
    kept.prune()
    assert lock.exists()
    os.utime(lock, (0, 0))
    kept.prune()
    assert os.listdir(kept.chats_folder()) == [path.name]


def test_a_conversation_that_gets_a_title_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_KEPT", 0)
    path, hold = saved("one", 1), kept._hold

    def hold_late(place: Path) -> object:
        monkeypatch.setattr(kept, "_hold", hold)
        titled("Keep me", path)
        return hold(place)

    monkeypatch.setattr(kept, "_hold", hold_late)
    kept.prune()
    assert [entry.title for entry in kept.entries()] == ["Keep me"]


def test_a_title_is_given_to_what_another_has_written_before_the_lock_is_free() -> None:
    path = saved("one", 1)
    mine, other = kept.KeptFile(path), kept.KeptFile(path)
    assert other.write({**HI, "messages": [*HI["messages"], {"role": "assistant", "content": "Yes?"}]})
    other.close()
    assert mine.take()
    mine.rename("Talk")
    mine.close()
    (entry,) = kept.entries()
    assert (entry.title, len(entry.messages)) == ("Talk", 2)


def test_a_conversation_that_is_removed_while_it_is_read_is_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, load = saved("one", 1), store.load

    def load_late(which: Path) -> object:
        assert kept.remove(path)
        return load(which)

    monkeypatch.setattr(store, "load", load_late)
    assert list(kept.entries()) == []


def test_a_lock_that_another_has_made_anew_stays() -> None:
    path = saved("one", 1)
    first, second, third = (kept.KeptFile(path) for _ in range(3))
    assert first.take()
    (kept.chats_folder() / ".one.lock").unlink()  # by hand, perhaps
    assert second.take()
    first.close()
    assert not third.take()
    second.close()
