"""How an answer appears in ``chat``: thoughts apart, Markdown that loses nothing."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from llmgen.cli.chat import command
from llmgen.cli.chat.markdown import MarkdownWriter
from llmgen.cli.chat.screen import AnswerScreen, Think
from llmgen.cli.chat.thinking import ThinkSplitter, after, answer_tags, may_be_unopened, opened_by, split
from llmgen.errors import UsageError
from llmgen.tokenizer import ChatTemplate
from screens import Screen
from shared import shared
from vocabularies import byte_level


def cut(
    text: str, inside: bool, sizes: list[int], tags: tuple[str, str] | None = None
) -> list[tuple[bool, str]]:
    """The parts of a text that comes in pieces of these sizes, neighbours of a kind joined."""
    splitter, parts = ThinkSplitter(inside, waits=True, answer_tags=tags), []
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
        ("hm\n</think>\n\nHello", False, "hm\n", "Hello"),  # nothing opened them
        ("hm.</think>Hello", False, "hm.", "Hello"),
        ("hm </think>", False, "hm ", ""),
        ("The </think> mark ends thoughts.", False, "", "The </think> mark ends thoughts."),
        ("The mark `</think>`\n", False, "", "The mark `</think>`\n"),
        ("Write:\n<think>\nhm\n</think>\n", False, "", "Write:\n<think>\nhm\n</think>\n"),
        ("[THINK]hm</think>[/THINK]Hello", False, "hm</think>", "Hello"),
        ("hm[/THINK]\nHello", True, "hm", "Hello"),
        ("<|START_THINKING|>hm<|END_THINKING|>Hello", False, "hm", "Hello"),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello",
            False,
            "hm",
            "Hello",
        ),
        ("<|channel|>final<|message|>Hello", False, "", "Hello"),  # gpt-oss without thoughts
        ("<|channel|>finally", False, "", "<|channel|>finally"),
        ("<mm:think>hm</mm:think>Hello", False, "hm", "Hello"),  # MiniMax M3
        ("hm</mm:think>\nHello", False, "hm", "Hello"),
        ("hm</think:opensource>Hello", True, "hm", "Hello"),  # Hunyuan 3
        ("<thought>\nhm</thought>\n\nHello", False, "hm", "Hello"),  # EXAONE Deep
        ("\u25c1think\u25b7hm\u25c1/think\u25b7Hello", False, "hm", "Hello"),  # Kimi VL
        ("<|inner_prefix|>hm<|inner_suffix|>Hello", False, "hm", "Hello"),  # Apertus
        ("<|channel>thought\nhm<channel|>Hello", False, "hm", "Hello"),  # Gemma 4
        ("<|think|>hm<|end|><|begin|>assistant<|content|>Hello", False, "hm", "Hello"),  # Solar
        ("<|content|>Hello", False, "", "Hello"),
        (
            " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Hello",
            False,
            "hm",
            "Hello",
        ),  # Muse
        (" to=user<|message|>Hello", False, "", "Hello"),
        ("to be or not", False, "", "to be or not"),
        ("hm\n[BEGIN FINAL RESPONSE]\nHello", True, "hm\n", "Hello"),  # Apriel
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
    assert opened_by("[THINK]")
    assert not opened_by("<|assistant|>")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Cohere2MoE", {"reasoning": True}),
        ("MiniMax-M3", {"thinking_mode": "enabled"}),
        ("Qwen3.5-4B", {}),
        ("Apriel-1.6-15b-Thinker-fixed", {}),
        ("deepseek-ai-DeepSeek-V3.1", {"thinking": True}),
        ("tencent-Hy3", {"reasoning_effort": "high"}),
    ],
)
def test_templates_of_families_open_the_thoughts(name: str, options: dict[str, object]) -> None:
    template = ChatTemplate(shared(f"templates/{name}.jinja").read_text(encoding="utf-8"))
    assert opened_by(template.render([{"role": "user", "content": "Hi"}], **options))


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("Cohere2MoE", "<|START_THINKING|><|END_THINKING|>"),
        ("MiniMax-M3", "</mm:think>"),
        ("google-gemma-4-31B-it-interleaved", "<|channel>thought\n<channel|>"),
        ("tencent-Hy3", "<think:opensource></think:opensource>"),
        ("upstage-Solar-Open-100B", "<|think|><|end|><|begin|>assistant"),
        ("NVIDIA-Nemotron-Nano-v2", "<think></think>"),
    ],
)
def test_templates_of_families_are_asked_for_no_thoughts(name: str, end: str) -> None:
    template = ChatTemplate(shared(f"templates/{name}.jinja").read_text(encoding="utf-8"))
    asked = command._asked(template, command.Think.off)
    for before in ([], [{"role": "system", "content": "Be kind."}]):
        prompt = template.render(
            asked.flagged([*before, {"role": "user", "content": "Hi"}]), **asked.keywords
        )
        assert prompt.endswith(end)
        assert "/no_think" not in prompt.removesuffix(end)
        assert not before or "Be kind." in prompt


def test_a_template_that_reads_another_variable_is_not_asked_in_vain() -> None:
    """One that only keeps the thoughts of earlier answers has a word for that, which contains the other's name."""
    for name in ("LFM2.5-8B-A1B", "Kimi-K2-Thinking"):
        template = ChatTemplate(shared(f"templates/{name}.jinja").read_text(encoding="utf-8"))
        with pytest.raises(UsageError, match="cannot turn thoughts off"):
            command._asked(template, command.Think.off)


GRANITE = ("<response>", "</response>")
HUNYUAN = ("<answer>", "</answer>")


@pytest.mark.parametrize(
    ("text", "tags", "answer"),
    [
        ("<think>hm</think>\n<answer>\nHello\n</answer>", HUNYUAN, "Hello"),
        ("<think>hm</think><response>Hello</response>\n", GRANITE, "Hello"),
        ("<answer>\n  Hello</answer>", HUNYUAN, "  Hello"),
        ("<think>hm</think>\n<answer>\nHel", HUNYUAN, "Hel"),
        ("<answer>Hello</answ", HUNYUAN, "Hello</answ"),
        ("<answer>a </answer> b\n</answer>", HUNYUAN, "a </answer> b"),
        ("Write <answer>4</answer>", HUNYUAN, "Write <answer>4</answer>"),
        ("<answers>4</answer>", HUNYUAN, "<answers>4</answer>"),
        ("<ans", HUNYUAN, "<ans"),
        ("<answer>", HUNYUAN, ""),
        ("<think>hm</think><answer>4</answer>", None, "<answer>4</answer>"),  # another model's text
        ("<answer>4</answer>", GRANITE, "<answer>4</answer>"),
    ],
)
def test_tags_around_the_answer(text: str, tags: tuple[str, str] | None, answer: str) -> None:
    assert split(text, False, tags)[1] == answer
    for size in (1, 3, 7):
        assert dict(cut(text, False, [size] * len(text), tags)).get(False, "") == answer


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ("<think>h", HUNYUAN),
        ("<think>hm</think>\n<ans", HUNYUAN),
        ("<answer>Hel", ("", "</answer>")),
        ("Hel", None),
    ],
)
def test_tags_that_a_continuation_may_bring(before: str, left: tuple[str, str] | None) -> None:
    assert after(before, False, HUNYUAN).tags_left == left
    continued = ThinkSplitter(answer_tags=("", "</answer>"))
    parts = [*continued.push("\nlo\n</answer>"), *continued.finish()]
    assert "".join(part for _, part in parts) == "\nlo"


def test_which_models_have_tags_around_their_answers() -> None:
    for name, tags in (("ibm-granite-granite-3.3-2B-Instruct", GRANITE), ("Qwen3.5-4B", None)):
        template = ChatTemplate(shared(f"templates/{name}.jinja").read_text(encoding="utf-8"))
        assert answer_tags(template) == tags
    assert answer_tags(ChatTemplate("{{ content.split('<answer>')[-1].split('</answer>')[0] }}")) == HUNYUAN


def test_which_answers_may_be_thoughts_that_nothing_opened() -> None:
    knows = byte_level(control=("<think>", "</think>"))
    knows_not, plain = byte_level(), ChatTemplate("{{ messages }}")
    assert may_be_unopened("Assistant:", plain, knows)
    assert may_be_unopened("Assistant:", ChatTemplate("{{ content.split('</think>') }}"), knows_not)
    assert not may_be_unopened("Assistant:", plain, knows_not)
    assert not may_be_unopened("Assistant:<think>\n\n</think>\n\n", plain, knows)


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
