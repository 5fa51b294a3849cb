"""The lines of a batch: the keys that they may have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from llmgen import LLM, SamplingParams
from llmgen.cli.batch.input import Line, Reader, identity
from llmgen.errors import TemplateError, UsageError

TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.name }}]{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    path: Path = tiny.write(tmp_path_factory.mktemp("lines") / "tiny.gguf")
    with LLM(path, n_threads=1, chat_template=TEMPLATE) as llm:
        yield Reader(llm, SamplingParams(), llm.chat_template)


def line(values: dict[str, Any]) -> Line:
    return Line(0, "", json.dumps(values).encode())


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({"temperature": 0.5, "max_completion_tokens": 7}, {"temp": 0.5, "max_tokens": 7}),
        ({"stop_sequences": ["x"], "num-predict": 3}, {"stop": ("x",), "max_tokens": 3}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
        ({"top_logprobs": 5, "logprobs": True}, {"logprobs": 5}),
        ({"logprobs": False}, {"logprobs": None}),
        ({"logprobs": 2}, {"logprobs": 2}),
        ({"n": 1, "stream": False}, {}),
        ({"logit_bias": {"5": -1, "a": 2}}, {"logit_bias": ((5, -1.0), ("a", 2.0))}),
    ],
)
def test_options_under_the_names_of_others(
    reader: Reader, values: dict[str, Any], options: dict[str, Any]
) -> None:
    _, params = reader.parse(line({"prompt": "a"} | values))
    assert params == SamplingParams(**options)


def test_a_template_has_the_time_of_its_line(reader: Reader) -> None:
    with pytest.raises(TemplateError, match="the timeout of 0 s was over"):
        reader.parse(line({"messages": [{"role": "user", "content": "Hi"}], "timeout": 0}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"temperature": 1, "temp": 1}, "temp is there twice"),
        ({"logprobs": 1, "top_logprobs": 2}, "logprobs is there twice"),
        ({"n": 2}, "n must be 1"),
        ({"stream": True}, "stream must be false"),
        ({"model": "gpt"}, "model is chosen on the command line"),
        ({"num_ctx": 64}, r"num_ctx is chosen on the command line \(--ctx\)"),
        ({"logit_bias": {"9" * 5000: 1}}, "a token id of 5000 digits"),
        ({"temperatur": 1}, "did you mean temp"),
        ({"docments": []}, "did you mean documents"),
        ({"documents": [{"text": "x"}]}, "reads no documents"),
    ],
)
def test_keys_that_cannot_be(reader: Reader, values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        reader.parse(line({"prompt": "a"} | values))


def test_tools_reach_the_template(reader: Reader) -> None:
    ids, _ = reader.parse(line({"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f"}]}))
    assert reader.llm.detokenize(ids) == "[f]a"
    with pytest.raises(UsageError, match="tools needs a chat template"):
        reader.parse(line({"prompt": [3], "tools": [{"name": "f"}]}))


def test_an_id_may_be_a_custom_one() -> None:
    assert identity(line({"prompt": "a", "custom_id": "q"})) == {"line": 1, "id": "q"}
    assert identity(line({"prompt": "a", "custom_id": "q", "id": 1})) == {"line": 1, "id": 1}
