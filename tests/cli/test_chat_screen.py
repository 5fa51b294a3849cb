"""How an answer appears in ``chat``: thoughts apart, Markdown that loses nothing."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from llmgen.cli.chat.markdown import MarkdownWriter
from llmgen.cli.chat.thinking import ThinkSplitter, opened_by, split


def cut(text: str, inside: bool, sizes: list[int]) -> list[tuple[bool, str]]:
    """The parts of a text that comes in pieces of these sizes, neighbours of a kind joined."""
    splitter, parts = ThinkSplitter(inside), []
    for size in sizes:
        piece, text = text[:size], text[size:]
        parts += splitter.push(piece)
    parts += [*splitter.push(text), *splitter.finish()]
    joined: list[tuple[bool, str]] = []
    for kind, part in parts:
        if joined and joined[-1][0] is kind:
            joined[-1] = (kind, joined[-1][1] + part)
        else:
            joined.append((kind, part))
    return joined


@pytest.mark.parametrize(
    ("text", "inside", "thoughts", "answer"),
    [
        ("Hello", False, "", "Hello"),
        ("  Hello <think>", False, "", "  Hello <think>"),
        ("<think>\nhm</think>\n\nHello", False, "hm", "Hello"),
        ("\n<think>hm</think>Hello", False, "hm", "Hello"),
        ("hm\n</think>\n\nHello </think>", True, "hm\n", "Hello </think>"),
        ("hm", True, "hm", ""),
        ("<think>hm", False, "hm", ""),
        ("<thin", False, "", "<thin"),
        ("<b>bold</b>", False, "", "<b>bold</b>"),
        ("hm</thin", True, "hm</thin", ""),
        ("", False, "", ""),
    ],
)
def test_thoughts_and_answer(text: str, inside: bool, thoughts: str, answer: str) -> None:
    assert split(text, inside) == (thoughts, answer)
    for size in (1, 2, 5):
        parts = dict(cut(text, inside, [size] * len(text)))
        assert (parts.get(True, ""), parts.get(False, "")) == (thoughts, answer)


@given(st.text("<>/thinkab \n", max_size=40), st.booleans(), st.lists(st.integers(1, 8), max_size=12))
@settings(max_examples=200, deadline=None)
def test_any_cut_gives_the_same(text: str, inside: bool, sizes: list[int]) -> None:
    parts = cut(text, inside, sizes)
    assert ("".join(p for k, p in parts if k), "".join(p for k, p in parts if not k)) == split(text, inside)


def test_a_prompt_that_opens_the_thoughts() -> None:
    assert opened_by("<|assistant|><think>\n")
    assert not opened_by("<|assistant|>")


class Terminal:
    """Just enough of one to read what the writer leaves on the screen and above it."""

    def __init__(self, width: int) -> None:
        self.width, self.rows, self.row, self.column = width, [""], 0, 0

    def feed(self, data: str) -> None:
        for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[\s\S]", data):
            if token == "\n":
                self.row, self.column = self.row + 1, 0
                self.rows += [""] * (self.row + 1 - len(self.rows))
            elif token == "\r":
                self.column = 0
            elif token.startswith("\x1b"):
                self._control(token)
            else:
                self._put(token)

    def _control(self, token: str) -> None:
        number = int(token[2:-1] or 1) if token[-1] in "AJ" else 0
        if token[-1] == "A":
            self.row -= number
            assert self.row >= 0
        elif token[-1] == "J":
            assert self.column == 0
            self.rows = [*self.rows[: self.row], ""]
        else:
            assert token[-1] == "m", token

    def _put(self, char: str) -> None:
        size = cell_len(char)
        if self.column + size > self.width:
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        self.rows[self.row] += char
        self.column += size

    @property
    def text(self) -> str:
        return "".join(self.rows)


def shown(text: str, sizes: list[int] | None = None, width: int = 40, height: int = 24) -> Terminal:
    """The screen after this text has streamed in."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height, color_system="256")
    writer = MarkdownWriter(console, out)
    rest = text
    for size in sizes or [3] * len(text):
        writer.write(rest[:size])
        rest = rest[size:]
    writer.write(rest)
    writer.finish()
    terminal = Terminal(width)
    terminal.feed(out.getvalue())
    return terminal


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("Some **bold** and *slanted* `code_x`.", ["Some bold and slanted code_x."]),
        ("# Title\n\ntext", ["Title", "", "text"]),
        ("- one\n  * two\n3. three", ["\u2022 one", "  \u2022 two", "3. three"]),
        ("> said", ["\u258c said"]),
        ("```python\nx = '**'\n```\n**b**", ["```python", "x = '**'", "```", "b"]),
        ("~~~\n```\n~~~", ["~~~", "```", "~~~"]),
        ("a < b, <b>no html</b> &amp; \\(x\\)", ["a < b, <b>no html</b> &amp; \\(x\\)"]),
        ("[link](http://x) ![img](y) <http://z>", ["[link](http://x) ![img](y) <http://z>"]),
        ("2 * 3 * 4 and snake_case_name", ["2 * 3 * 4 and snake_case_name"]),
        ("[bold red]rich[/] :smile:", ["[bold red]rich[/] :smile:"]),
        ("**never closed", ["**never closed"]),
        ("| a | b |\n|---|---|", ["| a | b |", "|---|---|"]),
        ("---", ["\u2500" * 40]),
    ],
)
def test_forms(text: str, rows: list[str]) -> None:
    for sizes in ([len(text)], [1] * len(text)):
        assert [row for row in shown(text, sizes).rows if row or "" in rows][: len(rows)] == rows


def test_a_line_over_many_rows_is_written_once_or_again_in_its_place() -> None:
    long = "word " * 30 + "**bold " + "word " * 30 + "end** tail"
    assert shown(long).text == long.replace("**", "")
    assert shown("before\n" + long + "\nafter").rows[0] == "before"
    # what has left the screen cannot be written again: the markup stays, the text is all there
    assert shown(long, height=4).text == long
    wide = "\u4e2d\u6587 **" + "\u5b57" * 50 + "** x"
    assert shown(wide).text == wide.replace("**", "")
    huge = "x" * 9000 + " **b**"
    assert shown(huge, [1000] * 10).text == huge


TABLE = "| Name | **Size** |\n|:--|--:|\n| a_b `x|y` | 1 |\n| c \\| d | 22222 | more |\n| e |"


IN_COLUMNS = """\
Name   \u2502         Size
\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u253c\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500
a_b `x \u2502       y` | 1
c | d  \u2502 22222 | more
e      \u2502"""


def test_a_table_appears_in_columns_when_it_is_complete() -> None:
    for sizes in ([500], [1] * 200):
        for height in (24, 6):  # the lower one is left before the table ends
            rows = shown(f"before\n\n{TABLE}\n\n**after**", sizes, width=60, height=height).rows
            assert rows == ["before", "", *IN_COLUMNS.splitlines(), "", "after", ""]
        assert shown(f"{TABLE}\n  no row", sizes, width=60).rows[-3:-1] == [
            "e      \u2502",
            "  no row",
        ]
        assert shown(TABLE, sizes, width=20).rows[-3:-1] == ["       \u2502        more", "e      \u2502"]
        narrow = shown(TABLE, sizes, width=5).text
        assert re.sub(r"\W", "", narrow) == re.sub(r"\W", "", TABLE)
        assert "\u2502" not in narrow
        assert shown(f"```\n{TABLE}\n```", sizes, width=60).rows[1:-2] == TABLE.splitlines()
        assert shown("| a |\n| b |\n| c |", sizes).rows[:3] == ["| a |", "| b |", "| c |"]


def test_nothing_is_taken_back_after_a_resize() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=40, height=24, color_system="256")
    for text, rest in (("one **bold", "er** x"), (TABLE[:40], TABLE[40:])):
        writer = MarkdownWriter(console, out)
        console.width = 40
        writer.write(text)
        before = len(out.getvalue())
        console.width = 20  # the terminal may have wrapped what is there anew, or not
        writer.write(rest)
        writer.finish()
        after = out.getvalue()[before:]
        assert not re.search(r"\x1b\[\d*[AJ]|\r", after)
        letters = re.sub(r"\x1b\[[0-9;]*m", "", after)
        assert re.sub(r"\W", "", letters) == re.sub(r"\W", "", rest)


def test_signs_whose_width_terminals_disagree_on_take_nothing_above_with_them() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    for text in (family * 8 + " **b** c", "\U0001f1e9\U0001f1ea" * 20 + " **b** c"):
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=40, height=24, color_system="256")
        writer = MarkdownWriter(console, out)
        for char in text:
            writer.write(char)
        writer.finish()
        assert "\x1b[J" not in out.getvalue()
        assert "b** c" in out.getvalue()


@given(
    st.lists(
        st.sampled_from(
            ["a", "b c", " ", "\n", "*", "**", "_", "`", "```", "#", "- ", "> ", "1. ", "<", "~~", "|"]
            + ["\n|a|b|\n|-|-|\n|c|", "|b|\n"]
        ),
        max_size=40,
    )
)
@settings(max_examples=150, deadline=None)
def test_no_letter_is_ever_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    letters = re.sub(r"[^abc]", "", text)
    for width, height in ((5, 4), (30, 24)):
        assert re.sub(r"[^abc]", "", shown(text, [1] * len(text), width, height).text) == letters
