"""``llmgen plan``: which kind of KV cache a model should have here, why, and how generated tokens read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.common.loading import compiling, measuring
from llmgen.cli.common.model_options import EngineOptions, plan_options
from llmgen.cli.common.models import ModelArgument, model_path
from llmgen.cli.common.options import JsonOption
from llmgen.cli.terminal.output import print_json, size, table
from llmgen.model.decode_config import STREAMS, DecodeConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmgen.api_decode import PlannedReading
    from llmgen.engine.kv_plan import Candidate, Plan

_RIGHT = tuple(range(1, 8))


@plan_options
def command(
    model: ModelArgument,
    again: Annotated[
        bool, typer.Option("--again", help="Measure, also where a kept result still holds.")
    ] = False,
    json: JsonOption = False,
    *,
    engine: EngineOptions,
) -> None:
    """Measure which kind of KV cache a model should have on this computer, and how it is read fastest.

    Kinds that fit into the budget are compared with f16 over a short text, and those that pass
    the gates are timed. --kv-type auto takes the result, which is kept for a while, and --decode-plan auto
    what was found out about reading.

    In the table: bytes of the whole context; by how much the mean of -ln p grows, the ratio of perplexities, the mean
    KL divergence, how often the likeliest token stays the same; the rank of a fact that is hidden in a long
    prompt; and the milliseconds of a generated token at the end of the context.
    """
    path = model_path(model)

    from llmgen.api_decode import planned_readings
    from llmgen.api_kv import plan_for
    from llmgen.gguf import GGUFFile
    from llmgen.model.kv_config import KVAutoConfig
    from llmgen.tokenizer.model_text import ModelText

    config = engine.kv_type
    assert isinstance(config, KVAutoConfig)
    with GGUFFile.open(path) as file, compiling() as progress, measuring() as report:
        text = ModelText(file, None, lambda: None)
        plan = plan_for(
            *(file, lambda: text.working_tokenizer, engine.n_ctx, engine.n_threads, config, again),
            report=report,
            progress=progress,
            rope_scaling=engine.rope_scaling,
        )
        readings = planned_readings(
            *(file, plan, config, engine.decode_plan or DecodeConfig(), engine.n_threads, again),
            progress=progress,
            rope_scaling=engine.rope_scaling,
        )
    if json:
        from llmgen.engine.kv_plan_file import plan_as_dict

        print_json({**plan_as_dict(plan), "decode": [one.as_dict() for one in readings]})
        return
    _print(plan)
    _print_readings(readings)


def _print(plan: Plan) -> None:
    """A table that a terminal of 80 columns shows without breaking numbers, and why one was chosen."""
    head = ("KV cache", "context", "NLL +", "ppl x", "mean KL", "same", "fact", "ms", "")
    if not plan.candidates:
        print(plan.reason)
        return
    table(head, [_row(candidate, plan) for candidate in plan.candidates], right=_RIGHT)
    print()
    for candidate in plan.candidates:  # too long for a column
        if candidate.failed:
            print(f"{candidate.kinds} fails: {'; '.join(candidate.failed)}")
    budget = "as much as it likes" if plan.budget_bytes is None else f"at most {size(plan.budget_bytes)}"
    print(f"{plan.chosen} for {plan.n_ctx} tokens ({budget}): {plan.reason}")


def _print_readings(readings: Sequence[PlannedReading]) -> None:
    measured = [one for one in readings if one.measured is not None]
    if not measured:
        return
    head = ("context", *(f"{n} stream{'s' if n > 1 else ''}, ms" for n in STREAMS), "")
    print()
    table(head, [_reading_row(one) for one in measured], right=tuple(range(1, 1 + len(STREAMS))))


def _reading_row(one: PlannedReading) -> tuple[str, ...]:
    assert one.measured is not None
    where = f"over {one.above}" if one.up_to is None else f"up to {one.up_to}"
    taken = one.measured.seconds
    figures = (f"{1000 * taken[n]:.2f}" if n in taken else "" for n in STREAMS)
    return (where, *figures, f"{one.measured.reading.streams} chosen")


def _row(candidate: Candidate, plan: Plan) -> tuple[Any, ...]:
    q = candidate.quality
    figures = (
        ("", "", "", "")
        if q is None
        else (*(f"{q.delta_nll:+.4f}", f"{q.ppl_ratio:.4f}", f"{q.mean_kl:.1e}", f"{q.same_top:.0%}"),)
    )
    rank = "" if candidate.needle_rank is None else str(candidate.needle_rank)
    speed = "" if candidate.step_seconds is None else f"{1000 * candidate.step_seconds:.2f}"
    context = size(candidate.bytes_per_context)
    return (str(candidate.kinds), context, *figures, rank, speed, _verdict(candidate, plan))


def _verdict(candidate: Candidate, plan: Plan) -> str:
    if candidate.kinds == plan.chosen:
        return "chosen" if plan.passed else "chosen, fails"
    if not candidate.fits:
        return "too big"
    return "fails" if candidate.failed else ""
