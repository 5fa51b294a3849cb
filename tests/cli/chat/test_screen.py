"""How an answer appears in ``chat``: thoughts apart, Markdown that loses nothing."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from llmgen.cli.chat.markdown import MarkdownWriter
from llmgen.cli.chat.screen import AnswerScreen, Think
from screens import Screen


class Pty(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


UNOPENED = "so it is so\n</think>\n\nYes."


@pytest.mark.parametrize(
    ("think", "text", "pipe", "rows"),
    [
        ("hide", UNOPENED, "Yes.\n", ["Yes.", ""]),
        ("hide", "<think>hm</think>Yes.", "Yes.\n", ["Yes.", ""]),
        ("hide", "Yes.\n\nIndeed.", "Yes.\n\nIndeed.\n", ["Yes.", "", "Indeed.", ""]),
        ("fold", UNOPENED, "Yes.\n", ["thought for 0 s, 4 words", "Yes.", ""]),
        ("fold", "Yes. No.", "Yes. No.\n", ["Yes. No.", ""]),
        ("show", "<think>hm</think>Yes.", "<think>hm</think>Yes.\n", ["hm", "", "Yes.", ""]),
    ],
)
def test_thoughts_on_a_terminal_and_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, think: Think, text: str, pipe: str, rows: list[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for out in (io.StringIO(), Pty()):
        monkeypatch.setattr("sys.stdout", out)
        answer = AnswerScreen(think, may_think=True, after_label=True)
        for char in f" {text}":
            answer.show(char)
        answer.finish()
        if out.isatty():
            screen = Screen(80)
            screen.feed(out.getvalue())
            assert [re.sub(r"for \d+ s", "for 0 s", row) for row in screen.rows] == rows
        else:
            assert out.getvalue() == pipe


def shown(text: str, sizes: list[int] | None = None, width: int = 40, height: int = 24) -> Screen:
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
    screen = Screen(width)
    screen.feed(out.getvalue())
    return screen


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


@pytest.mark.parametrize(
    "text",
    [
        "3*4*5 = 60",
        "a*b*",
        "2**10 + 3**4 = 1105",
        "(3*4)*5 and 6*(7+8)",
        "x**(n-1) + y**(n-1)",
        "*Note: 6*(7+8) = 90",
        "2*-3*-4",
        "3*$5*$6",
        "2*.5*.25",
        "\u03c0*r*r, x\u00b2*y*z, \u221a2*\u221a3*2",
        '"a"*3*"b"',
        "f(x)*g(x)*h(x)",
        "src/*/test/*, a.*b and c.*",
        "/*x*/ and /* y */",
        "3~~4~~5",
        "__init__ and __name__",
        "snake_case_name, _private_name",
        "3\\*4\\*5",
        "- 4 = 6",
        "+ 30",
        "* 30",
        "> 5",
    ],
)
def test_what_only_looks_like_markup_stays(text: str) -> None:
    for sizes in ([len(text)], [1] * len(text)):
        assert shown(text, sizes).rows == [text, ""]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('**bold**, *(slanted)*, "*both*" and **so**.', 'bold, (slanted), "both" and so.'),
        ("**Note:** *x*-axis, **A**/**B**, **Option A**(best)", "Note: x-axis, A/**B**, Option A(best)"),
        ("**a*b*c** is *5*3*", "a*b*c is 5*3"),
        ("\u8fd9\u662f**\u91cd\u8981**\u7684", "\u8fd9\u662f\u91cd\u8981\u7684"),
        ("**\uc911\uc694**\ud55c", "\uc911\uc694\ud55c"),
        ("\u0e02\u0e49\u0e2d**\u0e2a\u0e33**\u0e19\u0e30", "\u0e02\u0e49\u0e2d\u0e2a\u0e33\u0e19\u0e30"),
        ("`3*4*5` and ~~no~~", "3*4*5 and no"),
        ("- 3 eggs", "\u2022 3 eggs"),
        ("> - said", "\u258c \u2022 said"),
    ],
)
def test_emphasis(text: str, row: str) -> None:
    for sizes in ([len(text)], [1] * len(text)):
        assert shown(text, sizes, width=60).rows == [row, ""]


def test_rows_after_the_first_hang() -> None:
    text = "> - an item that somebody **said once**\n12. twelve has wider numbers\n- "
    assert shown(text + "3*4*5 is sixty, they say", width=20).rows == [
        "\u258c \u2022 an item that",
        "\u258c   somebody said",
        "\u258c   once",
        "12. twelve has wider",
        "    numbers",
        "\u2022 3*4*5 is sixty,",
        "  they say",
        "",
    ]


def test_a_resize_breaks_and_loses_no_word() -> None:
    for reflows in (True, False):
        for narrow in (20, 30):
            out = io.StringIO()
            console = Console(file=out, force_terminal=True, width=40, height=24, color_system="256")
            screen = Screen(40, reflows)
            writer = MarkdownWriter(console, out)
            text = f"above\n\nA **bold** word and *another one* in a long line\n\n{TABLE}\n\nend"
            for i, char in enumerate(text):
                writer.write(char)
                if i % 17 == 0:
                    screen.feed(out.getvalue())
                    out.seek(0)
                    out.truncate()
                    console.width = narrow if console.width == 40 else 40
                    screen.resize(console.width)
            writer.finish()
            screen.feed(out.getvalue())
            assert screen.rows[:2] == ["above", ""]
            assert re.sub(r"\W|_", "", screen.text) == re.sub(r"\W|_", "", text)


def test_a_line_over_many_rows_is_written_once_or_again_in_its_place() -> None:
    long = "word " * 30 + "**bold " + "word " * 30 + "end** tail"
    assert shown(long).words == long.replace("**", "").split()
    assert shown("before\n" + long + "\nafter").rows[0] == "before"
    # what has left the screen cannot be written again: the markup stays, the text is all there
    assert shown(long, height=4).words == long.split()
    wide = "\u4e2d\u6587 **" + "\u5b57" * 50 + "** x"
    assert shown(wide).text == wide.replace("**", "")
    huge = "x" * 9000 + " **b**"
    assert "".join(shown(huge, [1000] * 10).words) == huge.replace(" ", "")


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


def test_signs_whose_width_terminals_disagree_on_take_nothing_above_with_them() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    rows = shown(family * 8 + " **b** c", [1] * 99).rows  # rows are short enough for every terminal
    assert rows == [family * 4, family * 4, "b c", ""]
    flags = "\U0001f1e9\U0001f1ea" * 20  # no row can be: where it ends is not known
    assert shown(f"{flags} **b** c", [1] * 99).words[-2:] == ["b", "c"]
    assert shown(f"**{flags}** c", [1] * 99).text.startswith(f"**{flags}")


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
