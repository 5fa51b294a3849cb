"""Arguments of the Python API that are of the wrong type: one sentence, before anything is computed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import tiny
from llmgen import LLM, ChatTemplate, Request, SamplingParams, SpeculativeConfig, Tokenizer
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
    "cancel without brackets": (
        lambda llm: llm.beams("a", cancel=Event),
        "cancel must be .* not the class Event",
    ),
    "on_prompt": (
        lambda llm: llm.stream("a", ONE, on_prompt=5),
        "on_prompt must be a function .* not an int",
    ),
    "on_event": (lambda llm: llm.batch([], on_event="x"), "on_event must be a function .* not a text"),
    "on_prompt of many": (
        lambda llm: llm.batch([], on_prompt=5),
        "on_prompt must be a function .* not an int",
    ),
    "requests": (lambda llm: llm.batch(5), "requests must be a list or a generator of Requests, not an int"),
    "one request": (lambda llm: llm.batch(Request("a")), "requests must be a list .* not a Request"),
    "texts as requests": (
        lambda llm: list(llm.batch(["a"])),
        "a request must be a Request, not a text: write Request",
    ),
    "slots": (lambda llm: llm.batch([], slots=2.0), "slots .* must be a whole number from 1 to 8, not 2.0"),
    "samples": (
        lambda llm: llm.samples("a", "2"),
        "samples .* must be a whole number of at least 1, not '2'",
    ),
    "beams": (lambda llm: llm.beams("a", True), "beams .* must be a whole number from 1 to 64, not True"),
    "length_penalty": (
        lambda llm: llm.beams("a", 2, length_penalty=None),
        "length_penalty .* must be a number from -10 to 10, not None",
    ),
    "early_stopping": (
        lambda llm: llm.beams("a", 2, early_stopping=1),
        "early_stopping .* must be True or False, not 1",
    ),
    "rewind": (
        lambda llm: llm.session().rewind(1.5),
        "tokens to rewind must be a whole number of at least 0, not 1.5",
    ),
    "reuse": (lambda llm: llm.session("some"), "reuse must be all, prompt or none, not 'some'"),
    "a prompt": (
        lambda llm: llm.generate(5),
        "a prompt must be a text or a list of token ids, which are whole numbers, not an int",
    ),
    "a prompt's ids": (lambda llm: llm.generate([1, 2.5]), "token ids, which are whole numbers, not a float"),
    "bytes as ids": (
        lambda llm: llm.detokenize(b"ab"),
        "token ids must be a list of whole numbers, not bytes",
    ),
    "an id": (
        lambda llm: llm.tokenizer.stream_decoder().push("5"),
        "token ids must be whole numbers, not '5'",
    ),
    "a copy": (copy.copy, "an LLM cannot be copied"),
    "a pickle": (pickle.dumps, "an LLM cannot be copied or sent to another process"),
    "a session's copy": (lambda llm: copy.deepcopy(llm.session()), r"a session cannot be copied .* fork\(\)"),
    "a text": (lambda llm: llm.tokenize(5), "the text is an int, expected a str"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(llm: LLM, name: str) -> None:
    call, says = CALLS[name]
    with pytest.raises(UsageError, match=says):
        call(llm)


@pytest.mark.parametrize("name", ["progress", "kv_report"])
def test_what_is_called_while_a_model_is_opened(llm: LLM, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be a function .* not an int"):
        LLM("nothing.gguf", **{name: 5})  # type: ignore[arg-type]


def test_an_empty_template(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chat_template is empty"):
        LLM(tiny.write(tmp_path / "tiny.gguf"), chat_template="")


def test_whole_numbers_of_numpy_are_as_good_as_pythons(llm: LLM) -> None:
    two = np.int64(2)
    assert len(llm.samples("a", two, ONE)) == len(llm.beams("a", two, ONE)) == 2
    assert SpeculativeConfig(lookup=True, k=two).k == 2
    session = llm.session()
    session.generate("ab", ONE)
    before = len(session.tokens)
    session.rewind(two)
    assert len(session.tokens) == before - 2


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
