"""Open a model for a command, with progress on stderr while the user waits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmgen.cli.common.guessing import with_path
from llmgen.cli.common.model_options import EngineOptions
from llmgen.cli.terminal.output import note, size
from llmgen.cli.terminal.progress import Bar, clear
from llmgen.cli.terminal.settings import can_draw
from llmgen.hub.running import registered
from llmgen.hub.state import note_use
from llmgen.model.rope_option import MOST_FACTOR

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.backends.cpu.model import Model
    from llmgen.engine import SpeculativeConfig
    from llmgen.engine.kv_plan import Plan
    from llmgen.tokenizer import ChatTemplate


@contextmanager
def open_llm(
    path: Path,
    engine: EngineOptions,
    template: ChatTemplate | None = None,
    guessing: SpeculativeConfig | None = None,
) -> Iterator[LLM]:
    """Load the model at ``path``, with ``template`` instead of the file's; it is closed at the end of the block.

    ``guessing``: the draft model is loaded beside it.
    """
    from llmgen import LLM

    guessing = with_path(guessing)
    with compiling() as progress, measuring() as report:
        llm = LLM(
            path,
            **engine.given(),
            chat_template=template,
            speculation=guessing,
            progress=progress,
            kv_report=report,
        )
    warn_of_plan(llm.kv_plan)
    _warn_of_context(llm)
    note_local_window(llm.model)
    _note_size([model for model in (llm.model, llm.draft_model) if model is not None])
    try:
        with in_use(path, llm.model):
            yield llm
    finally:
        llm.close()


def _warn_of_context(llm: LLM) -> None:
    """Say so if the context is longer than the model's positions reach, and what would stretch them."""
    config, n_ctx = llm.config, llm.n_ctx
    if n_ctx <= config.reach:
        return
    scaling = config.rope_scaling
    made = f"this model was made for {config.context_length}"
    if scaling.asked:
        made += f", which --rope-scaling makes {config.reach}"
    hint = ""
    if llm.model.stretchable and n_ctx <= scaling.original_context * MOST_FACTOR:
        kind = scaling.kind if scaling.asked and scaling.kind != "none" else "yarn"
        factor = -(-n_ctx // scaling.original_context)
        hint = f"; --rope-scaling {kind}:{factor} stretches its positions as far"
    note(
        f"warning: a context of {n_ctx} tokens (-c), and {made}: "
        f"text after the first {config.reach} tokens may make no sense{hint}"
    )


def note_local_window(model: Model) -> None:
    """Say so if generated tokens see only a part of the keys."""
    if local := model.decode_plan.local_window:
        note(
            f"note: generated tokens see only the first 64 keys and the last {local} (--decode-local-window), "
            "an approximation: what lies between is not found"
        )


def local_window(model: Model) -> dict[str, int]:
    """The local window as a part of a JSON object; empty where all keys are seen."""
    local = model.decode_plan.local_window
    return {"decode_local_window": local} if local else {}


def reading(model: Model, length: int) -> dict[str, Any]:
    """How generated tokens read a cache of that length, as a part of a JSON object; empty where that cannot matter."""
    if not model.readings.matter:
        return {}
    found, measured = model.readings.at(length)
    return {"decode_reading": {**vars(found), "measured": measured}}


def cache_kinds(llm: LLM) -> dict[str, Any]:
    """Of what kinds the KV cache is, and if that was measured with what result, as a part of a JSON object."""
    plan = llm.kv_plan
    result = {} if plan is None else {"kv_plan": {"passed": plan.passed, "reason": plan.reason}}
    return {"kv_type": llm.model.kv_type, **result}


def warn_of_plan(plan: Plan | None) -> None:
    """Say so if the kind of KV cache that was chosen fails a gate."""
    if plan is not None and not plan.passed:
        note(f"warning: KV cache: {plan.reason}")


def _note_size(models: Sequence[Model]) -> None:
    """Say so if the weights are larger than the memory that is free: they are read from their map then."""
    from llmgen.backends.cpu import memory

    free, needed = memory.available_bytes(), sum(model.weight_bytes for model in models)
    if free is not None and needed > free:
        whose = "the weights" if len(models) == 1 else "the weights of the model and its draft"
        note(
            f"note: {whose} take {size(needed)} and {size(free)} of memory are free, so parts of them "
            "are read from the disk again and again, which is slow; a smaller model or type is faster"
        )


@contextmanager
def in_use(path: Path, model: Model) -> Iterator[None]:
    """Have `llmgen ps` list this process, and `llmgen list` the time of the use."""
    note_use(path)
    with registered(" ".join(sys.argv[1:2]), path) as registration:
        if registration is not None:
            model.on_run = registration.count
        try:
            yield
        finally:
            model.on_run = None


@contextmanager
def measuring() -> Iterator[Callable[[object, int, int], None]]:
    """Show that kinds of KV cache are being measured: a bar on a terminal, else one line; and that it has to wait."""
    bar: Bar | None = None
    waits = False

    def report(kinds: object, done: int, total: int) -> None:
        nonlocal bar, waits
        if kinds is None:
            if not waits:
                note("waiting for another llmgen, which measures KV cache kinds")
            waits = True
            return
        if bar is None:
            bar = Bar(_MEASURING, total)
            if not can_draw():
                note(f"{_MEASURING}: {total} candidates")
        bar.update(done)

    try:
        yield report
    finally:
        clear()


_MEASURING = "measuring KV cache kinds on this model"
_WHAT = "compiling kernels for this CPU (first use)"


@contextmanager
def compiling() -> Iterator[Callable[[int, int], None]]:
    """Show the progress of compiling kernels, if any are missing: a bar on a terminal, else one line."""
    bar: Bar | None = None

    def progress(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and done < total:
            bar = Bar(_WHAT, total)
            if not can_draw():
                note(f"{_WHAT}: {total - done} to do")
        if bar is not None:
            bar.update(done)

    try:
        yield progress
    finally:
        clear()
