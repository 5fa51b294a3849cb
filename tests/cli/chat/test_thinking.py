"""Which parts of an answer are thoughts, wherever it is cut, and which templates open them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgen.cli.chat import command
from llmgen.cli.chat.thinking import ThinkSplitter, after, answer_tags, may_be_unopened, opened_by, split
from llmgen.errors import UsageError
from llmgen.tokenizer import ChatTemplate
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
