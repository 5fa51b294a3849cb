"""``kv_type="auto"``: which kind of KV cache a model gets, from a kept plan or by measuring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from llmgen.backends.cpu.dry_run import dry_run
from llmgen.backends.cpu.kernels.kv import attention_kernel, store_kernel
from llmgen.backends.cpu.machine import machine
from llmgen.backends.cpu.memory import available_bytes
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.runtime.cpu import target
from llmgen.backends.cpu.runtime.library import KernelLibrary, Progress
from llmgen.backends.cpu.runtime.threads import default_threads
from llmgen.backends.cpu.states import StateLayout
from llmgen.engine.interfaces import TokenizerLike
from llmgen.engine.kv_measure import probe
from llmgen.engine.kv_plan import (
    CANDIDATES,
    REFERENCE,
    Candidate,
    Open,
    Plan,
    Report,
    check_passed,
    choose,
    nothing_to_choose,
)
from llmgen.engine.kv_plan_file import default_file, keep, kept, measuring_alone, plan_key, warn_not_kept
from llmgen.errors import LLMGenError, UnsupportedModelError
from llmgen.gguf import GGUFFile
from llmgen.model.fingerprint import fingerprint
from llmgen.model.kv_config import AUTO, KVAutoConfig, KVCacheConfig

_log = logging.getLogger(__name__)

Tokenizers = Callable[[], TokenizerLike | None]


def plan_for(
    file: GGUFFile,
    tokenizer: Tokenizers,
    n_ctx: int | None,
    n_threads: int | None,
    config: KVAutoConfig,
    again: bool = False,
    report: Report = lambda kinds, done, total: None,
    progress: Progress | None = None,
    rope_scaling: str | None = None,
) -> Plan:
    """The plan for a file: a kept one that still holds, unless ``again``, else a new one, which is kept.

    n_ctx, n_threads, progress, rope_scaling: as for ``Model.load``; ``tokenizer``: called where the model has
    to be measured.  While another process measures, this one waits, and takes its plan if that holds here.
    A measured plan that cannot be kept is returned with a warning, but a ``config.plan_file`` that cannot be used
    is refused before anything is measured.  Raises LLMGenError.
    """
    decoder, layout = dry_run(file, n_ctx, n_threads=n_threads, rope_scaling=rope_scaling)
    if not layout.bytes_per_token:
        return nothing_to_choose(layout.n_ctx)
    if not decoder.causal:
        raise UnsupportedModelError(
            f"KV cache kinds are measured over generated tokens, and {decoder.architecture} models write by diffusion; "
            "name a kind (--kv-type)"
        )
    threads = default_threads() if n_threads is None else n_threads
    budget, path = _budget(config), config.plan_path or default_file()
    where = machine(target().level, threads)
    key = plan_key(fingerprint(file), where, layout.n_ctx, config, rope_scaling)
    plan = None if again else _kept(path, key, budget, config)
    if plan is not None:
        return plan
    with _measuring(path, config, report):
        plan = None if again else _kept(path, key, budget, config)  # by the process that measured meanwhile
        if plan is not None:
            return plan
        sized = _sized(layout, budget)
        KernelLibrary.for_level(None).require(_kernels([c.kinds for c in sized if c.fits]), progress)
        what = probe(tokenizer(), decoder.vocab_size, layout.n_ctx, config.probe_tokens, config.probe_steps)
        opened = _opening(file, layout.n_ctx, threads, rope_scaling)
        plan = choose(opened, sized, what, layout.n_ctx, budget, config, report)
        try:
            keep(path, key, config, plan)
        except LLMGenError as error:
            warn_not_kept(error)
    return check_passed(plan, config)


def _kept(path: Path, key: str, budget: int | None, config: KVAutoConfig) -> Plan | None:
    """The kept plan that holds."""
    plan = None
    with _needed_if_named(config):
        plan = kept(path, key, budget, config)
    if plan is None:
        return None
    _log.debug("KV cache %s, from %s: %s", plan.chosen, path, plan.reason)
    return check_passed(plan, config)


@contextmanager
def _measuring(path: Path, config: KVAutoConfig, report: Report) -> Iterator[None]:
    """While no other process measures."""

    def waiting() -> None:
        report(None, 0, 0)

    with ExitStack() as stack:
        with _needed_if_named(config):
            stack.enter_context(measuring_alone(path, waiting))
        yield


@contextmanager
def _needed_if_named(config: KVAutoConfig) -> Iterator[None]:
    """A plan file that was asked for must be usable; the user's own is a cache, and measuring goes without it."""
    try:
        yield
    except LLMGenError as error:
        if config.plan_file is not None:
            raise
        _log.debug("measuring without a plan file: %s", error)


def _opening(file: GGUFFile, n_ctx: int, n_threads: int, rope_scaling: str | None) -> Open:
    """How the model is opened with a cache of given kinds, to be measured."""

    @contextmanager
    def opened(kinds: KVCacheConfig) -> Iterator[Model]:
        # weights that moved between the runs would favour the kinds that are measured last
        model = Model.load(file, n_ctx, n_threads, kinds, rope_scaling=rope_scaling, load="mmap")
        try:
            yield model
        finally:
            model.close()

    return opened


def _sized(layout: StateLayout, budget: int | None) -> list[Candidate]:
    """The candidates with their sizes."""
    sized = []
    for kinds in CANDIDATES:
        other = layout.of_kind(kinds)
        size = other.bytes_for(layout.n_ctx)
        sized.append(Candidate(kinds, other.bytes_per_token, size, budget is None or size <= budget))
    return sized


def _kernels(candidates: Sequence[KVCacheConfig]) -> list[str]:
    """What the candidates need beside the kernels of the model; compiled at once, with one progress."""
    names = []
    for kinds in (REFERENCE, *candidates):
        names += [attention_kernel(role, kinds.k, kinds.v) for role in ("blocks", "tiles")]
        names.append(store_kernel(kinds.k, kinds.v))
    return list(dict.fromkeys(names))


def _budget(config: KVAutoConfig) -> int | None:
    """Bytes that the cache may take; None if nothing is known of the memory."""
    if config.budget_bytes is not None:
        return config.budget_bytes
    free = available_bytes()
    return None if free is None else free // 2


def resolved(
    file: GGUFFile,
    tokenizer: Tokenizers,
    n_ctx: int | None,
    n_threads: int | None,
    kinds: str | KVCacheConfig | KVAutoConfig,
    report: Report | None = None,
    progress: Progress | None = None,
    rope_scaling: str | None = None,
) -> tuple[str | KVCacheConfig, int | None, Plan | None]:
    """The kinds and the context that are asked for; where the kinds are to be chosen, with the plan."""
    config = KVAutoConfig() if kinds == AUTO else kinds
    if not isinstance(config, KVAutoConfig):
        return config, n_ctx, None
    plan = plan_for(
        *(file, tokenizer, n_ctx, n_threads, config),
        report=report or (lambda kinds, done, total: None),
        progress=progress,
        rope_scaling=rope_scaling,
    )
    return plan.chosen, plan.n_ctx, plan
