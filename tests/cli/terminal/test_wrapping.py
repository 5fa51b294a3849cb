"""Text on a terminal is broken at words: as a whole, as it grows, and when the window changes."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from llmgen.cli.terminal.growing import GrowingLine
from llmgen.cli.terminal.plain import PlainWriter
from llmgen.cli.terminal.wrapping import hang_of, wrap, wrapped
from models import smollm2
from program import HANGS_S, PROGRAM, environment, llmgen
from screens import Screen

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [""]),
        ("one two three", ["one two", "three"]),
        ("one  two   three", ["one  two", "three"]),
        ("  one two", ["  one two"]),
        ("   one two", ["   one", "two"]),
        ("an incredible word", ["an", "incredible word"]),  # wider than a row: the terminal breaks it
        ("long-word go-on", ["long-word", "go-on"]),
        ("word\u2014another", ["word\u2014", "another"]),
        ("\u4e2d\u6587\u5b57\u7b26\u4e32", ["\u4e2d\u6587\u5b57\u7b26", "\u4e32"]),
        ("\u4e2d\u6587\u5b57\u7b26\u3002", ["\u4e2d\u6587\u5b57", "\u7b26\u3002"]),
        ("\u4e2d\u6587\u5b57\u300c\u7b26\u300d", ["\u4e2d\u6587\u5b57", "\u300c\u7b26\u300d"]),
        ("ab\u4e2d\u6587cdef", ["ab\u4e2d\u6587", "cdef"]),
        ("\ud55c\uad6d\uc5b4 \ubb38\uc7a5", ["\ud55c\uad6d\uc5b4", "\ubb38\uc7a5"]),
        ("go \U0001f389\U0001f389\U0001f389\U0001f389", ["go \U0001f389\U0001f389\U0001f389", "\U0001f389"]),
        (f"a {FAMILY}", ["a", FAMILY]),
        ("e\u0301e\u0301e\u0301e\u0301e\u0301 e\u0301e\u0301e\u0301e\u0301", ["e\u0301" * 5, "e\u0301" * 4]),
    ],
)
def test_rows(text: str, rows: list[str]) -> None:
    assert [text[row.begin : row.end] for row in wrap(text, 9)] == rows


@pytest.mark.parametrize(
    ("line", "hang"),
    [("text", 0), ("  text", 2), ("- item", 2), ("  12. item", 6), ("> said", 2), ("-5 is less", 0), ("", 0)],
)
def test_where_the_text_of_a_line_begins(line: str, hang: int) -> None:
    assert hang_of(line, 40) == hang
    assert hang_of(line, 3) == (hang if hang < 2 else 0)  # there has to be room for text


def test_whole_text() -> None:
    assert wrapped("/help  what there is\n\nx", 15, 7) == "/help  what\n       there is\n\nx"
    assert wrapped("a b", 1) == "a\nb"


class Window(io.StringIO):
    """A terminal's window, whose width a test changes."""

    def __init__(self, width: int, height: int, reflows: bool = True) -> None:
        super().__init__()
        self.size, self.screen = (width, height), Screen(width, reflows)

    def write(self, text: str) -> int:
        self.screen.feed(text)
        return len(text)

    def resize(self, width: int) -> None:
        self.size = width, self.size[1]
        self.screen.resize(width)


def plain(window: Window, monkeypatch: pytest.MonkeyPatch, wraps: bool = True) -> PlainWriter:
    monkeypatch.setattr("llmgen.cli.terminal.plain.terminal_size", lambda stream: window.size)
    return PlainWriter(window, wraps=wraps)


TEXT = """\
An ordinary paragraph that goes over several rows.

1. A first item, which is long as well.
  - One below it, with 4\u20445 of a row.
> And something that was said.
```
code is left to the terminal, however long it is
```
end"""


ROWS = """\
An ordinary paragraph
that goes over several
rows.

1. A first item, which
   is long as well.
  - One below it, with
    4\u20445 of a row.
> And something that was
  said.
```
code is left to the term
inal, however long it is
```
end"""


@pytest.mark.parametrize("size", [1, 2, 7, 500])
def test_an_answer_as_it_grows(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    window = Window(24, 24)
    writer = plain(window, monkeypatch)
    for at in range(0, len(TEXT), size):
        writer.write(TEXT[at : at + size])
    writer.finish()
    assert window.screen.rows == ROWS.splitlines()


def test_without_wrapping_the_terminal_breaks_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(24, 24)
    writer = plain(window, monkeypatch, wraps=False)
    writer.write(TEXT)
    assert window.screen.rows[:3] == ["An ordinary paragraph th", "at goes over several row", "s."]


def test_a_terminal_that_takes_nothing_back_gets_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    window = Window(24, 24)
    writer = plain(window, monkeypatch)
    for char in TEXT:
        writer.write(char)
    assert window.screen.rows[-1] == ""  # "end" may still become a longer word
    writer.finish()
    assert window.screen.rows == ROWS.splitlines()


def test_a_wider_window_is_filled_and_a_narrower_one_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(20, 24)
    writer = plain(window, monkeypatch)
    writer.write("above\nThe quick brown fox jumps over")
    assert window.screen.rows == ["above", "The quick brown fox", "jumps over"]
    window.resize(40)
    writer.write(" the")
    assert window.screen.rows == ["above", "The quick brown fox jumps over the"]
    window.resize(16)  # the terminal breaks what is there, in its way
    writer.write("se lazy dogs and more")
    assert window.screen.rows == [
        "above",
        "The quick brown ",
        "fox jumps over t",
        "hese",
        "lazy dogs and",
        "more",
    ]


def words(n: int) -> st.SearchStrategy[str]:
    piece = st.sampled_from(
        ["a", "bc", "def", " ", "  ", "\u4e2d", "\u3002", "\U0001f389", FAMILY, "- ", "\n"]
    )
    return st.lists(piece, max_size=n).map("".join)


def without_blanks(text: str) -> str:
    return re.sub(r"\s", "", text)


@given(words(60), st.integers(1, 5), st.integers(8, 40))
@settings(max_examples=150, deadline=None)
def test_growing_gives_what_the_whole_text_gives(text: str, size: int, width: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen = []
        for step in (size, len(text) + 1):
            window = Window(width, 100)
            writer = plain(window, monkeypatch)
            for at in range(0, len(text), step):
                writer.write(text[at : at + step])
            writer.finish()
            seen.append(window.screen.rows)
    assert seen[0] == seen[1]
    assert without_blanks("".join(seen[0])) == without_blanks(text)
    assert all(cell_len(row) <= width for row in seen[0])


@given(st.lists(st.tuples(words(12), st.integers(3, 40)), max_size=8), st.booleans(), st.integers(2, 30))
@settings(max_examples=200, deadline=None)
def test_a_resize_loses_nothing(steps: list[tuple[str, int]], reflows: bool, height: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        window = Window(20, height, reflows)
        window.write("above\n")
        writer = plain(window, monkeypatch)
        for text, width in steps:
            writer.write(text)
            window.resize(width)
        writer.finish()
    assert without_blanks(window.screen.text) == without_blanks("above" + "".join(text for text, _ in steps))


def test_what_left_the_window_is_not_written_again() -> None:
    window = Window(10, 2)
    line = GrowingLine(window, lambda: window.size, lambda cells: "".join(char for char, _ in cells))
    assert line.show([(char, "") for char in "*one two three four five six"])
    assert not line.show([(char, "") for char in "one two three four five six"])
    line.append([(char, "") for char in "teen*"])
    assert window.screen.rows == ["*one two", "three four", "five", "sixteen*"]


def test_after_a_stop_the_row_begins_again_below(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(20, 24)
    writer = plain(window, monkeypatch)
    writer.write("- one two three four five si")
    window.write("\n[1]+ Stopped\n$ fg\n")
    monkeypatch.setattr("llmgen.cli.terminal.growing._stops", 1)
    writer.write("x seven eight")
    shell = ["[1]+ Stopped", "$ fg"]
    assert window.screen.rows == ["- one two three four", "  five si", *shell, "  five six seven", "  eight"]


def in_terminal(*arguments: str, columns: int = 40) -> list[str]:
    """What a program leaves on a terminal of this width, which breaks no row but for a single long word."""
    import pexpect

    out = pexpect.run(
        shlex.join([*PROGRAM, *arguments]),
        env=environment(TERM="xterm-256color", COLUMNS=None),
        encoding="utf-8",
        timeout=HANGS_S,
        dimensions=(24, columns),
    )
    screen = Screen(columns)
    screen.feed(out.replace("\r\n", "\n"))
    assert not any(" " in row.strip() for row in screen.broken)
    return screen.rows


posix = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX terminal")


@posix
def test_errors_and_facts(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"")
    sentence = f"error: {path}: the file is empty, expected a GGUF model; download it again"
    assert "".join(in_terminal("inspect", str(path))).replace(" ", "") == sentence.replace(" ", "")
    assert llmgen("inspect", str(path)).stderr == sentence + "\n"
    rows = in_terminal("inspect", str(smollm2()))
    assert any(row.startswith(" " * 16) for row in rows)


@posix
@pytest.mark.usefixtures("compiled")
def test_an_answer_of_run() -> None:
    options = ["run", str(smollm2()), "Tell me a story.", "--temp", "0", "-n", "60"]
    text = llmgen(*options).stdout
    assert any(len(line) > 80 for line in text.splitlines())  # a pipe gets it as it is
    words = " ".join(in_terminal(*options)).split()
    assert words[: len(text.split())] == text.split()  # a note on the cut follows
    unbroken = in_terminal(*options, "--no-wrap", columns=1000)
    assert unbroken[: len(text.splitlines())] == text.splitlines()
