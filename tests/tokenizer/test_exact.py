"""Ten real vocabularies against llama.cpp's ids."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmgen.tokenizer import Tokenizer
from models import gemma3, smollm2
from shared import DATA, shared

FILES = ["gpt-2", "llama-spm", "llama-bpe", "qwen2", "phi-3", "falcon", "starcoder", "deepseek-llm"]
MODELS = {"smollm2-135m-instruct": smollm2, "gemma-3-270m": gemma3}


def path_of(name: str) -> Path:
    return MODELS[name]() if name in MODELS else shared(f"tokenizers/ggml-vocab-{name}.gguf")


@cache
def tokenizer_of(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(path)


def expected(name: str) -> dict[str, Any]:
    if name in MODELS:
        return json.loads((DATA / f"{MODELS[name].__name__}_ids.json").read_text(encoding="utf-8"))
    with gzip.open(shared(f"tokenizers/{name}.json.gz")) as file:
        return json.load(file)


@pytest.mark.parametrize("name", [*FILES, *MODELS])
def test_ids_and_pieces(name: str) -> None:
    data = expected(name)
    tokenizer = tokenizer_of(path_of(name))
    assert tokenizer.n_vocab == data["n_tokens"]
    assert (tokenizer.add_bos, tokenizer.add_eos) == (data["add_bos"], data["add_eos"])
    assert (tokenizer.bos_id, tokenizer.eos_id) == (data["bos"], data["eos"])
    assert not tokenizer.warnings
    for case in data["cases"]:
        ids = tokenizer.encode(case["text"], case["add_special"], case["parse_special"])
        assert ids == case["ids"], (case["text"], case["parse_special"])
        if "pieces" in case:
            assert [tokenizer.token_bytes(id).hex() for id in ids] == case["pieces"], case["text"]


@pytest.mark.parametrize("name", FILES)
def test_llama_cpp_texts(name: str) -> None:
    path = path_of(name)
    texts = shared(f"tokenizers/{path.name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = shared(f"tokenizers/{path.name}.out").read_text().split("\n")
    tokenizer = tokenizer_of(path)
    for text, line in zip(texts[:-1], lines, strict=False):
        assert tokenizer.encode(text, add_special=False) == [int(id) for id in line.split()], text


@pytest.mark.parametrize("name", [*FILES, *MODELS])
def test_decode_gives_the_text_back(name: str) -> None:
    """Vocabularies that spell every byte promise it for texts without tokens that swallow spaces."""
    tokenizer = tokenizer_of(path_of(name))
    for case in expected(name)["cases"]:
        if case["parse_special"] or "\N{LOWER ONE EIGHTH BLOCK}" in case["text"]:
            continue
        pieces = b"".join(tokenizer.token_bytes(id) for id in tokenizer.encode(case["text"], False))
        if pieces.lstrip() != case["text"].encode().lstrip():
            continue  # llama.cpp drops or changes something: nothing to promise
        assert tokenizer.decode(tokenizer.encode(case["text"])) == case["text"]


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("smollm2-135m-instruct", {"<|im_end|>", "<|endoftext|>", "<reponame>"}),
        ("gemma-3-270m", {"<eos>", "<end_of_turn>", "</s>"}),
        ("llama-bpe", {"<|end_of_text|>", "<|eot_id|>"}),
        ("phi-3", {"</s>", "<|end|>", "<|endoftext|>"}),
        ("starcoder", {"<|endoftext|>", "<fim_pad>"}),
    ],
)
def test_end_tokens(name: str, ends: set[str]) -> None:
    """What llama.cpp's ``llama_vocab_is_eog`` says of every token."""
    tokenizer = tokenizer_of(path_of(name))
    assert {tokenizer.token_text(id) for id in tokenizer.eog_ids} == ends


def test_bos_is_there_once_where_it_is_wanted_once() -> None:
    tokenizer = tokenizer_of(path_of("llama-spm"))
    assert tokenizer.encode("<s>Hello", parse_special=True) == [1, 1, 15043]  # as llama.cpp
    assert tokenizer.encode_prompt("<s>Hello", parse_special=True) == [1, 15043]
    assert tokenizer.encode_prompt("Hello") == [1, 15043]
    assert tokenizer.encode_prompt("<s>") == tokenizer.encode("<s>")
    assert tokenizer.encode_parts([("<s>", False), ("Hello", True)]) == [1, 15043]


@pytest.mark.parametrize("name", ["llama-spm", "deepseek-llm"])
def test_time_grows_with_the_length_only(name: str) -> None:
    """100 KB of anything in a second or so; a quadratic step would take minutes."""
    import time

    tokenizer = tokenizer_of(path_of(name))
    tokenizer.encode("warm")
    size = 100_000
    cjk = "\u4e2d\u6587\u5b57\u7b26\u6f22"
    for text in ("a" * size, " " * size, "\n" * size, "<" * size, "7" * size, cjk * (size // 15)):
        start = time.process_time()
        tokenizer.encode(text, parse_special=True)
        assert time.process_time() - start < 5
