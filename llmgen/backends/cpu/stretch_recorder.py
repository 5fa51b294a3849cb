"""Summaries of stretches of tokens as steps of a program, and attention to them.

How many stretches end in a run is known when it runs: a stretch block (kernels/stretch_arguments.py) counts
them, as the control block counts tokens.
"""

from __future__ import annotations

from typing import Any

from llmgen.backends.cpu.kernels.kv import attention_kernel
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, chosen_scratch
from llmgen.backends.cpu.kernels.stretch_arguments import LAST, NUMBER, stretch_bytes
from llmgen.backends.cpu.latent_recorder import LatentRecorder
from llmgen.backends.cpu.partitions import Rows
from llmgen.backends.cpu.plan import EVERYTHING, Access, At, Value
from llmgen.backends.cpu.recurrent_recorder import RecurrentRecorder
from llmgen.backends.cpu.states import PlacedContents, PlacedKV, PlacedRecurrent, row_bytes
from llmgen.model.rope import Rope
from llmgen.model.weights import Vector


class StretchRecorder(LatentRecorder, RecurrentRecorder):
    """The part of the vocabulary that is about summaries."""

    def store(self, k: Value | None, v: Value | None, state: PlacedKV | PlacedContents) -> None:
        if isinstance(state, PlacedKV):
            super().store(k, v, state)
            return
        assert k is not None
        self._cache_written = Value(0, 0, 0, False)
        self._store(state.recent, v=k)

    def summarize(
        self,
        x: Value,
        scores: Value | None,
        state: PlacedRecurrent,
        into: PlacedKV | PlacedContents,
        *,
        offsets: Vector | None = None,
        norm: Vector | None,
        eps: float,
        rope: Rope,
    ) -> None:
        kept = into.summaries if isinstance(into, PlacedContents) else into
        assert kept is not None
        block = self._stretches(kept.every)
        rows = self._sums(x, scores, state, kept.every, offsets, block)
        rows = rows if norm is None else self.rms_norm(rows, norm, eps)
        rows = self.rope(rows, 1, rope)
        part = {"v" if kept.value_dim else "k": rows}
        self._store(kept, **part, control=_control(block, NUMBER))

    def _stretches(self, every: int) -> Value:
        """The stretch block of a run, which each thread fills for itself."""
        block = Value(0, stretch_bytes(self.max_tokens), 1, True)
        self.emit(
            "stretches:count", [(block, EVERYTHING, True)], every=every, room=self.max_tokens, block=block
        )
        return block

    def _sums(
        self,
        x: Value,
        scores: Value | None,
        state: PlacedRecurrent,
        every: int,
        offsets: Vector | None,
        block: Value,
    ) -> Value:
        """The sums of the stretches that end in a run, a row for each."""
        n = state.n
        out = Value(n, -(-n // 16) * 64, self.max_tokens, False, Rows(n), counter=block)
        address = 0 if offsets is None else self.binding.vector(offsets)
        parts: dict[str, Any] = {"x": x, "scores": scores or 0, "offsets": address}
        parts |= dict.fromkeys(("ahead", "ahead_scores", "ahead_offsets"), 0)
        if x.n > n:
            parts |= {"ahead": self.head_part(x, 1, 0, n), "x": self.head_part(x, 1, n, n)}
            if scores is not None:
                ahead, own = (self.head_part(scores, 1, first, n) for first in (0, n))
                parts |= {"ahead_scores": ahead, "scores": own}
            parts |= {"ahead_offsets": address, "offsets": address + 4 * n if address else 0}
        strides = {f"{name}_stride": 0 for name, part in parts.items() if not isinstance(part, Value)}
        del strides["offsets_stride"], strides["ahead_offsets_stride"]
        reads = [self._column_reads(part) for part in parts.values() if isinstance(part, Value)]
        self.emit(
            "stretches:sums",
            [*reads, (out, out.partition, True)],
            **parts,
            **strides,
            offset_row=4 * x.n,
            every=every,
            state_at=state.offset,
            state_row=row_bytes(n),
            out=out,
            **self._own_columns(n),
            control=self.control,
        )
        return out

    def _keys_seen(self, state: PlacedKV) -> tuple[list[Access], dict[str, Any]]:
        if state.every == 1:
            return super()._keys_seen(state)
        block = self._stretches(state.every)
        return [(block, EVERYTHING, False)], {"control": _control(block, LAST)}

    def stretch_tokens(self, chosen: Value, state: PlacedKV) -> Value:
        most = chosen.stride // 8 * state.every
        out = Value(0, -(-(1 + most) // 8) * 64, self.max_tokens, False, ("tokens", state.key_offset))
        accesses: list[Access] = [(chosen, EVERYTHING, False), (out, EVERYTHING, True)]
        self.emit("stretches:tokens", accesses, every=state.every, chosen=chosen, out=out)
        return out

    def attend_contents(
        self,
        q: Value,
        state: PlacedContents,
        n_heads: int,
        sinks: Vector | None = None,
        chosen: Value | None = None,
    ) -> Value:
        recent, blocks = state.recent, sum(part.blocks for part in state.parts)
        seen, dim = self._contents_seen(state, chosen), recent.value_dim
        partition = ("contents", recent.value_offset)
        out, scratch = self.value(n_heads * dim, False, partition), self.scratch(chosen_scratch(0, dim))
        accesses: list[Access] = [(v, EVERYTHING, False) for v in (q, seen, self._cache_written)]
        self.emit(
            attention_kernel("chosen", recent.keys.key, recent.values.key, "latent"),
            [*accesses, (out, partition, True), (scratch, EVERYTHING, True)],
            q=q,
            q_position=q,
            group=n_heads,
            **{**self._cached(recent), "blocks": blocks},
            cap=0.0,
            sinks=0 if sinks is None else self.binding.vector(sinks),
            out=out,
            scratch=scratch,
            chosen=seen,
        )
        return out

    def _contents_seen(self, state: PlacedContents, chosen: Value | None) -> Value:
        """Which contents each token sees: int64 [tokens][1 + most of them]."""
        every = state.summaries.every if state.summaries else 0
        most = min(state.recent.window, self.n_ctx) + (self.n_ctx // every if every else 0)
        seen = Value(0, -(-(1 + most) // 8) * 64, self.max_tokens, False, ("seen", state.recent.value_offset))
        accesses: list[Access] = [(seen, EVERYTHING, True)]
        if chosen is not None:
            accesses.append((chosen, EVERYTHING, False))
        self.emit(
            "stretches:seen",
            accesses,
            window=state.recent.window,
            kept=state.recent.blocks * KEY_BLOCK,
            every=every,
            **({"chosen": 0, "chosen_stride": 0} if chosen is None else {"chosen": chosen}),
            out=seen,
        )
        return seen


def _control(block: Value, which: int) -> At:
    """One of the control blocks of a stretch block."""
    return At(block, lambda thread, n_threads: which)
