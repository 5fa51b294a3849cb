"""Several answers to one prompt: independent samples, or the beams of a search."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmgen.cli.common import exits
from llmgen.cli.common.endings import note_cuts
from llmgen.cli.common.stats import note_stats, note_totals
from llmgen.cli.terminal.output import note, print_json
from llmgen.cli.terminal.plain import print_answer
from llmgen.cli.terminal.progress import Bar, PromptBar, clear

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.engine import (
        Beam,
        BeamOptions,
        GenerationEvent,
        GenerationResult,
        Request,
        SamplingParams,
    )

SEPARATOR = "---"
Head = Callable[["GenerationResult"], dict[str, Any]]
"""What the JSON of an answer begins with."""


@dataclass(frozen=True)
class Form:
    """How answers are printed."""

    json: bool
    head: Head
    wraps: bool
    after_label: bool
    """Whether the prompt ends with a label such as ``Assistant:``, which a blank follows."""
    stats: bool = False
    """Whether figures follow on stderr."""


def print_samples(
    llm: LLM,
    ids: list[int],
    sampling: SamplingParams,
    n: int,
    form: Form,
) -> int:
    """Print ``n`` answers with the seeds s, s + 1, ... in that order; returns the exit code.

    After Ctrl-C or an error, the answers so far are printed; the error is raised again.
    """
    from llmgen.engine import Request
    from llmgen.sampling.rng import random_seed

    seed = random_seed() if sampling.seed is None else sampling.seed
    requests = (Request(ids, sampling.with_(seed=(seed + i) % 2**64), i) for i in range(n))
    results: dict[int, GenerationResult] = {}
    interrupted, started = False, time.perf_counter()
    bar, prompt, tokens = Bar(f"{n} answers:", unit="tokens"), PromptBar(), 0

    def count(request: Request, event: GenerationEvent) -> None:
        nonlocal tokens
        tokens += event.token_id is not None
        bar.update(tokens)

    try:
        for answer in llm.batch(requests, on_event=count, on_prompt=lambda _, *done: prompt(*done)):
            if answer.result is not None:
                results[answer.request.key] = answer.result
            if answer.error is not None:
                raise answer.error
    except KeyboardInterrupt as error:
        cut = {answer.request.key: answer.result for answer in getattr(error, "result", ())}
        results.update({key: result for key, result in cut.items() if result is not None})
        interrupted = True
    finally:
        clear()
        _print([results[i] for i in sorted(results)], form)
        if form.stats and results:
            note_totals(results.values(), llm.model, time.perf_counter() - started)
        else:
            note_cuts(list(results.values()), llm.n_ctx)
        if results and sampling.seed is None and not sampling.greedy and not form.json:
            note(f"seeds {seed} to {seed + max(results)}")
    reasons = [result.finish_reason for result in results.values()]
    return exits.INTERRUPTED if interrupted else exits.exit_code(reasons)


def _print(results: list[GenerationResult], form: Form) -> None:
    if form.json:
        if results:
            print_json(
                {
                    **form.head(results[0]),
                    **results[0].as_dict(),
                    "samples": [result.as_dict() for result in results],
                }
            )
        return
    for i, result in enumerate(results):
        if i:
            sys.stdout.write(f"{SEPARATOR}\n")
        print_answer(result.text, form.wraps, form.after_label)


def print_beams(
    llm: LLM,
    ids: list[int],
    sampling: SamplingParams,
    options: BeamOptions,
    form: Form,
) -> int:
    """Print the best answer of a beam search, as JSON all of them; returns the exit code.

    After Ctrl-C or an error, the answers so far are printed; the error is raised again.
    """
    from llmgen.engine import BeamSearch

    search = BeamSearch(llm.model, llm.tokenizer, ids, sampling, options, on_prompt=PromptBar())
    try:
        search.run()
    except KeyboardInterrupt:
        if search.found:
            _print_found(search.found, form)
        return exits.INTERRUPTED
    except BaseException:
        clear()
        if any(beam.result.token_ids for beam in search.found):
            _print_found(search.found, form)
        raise
    clear()
    _print_found(search.found, form)
    best = [beam.result for beam in search.found[:1]]
    if form.stats and best:
        note_stats(best[0], llm.model)
    else:
        note_cuts(best, llm.n_ctx)
    return exits.exit_code([result.finish_reason for result in best])


def _print_found(found: list[Beam], form: Form) -> None:
    if form.json:
        print_json(
            {**form.head(found[0].result), **found[0].as_dict(), "beams": [beam.as_dict() for beam in found]}
        )
    else:
        print_answer(found[0].result.text, form.wraps, form.after_label)
