"""Attention to chosen blocks of keys as steps of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from llmgen.backends.cpu.attention_recorder import AttentionRecorder
from llmgen.backends.cpu.kernels import sparse_arguments  # noqa: F401 - its tables
from llmgen.backends.cpu.kernels.kv import attention_kernel, spans_scratch
from llmgen.backends.cpu.kernels.layout import KEY_GROUP
from llmgen.backends.cpu.plan import EVERYTHING, Value
from llmgen.backends.cpu.states import PlacedKV
from llmgen.model.weights import Vector


@dataclass(frozen=True)
class ChosenBlocks:
    """The blocks that each head of each token sees: int64 [tokens][heads][1 + k], of ``block`` keys each."""

    numbers: Value
    block: int
    head_stride: int


class SparseRecorder(AttentionRecorder):
    """The part of the vocabulary that is about chosen blocks of keys."""

    def attend(
        self,
        q: Value,
        state: PlacedKV,
        n_heads: int,
        cap: float = 0.0,
        slopes: np.ndarray | None = None,
        sinks: Vector | None = None,
        chosen: ChosenBlocks | Value | None = None,
    ) -> Value:
        if chosen is None:
            return super().attend(q, state, n_heads, cap, slopes, sinks)
        if isinstance(chosen, Value):  # keys are blocks of one, the same for all heads
            chosen = ChosenBlocks(chosen, block=1, head_stride=0)
        assert slopes is None
        assert state.causal
        partition = ("sparse", state.key_offset)
        out = self.value(n_heads * state.value_dim, private=False, partition=partition)
        group = n_heads // state.n_heads
        scratch = self.scratch(spans_scratch(group, state.key_dim, state.value_dim))
        places: dict[str, Any] = self._cached(state)
        del places["window"], places["last"]
        self.emit(
            attention_kernel("chosen", state.keys.key, state.values.key, "sparse"),
            [
                (q, EVERYTHING, False),
                (chosen.numbers, EVERYTHING, False),
                (self._cache_written, EVERYTHING, False),
                (out, partition, True),
                (scratch, EVERYTHING, True),
            ],
            q=q,
            n_kv=state.n_heads,
            group=group,
            **places,
            cap=float(cap),
            sinks=0 if sinks is None else self.binding.vector(sinks),
            chosen=chosen.numbers,
            head_stride=chosen.head_stride,
            block=chosen.block,
            out=out,
            scratch=scratch,
        )
        return out

    def choose_blocks(
        self, q: Value, state: PlacedKV, n_heads: int, block: int, k: int, local: int
    ) -> ChosenBlocks:
        n_blocks = -(-self.n_ctx // block)
        k = min(k, n_blocks)
        units = ("block scores", state.key_offset)
        score_bytes = -(-n_blocks // 16) * 64
        scores = Value(0, n_heads * score_bytes, self.max_tokens, False, units)
        scratch = self.scratch(4 * KEY_GROUP * state.key_dim)
        self.emit(
            f"block_choice:scores_{state.keys.key}",
            [
                (q, EVERYTHING, False),
                (self._cache_written, EVERYTHING, False),
                (scores, units, True),
                (scratch, EVERYTHING, True),
            ],
            q=q,
            heads=n_heads,
            key_dim=state.key_dim,
            k_at=state.key_offset,
            block=block,
            out=scores,
            head_stride=score_bytes,
            scratch=scratch,
        )
        row = -(-(1 + k) // 8) * 64
        out = Value(0, n_heads * row, self.max_tokens, False, units)
        counts = self.scratch(8 * 256)
        self.emit(
            "block_choice:choose",
            [(scores, EVERYTHING, True), (out, EVERYTHING, True), (counts, EVERYTHING, True)],
            scores=scores,
            head_stride=score_bytes,
            heads=n_heads,
            block=block,
            local=local,
            k=k,
            out=out,
            out_head_stride=row,
            scratch=counts,
        )
        return ChosenBlocks(out, block, row)
