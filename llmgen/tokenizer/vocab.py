"""The vocabulary of a model file: spellings, types, scores and special ids, checked.

Keys and token types: docs/gguf.md in the ggml repository.  What the special tokens do
by default, and which spellings end a generation, follows llama.cpp (src/llama-vocab.cpp),
for which the files are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from llmgen.errors import TokenizerError, shown
from llmgen.gguf import StringArray

PREFIX = "tokenizer.ggml."
BYTE_SPELLINGS = [b"<0x%02X>" % byte for byte in range(256)]
"""The spellings of the tokens for single bytes."""
_MAX_TOKEN_BYTES = 1 << 16
# Twice what the largest known vocabularies have: Gemma 4's 262,144 tokens and 514,906 merges.
_MAX_ITEMS = {"tokens": 1 << 19, "merges": 1 << 20}
_MAX_TEXT_BYTES = 1 << 25
_AGAIN = "convert the model again, or get it from elsewhere"


class TokenType(IntEnum):
    """What a token is for; values outside this list count as UNDEFINED."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass
class Vocabulary:
    """Tokens by id.

    ``raw`` has the spellings as in the file; ``ids`` maps them to ids (a spelling that occurs
    twice to the last one, an empty one to none).
    ``types`` is uint8 [n_vocab] of TokenType, ``scores`` float32 [n_vocab] or None.
    """

    kind: str
    raw: list[bytes]
    types: np.ndarray[Any, np.dtype[np.uint8]]
    scores: np.ndarray[Any, np.dtype[np.float32]] | None
    metadata: Mapping[str, Any]
    ids: dict[bytes, int] = field(init=False)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = dict(zip(self.raw, range(len(self.raw)), strict=True))
        self.ids.pop(b"", None)

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def has_duplicates(self) -> bool:
        """Whether two tokens share a spelling, or one has none."""
        return len(self.ids) != len(self.raw)

    def find(self, spelling: str) -> int | None:
        """The id of a spelling, None if there is none."""
        return self.ids.get(spelling.encode())

    def byte_ids(self) -> list[int | None]:
        """The token of each of the 256 bytes; warns if only some have one."""
        ids = [self.ids.get(spelling) for spelling in BYTE_SPELLINGS]
        if None in ids and (n_known := 256 - ids.count(None)):
            missing = BYTE_SPELLINGS[ids.index(None)].decode()
            self.warnings.append(
                f"the vocabulary has tokens for {n_known} of the 256 bytes, but none that is spelled {missing}: "
                "characters that need it are lost; get another conversion of the model"
            )
        return ids

    def of_type(self, *types: TokenType) -> list[int]:
        """The ids of all tokens of these types, ascending."""
        return [int(i) for i in np.flatnonzero(np.isin(self.types, [kind.value for kind in types]))]

    def flag(self, name: str, default: bool) -> bool:
        """The truth value ``tokenizer.ggml.NAME``."""
        value = self.metadata.get(PREFIX + name, default)
        if not isinstance(value, (bool, int)):
            raise _wrong(name, value, "a truth value")
        return bool(value)

    def special_id(self, name: str, default: int | None = None) -> int | None:
        """The id ``tokenizer.ggml.NAME_token_id``; one outside the vocabulary counts as absent."""
        key = f"{name}_token_id"
        value = self.metadata.get(PREFIX + key)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int):
                raise _wrong(key, value, "a token id")
            if 0 <= value < len(self):
                return value
            # Writers store "none" as -1, which an unsigned field shows as 2**32 - 1.
            if value not in (-1, 0xFFFFFFFF):
                self.warnings.append(
                    f"{PREFIX}{key} is {value}, but the vocabulary has {len(self)} tokens: ignored"
                )
        return default if default is not None and default < len(self) else None


def read_vocabulary(metadata: Mapping[str, Any], kind: str) -> Vocabulary:
    """Read the tokens of a file; raises TokenizerError if they are inconsistent."""
    raw = _strings(metadata, "tokens")
    if raw is None:
        raise TokenizerError(
            f"the file names the tokenizer {shown(kind)} but has no {PREFIX}tokens: it cannot turn text "
            f"into tokens; {_AGAIN}"
        )
    if not raw:
        raise TokenizerError(f"{PREFIX}tokens is empty, expected at least one token; {_AGAIN}")
    longest = max(map(len, raw))
    if longest > _MAX_TOKEN_BYTES:
        raise TokenizerError(f"a token of {longest:,} bytes, expected at most {_MAX_TOKEN_BYTES:,}; {_AGAIN}")
    return Vocabulary(kind, raw, _types(metadata, len(raw)), _scores(metadata, len(raw)), metadata)


def read_merges(metadata: Mapping[str, Any]) -> list[bytes] | None:
    """The merges of a BPE vocabulary, best first, or None."""
    return _strings(metadata, "merges")


def read_text(metadata: Mapping[str, Any], name: str) -> str | None:
    """The string ``tokenizer.ggml.NAME``, or None."""
    value = metadata.get(PREFIX + name)
    if value is not None and not isinstance(value, str):
        raise _wrong(name, value, "a string")
    return value


def _strings(metadata: Mapping[str, Any], name: str) -> list[bytes] | None:
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if isinstance(value, StringArray):
        _check_size(name, value)
        return list(value.iter_raw())
    if isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value):
        return [text.encode("utf-8", "replace") for text in value]
    raise _wrong(name, value, "a list of strings")


def _check_size(name: str, strings: StringArray) -> None:
    """Refuse a list whose lookup tables would take gigabytes of memory."""
    for found, limit, what in (
        (len(strings), _MAX_ITEMS[name], "entries"),
        (strings.nbytes, _MAX_TEXT_BYTES, "bytes"),
    ):
        if found > limit:
            raise TokenizerError(f"{PREFIX}{name} has {found:,} {what}, expected at most {limit:,}; {_AGAIN}")


def _numbers(metadata: Mapping[str, Any], name: str, n_tokens: int) -> np.ndarray[Any, Any] | None:
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iuf":
        raise _wrong(name, value, "a list of numbers")
    if len(value) < n_tokens:
        raise TokenizerError(
            f"{PREFIX}{name} has {len(value):,} entries, expected one for each of "
            f"{n_tokens:,} tokens; {_AGAIN}"
        )
    return value[:n_tokens]


def _types(metadata: Mapping[str, Any], n_tokens: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    values = _numbers(metadata, "token_type", n_tokens)
    if values is None:
        return np.full(n_tokens, TokenType.NORMAL.value, np.uint8)
    known = (values >= 0) & (values <= max(TokenType).value)
    return np.where(known, values, TokenType.UNDEFINED.value).astype(np.uint8)


def _scores(metadata: Mapping[str, Any], n_tokens: int) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    values = _numbers(metadata, "scores", n_tokens)
    if values is None:
        return None
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise TokenizerError(f"{PREFIX}scores has a NaN, expected numbers; {_AGAIN}")
    return values.astype(np.float32)


def _wrong(name: str, value: object, expected: str) -> TokenizerError:
    return TokenizerError(f"{PREFIX}{name} is {shown(value)}, expected {expected}; {_AGAIN}")
