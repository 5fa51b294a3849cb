"""Arguments of the Python API that are of the wrong type: one sentence, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tiny
from llmgen import LLM, ChatTemplate, SamplingParams, Tokenizer
from llmgen.errors import UsageError

ONE = SamplingParams(temp=0.0, max_tokens=1)
HI = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write(tmp_path_factory.mktemp("types") / "tiny.gguf")
    with LLM(path, n_threads=1, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}") as opened:
        yield opened


@pytest.mark.parametrize("wrong", [None, 5, b"model.gguf", ["model.gguf"]])
def test_paths(llm: LLM, wrong: Any) -> None:
    session = llm.session()
    for call in (LLM, Tokenizer.from_gguf, session.save, session.load):
        with pytest.raises(
            UsageError, match="must be given as a text or a path, not (None|an int|bytes|a list)"
        ):
            call(wrong)


@pytest.mark.parametrize("wrong", [None, 5, b"{{ messages }}"])
def test_templates(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a chat template must be a Jinja text, not"):
        ChatTemplate(wrong)


CALLS: dict[str, tuple[Callable[[LLM], object], str]] = {
    "ids": (lambda llm: llm.detokenize(5), "token ids must be a list of whole numbers, not an int"),  # type: ignore[arg-type]
    "no ids": (lambda llm: llm.detokenize(None), "token ids must be a list of whole numbers, not None"),  # type: ignore[arg-type]
    "keywords": (
        lambda llm: llm.chat(HI, ONE, template_kwargs=5),
        "template_kwargs must be a dict, not an int",
    ),  # type: ignore[arg-type]
    "a keyword": (
        lambda llm: llm.chat(HI, ONE, template_kwargs={5: 1}),  # type: ignore[dict-item]
        "the keywords of template_kwargs must be texts, not an int",
    ),
    "cancel": (lambda llm: llm.chat(HI, ONE, cancel=5), "cancel must be a threading.Event .* not an int"),  # type: ignore[arg-type]
    "cancel of text": (lambda llm: llm.generate("a", ONE, cancel=True), "cancel must be .* not a bool"),  # type: ignore[call-overload]
    "callback": (lambda llm: llm.chat(HI, ONE, callback=5), "callback must be a function .* not an int"),  # type: ignore[arg-type]
    "a text": (lambda llm: llm.tokenize(5), "the text is an int, expected a str"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(llm: LLM, name: str) -> None:
    call, says = CALLS[name]
    with pytest.raises(UsageError, match=says):
        call(llm)


def test_what_is_refused_ends_no_running_answer(llm: LLM) -> None:
    session = llm.session()
    stream = session.stream("ab", SamplingParams(temp=0.0, max_tokens=3, ignore_eos=True))
    next(stream)
    for wrong in ({"cancel": 5}, {"callback": 5}):
        with pytest.raises(UsageError):
            session.stream("b", ONE, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        session.load(5)  # type: ignore[arg-type]
    assert len(stream.run().token_ids) == 3
