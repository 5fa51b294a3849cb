"""What ``LLM.chat`` and its kin are given: messages, tools, and what a chat template reads."""

from __future__ import annotations

import asyncio
import enum
from pathlib import Path

import pytest

import tiny
from llmgen import LLM, ChatTemplate, SamplingParams
from llmgen.errors import TemplateError, UsageError

SHORT = SamplingParams(temp=0.0, max_tokens=1)
HI = [{"role": "user", "content": "Hi"}]
PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
RICH = PLAIN + "{% for t in tools or [] %}[{{ t.name }}]{% endfor %}{% if shout %}!{% endif %}"


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("chat") / "tiny.gguf")


@pytest.fixture(scope="module")
def plain(path):
    with LLM(path, n_threads=1, chat_template=PLAIN) as llm:
        yield llm


@pytest.fixture(scope="module")
def rich(path):
    with LLM(path, n_threads=1, chat_template=RICH) as llm:
        yield llm


def calls(llm):
    """Every way to hand over a conversation."""

    async def one(**kw):
        async for _ in llm.astream_chat(HI, SHORT, **kw):
            pass

    return (
        lambda **kw: llm.chat(HI, SHORT, **kw),
        lambda **kw: llm.stream_chat(HI, SHORT, **kw),
        lambda **kw: llm.encode_chat(HI, **kw),
        lambda **kw: llm.render_chat(HI, **kw),
        lambda **kw: asyncio.run(one(**kw)),
    )


def test_sampling_options_are_no_keywords_of_a_template(plain) -> None:
    for call in calls(plain):
        with pytest.raises(UsageError, match=r"temp is a sampling option.*SamplingParams\(temp="):
            call(temp=0)
        with pytest.raises(UsageError, match=r"max_new_tokens is .*SamplingParams\(max_tokens="):
            call(max_new_tokens=3)


def test_a_keyword_that_the_template_never_reads(plain, rich) -> None:
    for call in calls(rich):
        with pytest.raises(UsageError, match="'shoutt'.*did you mean shout"):
            call(shoutt=True)
        with pytest.raises(UsageError, match="'shoutt'"):
            call(template_kwargs={"shoutt": True})
    for call in calls(plain):
        with pytest.raises(UsageError, match="reads no tools"):
            call(tools=[{"name": "f"}])
        with pytest.raises(UsageError, match="reads no documents"):
            call(documents=[{"text": "x"}])
        call(tools=[], documents=None, template_kwargs={})
    assert plain.render_chat(HI, add_generation_prompt=False, bos_token="<b>") == "user:Hi;"


def test_what_the_template_reads_arrives(rich) -> None:
    assert rich.render_chat(HI, tools=[{"name": "f"}], shout=True) == "user:Hi;[f]!"
    assert rich.render_chat(HI, template_kwargs={"shout": True, "tools": [{"name": "f"}]}) == "user:Hi;[f]!"
    expected = rich.tokenize("user:Hi;[f]!")
    assert rich.encode_chat(HI, tools=[{"name": "f"}], shout=True) == expected
    assert rich.chat(HI, SHORT, tools=[{"name": "f"}], shout=True).prompt_tokens == len(expected)
    for wrong in (
        {"shout": 1, "template_kwargs": {"shout": 1}},
        {"template_kwargs": {"messages": []}},
        {"template_kwargs": {"add_generation_prompt": False}},
    ):
        with pytest.raises(UsageError, match="template_kwargs"):
            rich.chat(HI, SHORT, **wrong)


@pytest.mark.parametrize("tools", ["f", {"name": "f"}, [len], ["f"], 5])
def test_tools_that_are_none(rich, tools) -> None:
    with pytest.raises(UsageError, match="JSON schemas"):
        rich.chat(HI, SHORT, tools=tools)


class Role(str, enum.Enum):  # noqa: UP042  (the older form is what people have)
    USER = "user"


class Dumped:
    """Like a Pydantic object: can be looped over, with ``model_dump``."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __iter__(self):
        return iter(self.__dict__.items())

    def model_dump(self, *, mode="python", exclude_none=False):
        assert mode == "json"
        return {name: value for name, value in vars(self).items() if not (exclude_none and value is None)}


class Iterated:
    """What can be looped over, and says nothing of what it is."""

    def __iter__(self):
        return iter([("role", "user"), ("content", "Hi")])


def test_messages_may_be_pydantic_objects(path) -> None:
    source = PLAIN + "{{ messages[0].refusal is defined }}{{ messages[0].content is none }}"
    with LLM(path, n_threads=1, chat_template=source) as llm:
        assert llm.render_chat([Dumped(role="user", content="Hi", refusal=None)]) == "user:Hi;FalseFalse"
        assert llm.render_chat([Dumped(role="user", content=None)]) == "user:;FalseFalse"
        assert llm.render_chat([{"role": Role.USER, "content": "Hi"}]) == "user:Hi;FalseFalse"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("Hi", "must be a list.*not a text"),
        ({"role": "user", "content": "Hi"}, "must be a list.*not a dict"),
        (None, "must be a list.*not None"),
        (["Hi"], r"messages\[0\] must be a dict.*not a text"),
        ([*HI, {"content": "Hi"}], r"messages\[1\].*without a role \(content\)"),
    ],
)
def test_what_is_no_conversation(plain, messages, says) -> None:
    with pytest.raises(UsageError, match=says):
        plain.chat(messages, SHORT)


def test_objects_that_cannot_be_read_are_refused(plain) -> None:
    for message in (Iterated(), {"role": "user", "content": Iterated()}):
        with pytest.raises(TemplateError, match="Iterated"):
            plain.chat([message], SHORT)


def test_a_template_by_path_or_name(path, tmp_path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("own {{ messages[0].content }}")
    for choice in (own, str(own), own.read_text()):
        with LLM(path, n_threads=1, chat_template=choice) as llm:
            assert llm.render_chat(HI) == "own Hi"
    with LLM(path, n_threads=1, chat_template="plain") as llm:
        assert llm.render_chat(HI) == "User: Hi\nAssistant:"
        assert llm.chat_template.stops == ("\nUser:",)
    for choice in ("nowhere.jinja", tmp_path / "nowhere.jinja", "\0", 5):
        with pytest.raises(UsageError):
            LLM(path, chat_template=choice)


def test_a_text_without_jinja_is_no_template() -> None:
    with pytest.raises(TemplateError, match="'own.jinja' has no Jinja in it"):
        ChatTemplate("own.jinja").render(HI)


def test_an_answer_ends_at_the_stop_of_its_format(path, monkeypatch) -> None:
    seen = []
    with LLM(path, n_threads=1, chat_template="plain") as llm:
        monkeypatch.setattr(llm, "_stream_ids", lambda ids, params, *more: seen.append(params))
        llm.stream_chat(HI, SHORT.with_(stop="x"))
        llm.stream_chat(HI)
    assert [params.stop for params in seen] == [("x", "\nUser:"), ("\nUser:",)]
