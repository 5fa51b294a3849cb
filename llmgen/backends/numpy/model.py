"""A model that numpy runs, with the same calls as ``llmgen.backends.cpu.model.Model``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llmgen.backends.numpy.functions import Array
from llmgen.backends.numpy.ops import NumpyOps
from llmgen.backends.numpy.run import Matrices, Precision
from llmgen.backends.numpy.states import ContentsState, KVState, RecurrentState
from llmgen.errors import ContextFullError
from llmgen.gguf import GGUFFile
from llmgen.model.archs import read_model
from llmgen.model.runs import Part, Role
from llmgen.model.states import KV, Contents, Latent, State
from llmgen.model.weights import Weights


class NumpySequence:
    """One sequence of tokens with its states; ``length`` tokens are in them."""

    def __init__(self, specs: list[State], dtype: Any) -> None:
        self.length = 0
        self.states = [_new_state(spec, dtype) for spec in specs]

    def truncate(self, n: int) -> None:
        """Cut back to n tokens; raises ContextFullError where a recurrent state has to go back to more than 0."""
        if n != self.length:
            for state in self.states:
                state.cut(n)
        self.length = n

    def clear(self) -> None:
        """Forget all tokens."""
        self.truncate(0)


def _new_state(spec: State, dtype: Any) -> KVState | RecurrentState:
    if isinstance(spec, Latent):  # one head, whose keys are the position parts
        spec = KV(1, spec.position_dim, spec.content_dim, spec.window)
    if isinstance(spec, Contents):
        return ContentsState(spec, dtype)
    return KVState(spec, dtype) if isinstance(spec, KV) else RecurrentState(spec, dtype)


class NumpyModel:
    """Runs one open model file.  n_ctx: tokens of context, by default the model's own."""

    def __init__(self, file: GGUFFile, n_ctx: int | None = None, precision: Precision | None = None) -> None:
        self.config = read_model(file)
        self.n_ctx = n_ctx or self.config.context_length
        self._precision = precision or Precision()
        self._weights, self._matrices = Weights(file), Matrices()

    def new_sequence(self) -> NumpySequence:
        """An empty sequence."""
        return NumpySequence(self.config.states(), self._precision.dtype)

    def forward(
        self, parts: Sequence[Part], role: Role = "prompt", read: Callable[[Array], Any] = np.copy
    ) -> Any:
        """Append tokens to sequences; see ``llmgen.backends.cpu.model.Model.forward``.

        The roles do not differ here, and all tokens get logits.  Raises ContextFullError.
        """
        rows = [self._part(part) for part in parts]
        return read(np.concatenate(rows))

    def _part(self, part: Part) -> Array:
        seq, ids = part.seq, np.asarray(part.ids, np.int64)
        if seq.length + len(ids) > self.n_ctx:
            raise ContextFullError(
                f"{seq.length + len(ids)} tokens do not fit into a context of {self.n_ctx}"
            )
        ops = NumpyOps(self._matrices, self._precision, self.n_ctx, ids, seq.length, part.n_logits)
        self.config.forward(ops, self._weights, seq.states)
        seq.length += len(ids)
        return ops.result

    def logits(self, ids: Sequence[int] | Array, n_past: int = 0) -> Array:
        """The logits after each token of a fresh sequence from the n_past-th on: float32 [n, n_vocab]."""
        result: Array = self.forward([Part(self.new_sequence(), ids, len(ids) - n_past)])
        return result
