"""SentencePiece unigram: the sequence of tokens with the best sum of scores (T5 and kin).

Taku Kudo, Subword Regularization (2018), https://arxiv.org/abs/1804.10959, section 3.2.
Sums, ties and unknown characters are those of llama.cpp (``llm_tokenizer_ugm``).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from llmgen.errors import TokenizerError
from llmgen.tokenizer.charsmap import Charsmap, Prefixes
from llmgen.tokenizer.spm import SPACE
from llmgen.tokenizer.vocab import PREFIX, TokenType, Vocabulary
from llmgen.tokenizer.words import WordTable

_UNKNOWN_PENALTY = 10.0


class UnigramModel:
    """Encodes plain text; special tokens are found before it comes here."""

    def __init__(self, vocab: Vocabulary, unknown_id: int | None) -> None:
        """``unknown_id`` replaces a run of characters that no token spells."""
        if unknown_id is None:
            raise TokenizerError(
                f"the file names no unknown token ({PREFIX}unknown_token_id), which a {vocab.kind} "
                "tokenizer needs; convert the model again, or get it from elsewhere"
            )
        self._unknown_id = unknown_id
        self._vocab = vocab
        self._types = vocab.types.copy()  # as in the file, before corrections
        self._charsmap = Charsmap(vocab.metadata.get(PREFIX + "precompiled_charsmap"))
        self._merges_spaces = vocab.flag("remove_extra_whitespaces", False)
        self._prepends_space = vocab.flag("add_space_prefix", False)
        self.puts_space_in_front = self._merges_spaces or self._prepends_space

    def encode(self, text: str, begins: bool = True) -> list[int]:
        """The token ids of a text; ``begins``: a space may be put in front, as at the beginning of one."""
        spelled = self.normalize(text)
        if not begins and self.puts_space_in_front and not text.startswith(" "):
            spelled = spelled.removeprefix(SPACE)
        data = spelled.encode()
        return self._backtrack(*self._forward(data)) if data else []

    def normalize(self, text: str) -> str:
        """The text as the vocabulary spells it: characters replaced, spaces as U+2581."""
        text = self._charsmap.apply(text, self._keeps)
        if self._merges_spaces:
            return "".join(SPACE + word for word in text.split(" ") if word)
        at = len(text) - len(text.lstrip(" "))
        if self._prepends_space and at < len(text):
            text = text[:at] + " " + text[at:]
        return text.replace(" ", SPACE)

    @cached_property
    def _keeps(self) -> Prefixes:
        """Beginnings of user-defined tokens, which are not replaced."""
        tokens = [self._vocab.raw[id] for id in np.flatnonzero(self._types == TokenType.USER_DEFINED.value)]
        return Prefixes(token.decode("utf-8", "replace") for token in tokens)

    @cached_property
    def _words(self) -> tuple[WordTable[bytes], list[int], list[float]]:
        """The tokens that a text can contain, and the id and score of each."""
        kinds = [kind.value for kind in (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)]
        usable = np.flatnonzero(np.isin(self._types, kinds)).tolist()
        ids = {self._vocab.raw[id]: id for id in usable if self._vocab.raw[id]}
        known = self._vocab.scores
        # scores are logarithms of probabilities: 0 is the most likely
        scores = np.zeros(len(self._vocab)) if known is None else known.astype(float)
        scores[self._types == TokenType.USER_DEFINED.value] = 0.0
        table = WordTable(ids)
        in_order = [ids[word] for word in table.words]
        return table, in_order, scores[in_order].tolist()

    @cached_property
    def _unknown_score(self) -> float:
        normal = np.flatnonzero(self._types == TokenType.NORMAL.value)
        if self._vocab.scores is None or not len(normal):
            return -_UNKNOWN_PENALTY
        return float(self._vocab.scores[normal].min() - np.float32(_UNKNOWN_PENALTY))

    def _forward(self, data: bytes) -> tuple[list[int], list[int]]:
        """For every position in ``data``, the last token of the best path to it, and where the token starts."""
        n = len(data)
        best = [float("-inf")] * (n + 1)
        best[0] = 0.0
        tokens = [self._unknown_id] * (n + 1)
        starts = [0] * (n + 1)
        table, ids, scores = self._words
        start = 0
        while start < n:
            here = best[start]
            width = _width(data[start])
            spelled = False
            found = table.longest(data, start)
            while found >= 0:
                size = len(table.words[found])
                spelled = spelled or size == width
                if here + scores[found] > best[start + size]:
                    best[start + size] = here + scores[found]
                    tokens[start + size], starts[start + size] = ids[found], start
                found = table.shorter[found]
            after = start + width
            if not spelled and here + self._unknown_score > best[after]:
                best[after] = here + self._unknown_score
                tokens[after], starts[after] = self._unknown_id, start
            start = after
        return tokens, starts

    def _backtrack(self, tokens: list[int], starts: list[int]) -> list[int]:
        """The tokens of the best path to the end; a run of unknown ones counts once."""
        out: list[int] = []
        end = len(tokens) - 1
        while end:
            if tokens[end] != self._unknown_id or out[-1:] != [self._unknown_id]:
                out.append(tokens[end])
            end = starts[end]
        return out[::-1]


def _width(first: int) -> int:
    """The bytes of the UTF-8 character that starts with this byte."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
