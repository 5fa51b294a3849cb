"""The journal of a batch: what is kept, what is refused, what ends up in the output."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmgen.cli.batch import input as requests
from llmgen.cli.batch.input import Line, Source, identity
from llmgen.cli.batch.journal import Journal, line_hash
from llmgen.errors import LLMGenError, UsageError

OPTIONS = {"model": "m", "temp": 0.5}


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_answers_end_up_in_the_inputs_order(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    journal = Journal(out, OPTIONS)
    for number in (3, 0, 2):
        journal.add(number, f"h{number}", {"line": number, "text": "ä\n"})
    assert not out.exists()
    journal.finish([(number, f"h{number}") for number in range(5)])
    assert [line["line"] for line in lines(out)] == [0, 2, 3]
    assert lines(out)[0]["text"] == "ä\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_it_goes_on_after_an_interruption_at_any_byte(tmp_path: Path) -> None:
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    journal = Journal(out, OPTIONS)
    journal.add(1, "h1", {"n": 1})
    journal.add(0, "h0", {"n": 0})
    journal.close()
    whole = part.read_bytes()
    header = whole.index(b"\n") + 1
    second = whole.index(b"\n", header) + 1
    for size in range(0, len(whole) + 1, 7):
        part.write_bytes(whole[:size])
        journal = Journal(out, OPTIONS)
        assert ((1, "h1") in journal) == (size >= second)
        assert ((0, "h0") in journal) == (size == len(whole))
        for number in (0, 1):
            if (number, f"h{number}") not in journal:
                journal.add(number, f"h{number}", {"n": number})
        journal.finish([(0, "h0"), (1, "h1")])
        assert lines(out) == [{"n": 0}, {"n": 1}]


def test_changed_lines_are_done_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out", OPTIONS)
    journal.add(0, line_hash(b"old"), {"n": "old"})
    assert (0, line_hash(b"new")) not in journal
    journal.add(0, line_hash(b"new"), {"n": "new"})
    journal.close()
    journal = Journal(tmp_path / "out", OPTIONS)
    assert (0, line_hash(b"new")) in journal
    journal.finish([(0, line_hash(b"new"))])
    assert lines(tmp_path / "out") == [{"n": "new"}]


def test_other_options_and_other_files_are_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "out", OPTIONS).close()
    with pytest.raises(UsageError, match=r"other values of temp.*--restart"):
        Journal(tmp_path / "out", {**OPTIONS, "temp": 1.0})
    for text in ("hello\n", "my novel, of one line", '{"a": 1}\n', "[]\n"):
        (tmp_path / "out.part").write_text(text)
        for restart in (False, True):
            with pytest.raises(UsageError, match="not the journal"):
                Journal(tmp_path / "out", OPTIONS, restart)
        assert (tmp_path / "out.part").read_text() == text
    (tmp_path / "out.part").unlink()
    (tmp_path / "out.part").mkdir()
    with pytest.raises(UsageError, match="is not a file"):
        Journal(tmp_path / "out", OPTIONS)


def test_a_line_that_was_spoiled_by_hand_costs_its_own_answer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out", OPTIONS)
    for number in range(4):
        journal.add(number, "h", {"n": number})
    journal.close()
    whole = journal.path.read_text().splitlines()
    whole[2:4] = ['{"line": 1, "hash"', "[" * 100_000]
    journal.path.write_text("\r\n".join(whole) + "\r\n")
    journal = Journal(tmp_path / "out", OPTIONS)
    assert [(number, "h") in journal for number in range(4)] == [True, False, False, True]
    for number in (1, 2):
        journal.add(number, "h", {"n": number})
    journal.finish([(number, "h") for number in range(4)])
    assert lines(tmp_path / "out") == [{"n": number} for number in range(4)]


def test_an_output_that_came_to_be_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("another run's")
    with pytest.raises(UsageError, match="exists"):
        Journal(tmp_path / "out", OPTIONS, overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_half_written_line_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "out", OPTIONS)
    journal.add(0, "h0", {"n": 0})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space") as raised:
            journal.add(1, "h1", {"n": 1})
        assert raised.value.filename == str(tmp_path / "out.part")
    journal.add(2, "h2", {"n": 2})
    journal.close()
    again = Journal(tmp_path / "out", OPTIONS)
    assert [(n, f"h{n}") in again for n in range(3)] == [True, False, True]


def test_errors_are_tried_again_and_endings_are_remembered(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out", OPTIONS)
    journal.add(0, "h", {"error": "no"})
    journal.add(1, "h", {"finish_reason": "timeout"})
    journal.close()
    journal = Journal(tmp_path / "out", OPTIONS)
    assert [journal.ending(0, "h"), journal.ending(1, "h"), journal.ending(1, "other")] == [
        None,
        "timeout",
        None,
    ]
    journal.close()
    assert (1, "h") not in Journal(tmp_path / "out", {"temp": 2.0}, restart=True)


def test_lines_that_left_the_input_leave_the_output(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out", OPTIONS)
    for number in range(3):
        journal.add(number, f"h{number}", {"n": number})
    journal.finish([(0, "h0"), (2, "h2")])
    assert lines(tmp_path / "out") == [{"n": 0}, {"n": 2}]


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed")
def test_a_journal_that_somebody_else_removes_or_cuts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out", OPTIONS)
    journal.add(0, "h", {"n": 0})
    journal.path.unlink()
    journal.finish([(0, "h")])
    assert lines(tmp_path / "out") == [{"n": 0}]
    journal = Journal(tmp_path / "other", OPTIONS)
    journal.add(0, "h", {"n": 0})
    os.truncate(journal.path, journal.path.stat().st_size - 5)
    with pytest.raises(LLMGenError, match="was changed while"):
        journal.finish([(0, "h")])
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(os.name == "nt", reason="locks differ")
def test_two_runs_cannot_write_the_same_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out", OPTIONS)
    with pytest.raises(UsageError, match="another batch"):
        Journal(tmp_path / "out", OPTIONS)
    journal.close()


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed")
def test_a_journal_is_locked_until_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, seen = Journal(tmp_path / "out", OPTIONS), []

    def watched(path: Path, missing_ok: bool = False) -> None:
        with pytest.raises(UsageError, match="another batch"):
            Journal(tmp_path / "out", OPTIONS)
        seen.append(path)
        os.unlink(path)

    monkeypatch.setattr(Path, "unlink", watched)
    journal.finish([])
    assert seen == [journal.path]


def test_an_input_may_grow_while_it_is_read_and_begin_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'"a"\n"b"\n')
    with closing(Source(path)) as source:
        with path.open("ab") as file:
            file.write(b'"c"\n')
        assert source.count() == 2
        assert [line.data for line in source.lines()] == [b'"a"\n', b'"b"\n']
        assert source.is_at(path)
        assert not source.is_at(tmp_path / "absent")


def test_a_line_or_a_pipe_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_MOST_BYTES", 1 << 20)
    monkeypatch.setattr(requests, "_MOST_PIPED", 3 << 20)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'"a"\n' + b"y" * (1 << 21))
    with closing(Source(path)) as source, pytest.raises(UsageError, match="line 2 of .* over 1 MB"):
        source.count()
    if os.name == "nt":
        return
    for endless, found in (
        (b"y" * 5000, "line 1 of stdin has over 1 MB"),
        (b"y\n" * 5000, "stdin has over 3 MB"),
    ):
        out, into = os.pipe()
        writer = threading.Thread(target=write_until_closed, args=(into, endless))
        writer.start()
        with os.fdopen(out, "rb") as pipe:
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
            with pytest.raises(UsageError, match=found), closing(Source(Path("-"))) as source:
                source.count()
        writer.join()


def write_until_closed(handle: int, data: bytes) -> None:
    with suppress(BrokenPipeError):
        while True:
            os.write(handle, data)


def test_what_a_pipe_holds_must_be_kept_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(LLMGenError, match=r"cannot keep .* No space left"):
        Source(Path(os.devnull))


def test_input_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf"a"\r\n\n  \n{"id": [1], "prompt": "b"}\nnot json\n"last"')
    found = list(Source(path).lines())
    assert [line.number for line in found] == [0, 3, 4, 5]
    assert found[0].data.strip() == b'"a"'
    assert [identity(line) for line in found] == [
        {"line": 1},
        {"line": 4, "id": [1]},
        {"line": 5},
        {"line": 6},
    ]
    assert found[0].digest == line_hash(b'"a"')
    assert identity(Line(0, "", b"[" * 100_000)) == {"line": 1}
    assert identity(Line(0, "", b'{"id": ' + b"[" * 500 + b"]" * 500 + b"}")) == {"line": 1}


def test_a_file_that_another_program_has_written_meanwhile_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    journal = Journal(out, OPTIONS, overwrite=False)
    journal.add(0, "a", {"text": "mine"})
    out.write_text("another program's")
    with pytest.raises(UsageError, match="out exists; give another name, or --overwrite"):
        journal.finish([(0, "a")])
    journal.close()
    assert out.read_text() == "another program's"
    again = Journal(out, OPTIONS)  # with --overwrite; nothing is computed again
    assert (0, "a") in again
    again.finish([(0, "a")])
    assert json.loads(out.read_text()) == {"text": "mine"}
    assert sorted(os.listdir(tmp_path)) == ["out"]
