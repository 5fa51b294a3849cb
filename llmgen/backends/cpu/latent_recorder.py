"""Latent attention as steps of a program: products with a matrix for each head, attention over contents."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from llmgen.backends.cpu.attention_recorder import AttentionRecorder
from llmgen.backends.cpu.binding import BoundMatrix
from llmgen.backends.cpu.kernels.kv import attention_kernel
from llmgen.backends.cpu.kernels.layout import KEY_GROUP, chosen_scratch, latent_scratch
from llmgen.backends.cpu.partitions import floats_bytes, share
from llmgen.backends.cpu.plan import EVERYTHING, Access, At, Each, Value
from llmgen.backends.cpu.states import PlacedKV
from llmgen.model.weights import Matrix, Vector


def _shift(nbytes: int) -> Callable[[int, int], int]:
    """The same bytes for every thread."""
    return lambda thread, n_threads: nbytes


class LatentRecorder(AttentionRecorder):
    """The part of the vocabulary that is about latent attention."""

    def attend_latent(
        self,
        content: Value,
        position: Value | None,
        state: PlacedKV,
        n_heads: int,
        cap: float = 0.0,
        sinks: Vector | None = None,
        chosen: Value | None = None,
    ) -> Value:
        scores: dict[str, Any] = {
            "cap": float(cap),
            "sinks": 0 if sinks is None else self.binding.vector(sinks),
        }
        if chosen is not None:
            partition = ("chosen", state.key_offset)
            out = self.value(n_heads * state.value_dim, private=False, partition=partition)
            self._attend_latent("chosen", (content, position), state, n_heads, scores, out, chosen)
            return out
        return self._attended_latent((content, position), state, n_heads, scores)

    @abstractmethod
    def _attended_latent(
        self, q: tuple[Value, Value | None], state: PlacedKV, n_heads: int, scores: dict[str, Any]
    ) -> Value:
        """``attend_latent``; scores: the kernel's arguments that change the scores."""

    def _attend_latent(
        self,
        role: str,
        q: tuple[Value, Value | None],
        state: PlacedKV,
        n_heads: int,
        scores: dict[str, Any],
        out: Value,
        chosen: Value | None = None,
    ) -> None:
        """Emit a role's attention kernel over a latent cache, in which each thread computes its own part of ``out``."""
        content, position = q
        sizes = state.key_dim, state.value_dim
        nbytes = chosen_scratch(*sizes) if chosen else latent_scratch(*sizes, self.split_tokens)
        scratch = self.scratch(nbytes)
        accesses: list[Access] = [
            *((part, EVERYTHING, False) for part in q if part is not None),
            (self._cache_written, EVERYTHING, False),
            (out, out.partition, True),
            (scratch, EVERYTHING, True),
        ]
        if chosen is not None:
            accesses.append((chosen, EVERYTHING, False))
        self.emit(
            attention_kernel(role, state.keys.key, state.values.key, "latent"),
            accesses,
            q=content,
            **({"q_position": 0, "q_position_stride": 0} if position is None else {"q_position": position}),
            group=n_heads,
            **self._cached(state),
            **scores,
            out=out,
            scratch=scratch,
            **({"chosen": 0, "chosen_stride": 0} if chosen is None else {"chosen": chosen}),
        )

    def choose_keys(self, q: Value, weights: Value | Vector, state: PlacedKV, n_heads: int, k: int) -> Value:
        groups = -(-self.n_ctx // KEY_GROUP)
        units = ("key scores", state.key_offset)
        scores = Value(0, 4 * KEY_GROUP * groups, self.max_tokens, False, units)
        scratch = self.scratch(4 * KEY_GROUP * state.key_dim)
        seen, control = self._keys_seen(state)
        factors: dict[str, Any] = {"weights": weights}
        reads: list[Access] = [(q, EVERYTHING, False)]
        if isinstance(weights, Value):
            reads.append((weights, EVERYTHING, False))
        else:
            factors = {"weights": self.binding.vector(weights), "weights_stride": 0}
        self.emit(
            f"indexer:scores_{state.keys.key}",
            [
                *seen,
                *reads,
                (self._cache_written, EVERYTHING, False),
                (scores, units, True),
                (scratch, EVERYTHING, True),
            ],
            q=q,
            **factors,
            heads=n_heads,
            key_dim=state.key_dim,
            k_at=state.key_offset,
            out=scores,
            scratch=scratch,
            **control,
        )
        k = min(k, self.n_ctx // state.every)
        out = Value(0, -(-(1 + k) // 8) * 64, self.max_tokens, False, units)
        counts = self.scratch(8 * 256)
        self.emit(
            "indexer:choose",
            [*seen, (scores, EVERYTHING, False), (out, EVERYTHING, True), (counts, EVERYTHING, True)],
            scores=scores,
            k=k,
            out=out,
            scratch=counts,
            **control,
        )
        return out

    def _keys_seen(self, state: PlacedKV) -> tuple[list[Access], dict[str, Any]]:
        """What says how many keys each token sees of a state: accesses and arguments of a step."""
        return [], {}

    def linear_heads(self, x: Value, w: Sequence[Matrix], turned: bool = False) -> Value:
        n = w[0].n_cols if turned else w[0].n_rows
        out = self.value(len(w) * n, private=False, partition=("heads of", len(w), n))
        bound = [self.binding.matrix(matrix) for matrix in w]
        if turned:
            for head, matrix in enumerate(bound):
                self._turned(x, matrix, head, out)
            return out
        inputs = [self._head_activations(x, matrix, head) for head, matrix in enumerate(bound)]
        for head, (activations, matrix) in enumerate(zip(inputs, bound, strict=True)):
            if n % 16 == 0:
                self._head_product(activations, matrix, out, 4 * n * head)
            else:  # kernels write whole vectors
                alone = self.value(n, private=False, partition=out.partition)
                self._head_product(activations, matrix, alone, 0)
                self._put_head(alone, head, out)
        return out

    def _put_head(self, x: Value, head: int, out: Value) -> None:
        """Copy x to where a head stands in ``out``."""
        self.emit(
            "pointwise:copy",
            [(x, EVERYTHING, False), (out, out.partition, True)],
            x=x,
            out=At(out, _shift(4 * x.n * head)),
            n=Each(lambda thread, n_threads: 0 if thread else x.n),
            split_tokens=0,
        )

    @abstractmethod
    def _head_activations(self, x: Value, w: BoundMatrix, head: int) -> Any:
        """What w, the matrix of head ``head``, is multiplied by."""

    @abstractmethod
    def _head_product(self, x: Any, w: BoundMatrix, out: Value, at: int) -> None:
        """Emit w times x, written to ``out`` from byte ``at`` of each token on."""

    def _turned(self, x: Value, w: BoundMatrix, head: int, out: Value) -> None:
        """Emit head ``head`` of x times w; the threads share out the blocks of w's rows."""
        block, n_blocks = w.kernels.block, w.n_cols // w.kernels.block
        first, last = share(n_blocks, max(1, 32 // block))
        scratch = self.scratch((w.n_rows + 1) * floats_bytes(w.n_cols))
        self.emit(
            w.kernels.turned,
            [(x, EVERYTHING, False), (out, out.partition, True), (scratch, EVERYTHING, True)],
            weights=w.address,
            row_bytes=w.row_bytes,
            rows=w.n_rows,
            first=Each(first),
            last=Each(last),
            block=block,
            x=At(x, _shift(4 * w.n_rows * head)),
            out=At(out, _shift(4 * w.n_cols * head)),
            scratch=scratch,
        )
