"""Small vocabularies, made in memory, for the tokenizer tests."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from llmgen.gguf import StringArray
from llmgen.tokenizer import Tokenizer

PREFIX = "tokenizer.ggml."
BYTES = [b"<0x%02X>" % byte for byte in range(256)]


def strings(items: list[bytes]) -> StringArray:
    """An array of strings as the reader makes it from a file."""
    blob = bytearray()
    starts = array("q")
    for item in items:
        starts.append(len(blob))
        blob += len(item).to_bytes(8, "little") + item
    starts.append(len(blob))
    return StringArray(bytes(blob), starts)


def metadata(kind: str, tokens: list[bytes], **keys: Any) -> dict[str, Any]:
    """The metadata of a file with this vocabulary; keys without their prefix."""
    return {PREFIX + "model": kind, PREFIX + "tokens": strings(tokens)} | {
        PREFIX + name: strings(value) if isinstance(value, list) else value for name, value in keys.items()
    }


def spm_tokens(*more: str) -> tuple[list[bytes], np.ndarray]:
    """Tokens and types of a SentencePiece vocabulary with all bytes, and these after them."""
    tokens = [b"<unk>", b"<s>", b"</s>", *BYTES, *(text.encode() for text in more)]
    types = np.array([2, 3, 3] + [6] * 256 + [1] * len(more), np.int32)
    return tokens, types


def spm(*more: str, scores: list[float] | None = None, **keys: Any) -> Tokenizer:
    """A tokenizer over ``spm_tokens``; ``scores`` of the further tokens."""
    tokens, types = spm_tokens(*more)
    values = np.array([0.0] * 259 + (scores or [-float(i) for i in range(len(more))]), np.float32)
    return Tokenizer(metadata("llama", tokens, token_type=types, scores=values, **keys))


def byte_level(*merges: str, pre: str = "gpt-2", control: tuple[str, ...] = (), **keys: Any) -> Tokenizer:
    """A GPT-2 style tokenizer: the 256 bytes, what the merges make, and control tokens."""
    from llmgen.tokenizer.bpe import CHAR_TO_BYTE

    tokens = list(CHAR_TO_BYTE) + [merge.replace(" ", "") for merge in merges] + list(control)
    types = np.array([1] * (256 + len(merges)) + [3] * len(control), np.int32)
    return Tokenizer(
        metadata(
            "gpt2",
            [token.encode() for token in tokens],
            token_type=keys.pop("token_type", types),
            merges=[merge.encode() for merge in merges],
            pre=pre,
            **keys,
        )
    )
