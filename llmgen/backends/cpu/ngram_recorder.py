"""Embeddings of several tokens as steps of a program: rows are found by one thread, then each head's are read."""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.layout import FIELDS
from llmgen.backends.cpu.kernels.ngram_arguments import CONTROL_BYTES, row_block_bytes
from llmgen.backends.cpu.plan import EVERYTHING, At, Value
from llmgen.backends.cpu.recorder import Recorder
from llmgen.backends.cpu.states import PlacedRecurrent
from llmgen.model.ngrams import NGrams
from llmgen.model.weights import Matrix


class NGramRecorder(Recorder):
    """The part of the vocabulary that is about several tokens together."""

    def embed_ngrams(self, w: Matrix, ngrams: NGrams, state: PlacedRecurrent) -> Value:
        block = Value(0, row_block_bytes(ngrams.n_heads, self.max_tokens), 1, False, "rows of n-grams")
        keep = self.binding.keep
        self.emit(
            "ngrams:rows",
            [(block, block.partition, True)],
            size=ngrams.size,
            heads=ngrams.n_heads,
            heads_each=ngrams.n_heads // (ngrams.size - 1),
            multipliers=keep(np.array(ngrams.multipliers, np.uint64)),
            offsets=keep(np.array(ngrams.offsets, np.int64)),
            rows=keep(np.array(ngrams.rows, np.int64)),
            end=ngrams.end,
            state_at=state.offset,
            room=self.max_tokens,
            block=block,
        )
        out = self.whole_tokens(ngrams.n_heads * w.n_cols)
        for head in range(ngrams.n_heads):
            here, control = _part(out, 4 * head * w.n_cols), _part(block, head * CONTROL_BYTES)
            self._put_rows(w, FIELDS["ids"], 1.0, out, here, [(block, EVERYTHING, False)], control=control)
        return out


def _part(value: Value, nbytes: int) -> At:
    """The address of a value and some bytes more."""
    return At(value, lambda thread, n_threads: nbytes)
