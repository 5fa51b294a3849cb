"""The arguments of the steps for attention to chosen blocks of keys; see arguments.py, whose words hold here too."""

from __future__ import annotations

from typing import Any, NamedTuple

from llmgen.backends.cpu.kernels.arguments import TABLES


class ScoreBlocks(NamedTuple):
    """block_choice:scores: out[token][head][block] = the largest q . key of the block's keys that the token sees."""

    q: Any  # float32 [tokens][heads][key_dim]
    q_stride: Any
    heads: Any
    key_dim: Any
    k_at: Any  # bytes from a sequence's cache to the keys, those of one head
    block: Any  # keys of a block
    out: Any  # float32 [tokens][heads][blocks]
    out_stride: Any
    head_stride: Any  # bytes from one head's scores to the next
    scratch: Any  # float32 [key_dim][KEY_GROUP]
    control: Any


class ChooseBlocks(NamedTuple):
    """block_choice:choose: the k blocks of each head with the largest scores."""

    scores: Any  # ScoreBlocks.out
    scores_stride: Any
    head_stride: Any
    heads: Any
    block: Any
    local: Any  # so many blocks, the token's own the last, come before all others
    k: Any
    out: Any  # int64 [tokens][heads][1 + k]: how many, then their numbers, ascending
    out_stride: Any
    out_head_stride: Any
    scratch: Any  # int64 [256]
    control: Any


class AttendBlocks(NamedTuple):
    """sparse: as ``Attend``, over the blocks that each kv head has chosen."""

    q: Any
    q_stride: Any
    n_kv: Any
    group: Any
    key_dim: Any
    value_dim: Any
    k_at: Any
    v_at: Any
    blocks: Any  # key blocks that the layer keeps
    cap: float
    sinks: Any
    chosen: Any  # ChooseBlocks.out
    chosen_stride: Any
    head_stride: Any
    block: Any
    out: Any  # float32 [tokens][heads * value_dim]
    out_stride: Any
    scratch: Any  # SCORE_BYTES, the states and the queries of ``group`` rows
    control: Any


TABLES.update({"block_choice": ScoreBlocks, "block_choice:choose": ChooseBlocks, "sparse": AttendBlocks})
