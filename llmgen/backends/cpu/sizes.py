"""The sizes that a model is opened with: its context, its threads, the tokens of a run."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from llmgen.backends.cpu.kernels.layout import MAX_COLUMNS, TILE_TOKENS
from llmgen.backends.cpu.memory import available_bytes, check_recurrent, free_bytes
from llmgen.backends.cpu.runtime.threads import MAX_THREADS, default_threads
from llmgen.backends.cpu.states import UNBOUNDED, PlacedKV, StateLayout
from llmgen.errors import UsageError, shown
from llmgen.model.decode_config import DecodePlan
from llmgen.model.decoder import Decoder
from llmgen.model.keys import MAX_CONTEXT
from llmgen.model.kv_config import KVCacheConfig

CHUNK = 512
"""The most prompt tokens in one run."""
WHOLE = 4096
"""The same for models without causal order, whose texts are computed in one run."""
_LOGITS_BYTES = 1 << 26  # a run of a prompt gives logits for fewer tokens where all would exceed this
_LEAST_CONTEXT = 2048  # tokens; a smaller default is never chosen


def chosen_sizes(
    config: Decoder, kinds: KVCacheConfig, n_ctx: int | None, n_threads: int | None, copied: int = 0
) -> tuple[int, int]:
    """The context and the number of threads, chosen where they are None.  Raises UsageError for impossible ones.

    copied: bytes of memory that the weights will take.
    """
    n_ctx = default_context(config, kinds, copied) if n_ctx is None else _whole("the context (n_ctx)", n_ctx)
    n_threads = default_threads() if n_threads is None else _whole("threads (n_threads)", n_threads)
    check_sizes(n_ctx, n_threads)
    return n_ctx, n_threads


def check_sizes(n_ctx: int | None, n_threads: int | None) -> None:
    """Raises UsageError for a context or a number of threads that no model takes; None is always right."""
    if n_ctx is not None and not 1 <= n_ctx <= MAX_CONTEXT:
        raise UsageError(f"the context is {shown(n_ctx)} tokens, expected 1 to {MAX_CONTEXT} (-c)")
    if n_threads is not None and not 1 <= n_threads <= MAX_THREADS:
        raise UsageError(f"{shown(n_threads)} threads were asked for, expected 1 to {MAX_THREADS} (-t)")


def _whole(name: str, value: object) -> int:
    """A whole number of any type; UsageError for anything else."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise UsageError(f"{name} must be a whole number, not {value!r}")


def longest_run(config: Decoder, n_ctx: int) -> int:
    """The most prompt tokens in one run of a model with this context, whole tiles."""
    return min(CHUNK if config.causal else WHOLE, -(-n_ctx // TILE_TOKENS) * TILE_TOKENS)


def most_outputs(config: Decoder, chunk: int) -> int:
    """The most tokens of a run whose logits may be wanted, of ``chunk``; without causal order all of them."""
    return max(MAX_COLUMNS, min(chunk, _LOGITS_BYTES // (4 * config.vocab_size))) if config.causal else chunk


def checked_layout(config: Decoder, n_ctx: int, kinds: KVCacheConfig) -> StateLayout:
    """Where the states of a sequence lie.  Raises as ``check_recurrent`` does."""
    layout = StateLayout(config.states(), n_ctx, longest_run(config, n_ctx), kinds)
    check_recurrent(layout.bytes_for(0))
    return layout


def check_local(plan: DecodePlan, layout: StateLayout, kernels: Iterable[str]) -> None:
    """Raises UsageError for a local window that some of a model's attention would not keep, or that would be idle."""
    if not plan.local_window:
        return
    others = {name.partition(":")[0] for name in kernels} & {"latent", "sparse", "indexer"}
    whole = any(isinstance(state, PlacedKV) and state.window == UNBOUNDED for state in layout.states)
    if others or not whole:
        what = f"{others.pop()} attention" if others else "no layer that sees all keys"
        raise UsageError(
            f"this model has {what}, on which a local window has no effect; leave --decode-local-window out"
        )


def default_context(config: Decoder, kinds: KVCacheConfig, copied: int = 0) -> int:
    """The context that the model reaches, halved until its cache takes at most half of the free memory.

    copied: bytes of memory that the weights will take before.
    """
    n_ctx = config.reach
    free = available_bytes()
    if free is not None and copied:
        free = max(0, min(free, (free_bytes() or free) - copied))
    while free is not None and n_ctx > _LEAST_CONTEXT:
        layout = StateLayout(config.states(), n_ctx, longest_run(config, n_ctx), kinds)
        if layout.bytes_for(n_ctx) <= free // 2:
            break
        n_ctx = max(n_ctx // 2, _LEAST_CONTEXT)
    return n_ctx
