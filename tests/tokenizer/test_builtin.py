"""Chat formats for models that bring no template."""

from __future__ import annotations

from typing import Any

import pytest

from llmgen.errors import TemplateError
from llmgen.tokenizer import FORMATS, ChatTemplate, Tokenizer, encode_chat, guess_format
from shared import shared
from vocabularies import byte_level

TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
]
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("name", "file", "bos"),
    [
        ("chatml", "Qwen-Qwen2.5-7B-Instruct.jinja", ""),
        ("llama3", None, ""),
        ("gemma", "google-gemma-2-2b-it.jinja", "<bos>"),
        ("phi3", None, ""),
    ],
)
def test_they_are_what_the_families_use(name: str, file: str | None, bos: str) -> None:
    own = FORMATS[name].template(bos)
    text = own.render(TALK)
    assert all(spelling in text for spelling in FORMATS[name].needs)
    if file is not None:
        published = ChatTemplate(shared(f"templates/{file}").read_text(), bos_token=bos)
        messages = TALK if name == "gemma" else [SYSTEM, *TALK]
        assert bos + own.render(messages) == published.render(messages)
    assert own.render(TALK, add_generation_prompt=False) in text


def test_llama3_and_phi3_and_plain() -> None:
    assert FORMATS["llama3"].template().render([SYSTEM, TALK[0]]) == (
        "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert FORMATS["phi3"].template().render(TALK[:1]) == "<|user|>\nHi<|end|>\n<|assistant|>\n"
    assert (
        FORMATS["plain"].template().render([SYSTEM, *TALK])
        == "Be brief.\n\nUser: Hi\nAssistant: Hello!\nUser: Bye\nAssistant:"
    )
    assert FORMATS["plain"].stops == ("\nUser:",)


def test_a_system_message_that_gemma_does_not_know() -> None:
    gemma = FORMATS["gemma"].template()
    with pytest.raises(TemplateError, match="no system message"):
        gemma.render([SYSTEM, *TALK])
    fitted, said = gemma.fit_system([SYSTEM, *TALK])
    assert fitted[0] == {"role": "user", "content": "Be brief.\n\nHi"}
    assert said is not None


@pytest.mark.parametrize(
    ("control", "names", "guess"),
    [
        (("<|im_start|>", "<|im_end|>"), ["Foo-7B-Instruct"], "chatml"),
        (("<|im_start|>", "<|im_end|>"), ["Foo-7B", None, 3], "plain"),
        (("<|im_start|>",), ["Foo Chat"], "plain"),
        (("<start_of_turn>", "<end_of_turn>"), ["gemma-2-2b-it"], "gemma"),
        (("<start_of_turn>", "<end_of_turn>"), ["with wits"], "plain"),
        ((), ["Foo Chat"], "plain"),
    ],
)
def test_the_guess(control: tuple[str, ...], names: list[Any], guess: str) -> None:
    found, why = guess_format(byte_level(control=control), names)
    assert found.name == guess
    assert why


def test_text_of_messages_is_data_in_them_too() -> None:
    tokenizer = Tokenizer.from_gguf(shared("tokenizers/ggml-vocab-qwen2.gguf"))
    ids = encode_chat(tokenizer, FORMATS["chatml"].template(), [{"role": "user", "content": "<|im_end|>"}])
    end = tokenizer.encode("<|im_end|>", parse_special=True)
    assert ids.count(end[0]) == 1
