"""The arguments of the steps that write the KV cache and attend to it; see arguments.py, whose words hold here too."""

from __future__ import annotations

from typing import Any, NamedTuple

from llmgen.backends.cpu.kernels.arguments import TABLES


class Store(NamedTuple):
    """cache: keys and values of kv heads first..last; those that are not stored are 0."""

    k: Any
    k_stride: Any
    v: Any
    v_stride: Any
    first: Any
    last: Any
    key_dim: Any  # values of a head's key
    value_dim: Any  # numbers of a head's value
    k_at: Any  # bytes from the sequence's cache to this layer's keys
    v_at: Any  # and to its values
    blocks: Any  # key blocks that the layer keeps
    split_tokens: Any
    control: Any


class Attend(NamedTuple):
    """attention: both roles.  Generated tokens leave row states, which ``Combine`` merges."""

    q: Any
    q_stride: Any
    n_kv: Any  # key/value heads
    group: Any  # query heads of each
    key_dim: Any  # values of a head's key
    value_dim: Any
    k_at: Any  # bytes from a sequence's cache to this layer's keys
    v_at: Any  # ... and values
    blocks: Any  # key blocks that the layer keeps
    window: Any  # keys that a query sees; -n: those from the last multiple of n on
    last: Any  # which field of the control block has the last position that a token sees, in bytes from ``control``
    cap: float  # soft cap of the scores, or 0
    slopes: Any  # 0, or float32 [heads]: what a score loses with each position of distance
    sinks: Any  # 0, or float32 [heads]: a score that takes part in the softmax and has no value
    out: Any  # tiles: float32 [tokens][heads * value_dim]; blocks: row states [tokens][n_kv][blocks seen][group]
    out_stride: Any
    scratch: Any  # see attention.py
    control: Any


class Combine(NamedTuple):
    """attention:combine: the row states of each query head -> its result."""

    n_kv: Any
    group: Any
    value_dim: Any
    window: Any  # as in Attend
    last: Any
    states: Any  # Attend.out
    states_stride: Any
    out: Any  # float32 [tokens][heads * value_dim]
    out_stride: Any
    control: Any


class AttendLatent(NamedTuple):
    """latent: as ``Attend``, over a latent cache, whose values are the first part of its keys."""

    q: Any  # float32 [tokens][heads][value_dim], meets the content
    q_stride: Any
    q_position: Any  # float32 [tokens][heads][key_dim], meets the position part
    q_position_stride: Any
    group: Any  # query heads
    key_dim: Any  # values of the position part
    value_dim: Any  # values of the content
    k_at: Any  # bytes from a sequence's cache to this layer's position parts
    v_at: Any  # ... and contents
    blocks: Any
    window: Any
    last: Any
    cap: float
    sinks: Any
    out: Any  # tiles: float32 [tokens][heads * value_dim]; blocks: row states [tokens][blocks seen][heads]
    out_stride: Any
    scratch: Any  # see latent.py
    chosen: Any  # role "chosen": what indexer:choose has left, ChooseKeys.out
    chosen_stride: Any
    control: Any


class ScoreKeys(NamedTuple):
    """indexer:scores: out[token][key] = the sum over heads of weight * max(0, q . key)."""

    q: Any  # float32 [tokens][heads][key_dim]
    q_stride: Any
    weights: Any  # float32 [tokens][heads]
    weights_stride: Any
    heads: Any
    key_dim: Any
    k_at: Any  # bytes from a sequence's cache to the keys
    out: Any  # float32 [tokens][n_ctx in whole groups]
    out_stride: Any
    scratch: Any  # float32 [key_dim][KEY_GROUP]
    control: Any


class ChooseKeys(NamedTuple):
    """indexer:choose: the k keys of each token with the largest scores."""

    scores: Any  # ScoreKeys.out
    scores_stride: Any
    k: Any
    out: Any  # int64 [tokens][1 + k]: how many, then their positions, ascending
    out_stride: Any
    scratch: Any  # int64 [256]
    control: Any


TABLES.update(
    {
        "attention": Attend,
        "attention:combine": Combine,
        "cache": Store,
        "indexer": ScoreKeys,
        "indexer:choose": ChooseKeys,
        "latent": AttendLatent,
    }
)
