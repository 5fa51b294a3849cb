"""PLaMo 2's tokenizer: the cheapest sequence of tokens, in whole numbers.

Like unigram, but scores are rounded to 1/10,000, the text is read from its end, of two
ways with equal cost the one with the longer token wins, and a character that no token
spells becomes its bytes.  After llama.cpp (``llm_tokenizer_plamo2``).
"""

from __future__ import annotations

import math
from functools import cached_property

from llmgen.errors import TokenizerError
from llmgen.tokenizer.vocab import BYTE_SPELLINGS, TokenType, Vocabulary
from llmgen.tokenizer.words import WordTable

_UNKNOWN_COST = 10_000_000
_WORST_COST = 20_000_000
"""A token that costs this or more is never used."""

_BYTE_ORDER_MARK = "\ufeff"


class CheapestPathModel:
    """Encodes plain text; special tokens are found before it comes here."""

    def __init__(self, vocab: Vocabulary) -> None:
        """Raises TokenizerError where one of the 256 byte tokens is missing."""
        self._vocab = vocab
        self._types = vocab.types.tolist()  # as in the file, before corrections
        missing = next((spelling for spelling in BYTE_SPELLINGS if spelling not in vocab.ids), None)
        if missing is not None:
            raise TokenizerError(
                f"the vocabulary has no token {missing.decode()}, expected one for each of the 256 bytes; "
                "convert the model again, or get it from elsewhere"
            )
        self._byte_ids = [vocab.ids[spelling] for spelling in BYTE_SPELLINGS]

    @cached_property
    def _costs(self) -> dict[str, tuple[int, int]]:
        """Id and cost of every token that a text can contain."""
        scores = self._vocab.scores
        out: dict[str, tuple[int, int]] = {}
        for raw, id in self._vocab.ids.items():
            score = 0.0 if scores is None else float(scores[id]) * 1e4
            if self._types[id] == TokenType.BYTE or not math.isfinite(score):
                continue
            cost = -int(math.copysign(math.floor(abs(score) + 0.5), score))
            if cost < _WORST_COST:
                out[raw.decode("utf-8", "replace")] = (id, cost)
        return out

    @cached_property
    def _words(self) -> tuple[WordTable[str], list[int]]:
        """The tokens that a text can contain, and the cost of each."""
        table = WordTable(self._costs)
        return table, [self._costs[word][1] for word in table.words]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; a byte order mark at its beginning is dropped."""
        text = text.removeprefix(_BYTE_ORDER_MARK)
        sizes = self._sizes(text)
        out: list[int] = []
        position = 0
        while position < len(text):
            size = sizes[position]
            if size:
                out.append(self._costs[text[position : position + size]][0])
            else:
                out += [self._byte_ids[byte] for byte in text[position].encode()]
            position += size or 1
        return out

    def _sizes(self, text: str) -> list[int]:
        """For every position, the length of the first token on the cheapest way to the end, or 0."""
        n = len(text)
        best = [0] * (n + 1)
        sizes = [0] * n
        table, costs = self._words
        for start in range(n - 1, -1, -1):
            cheapest, chosen = math.inf, 0
            found = table.longest(text, start)
            while found >= 0:
                size = len(table.words[found])
                if best[start + size] + costs[found] < cheapest:
                    cheapest, chosen = best[start + size] + costs[found], size
                found = table.shorter[found]
            if best[start + 1] + _UNKNOWN_COST < cheapest:
                cheapest, chosen = best[start + 1] + _UNKNOWN_COST, 0
            best[start], sizes[start] = int(cheapest), chosen
        return sizes
