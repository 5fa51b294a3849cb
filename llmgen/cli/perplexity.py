"""``llmgen perplexity``: how well a model predicts a text."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.common.loading import open_llm
from llmgen.cli.common.model_options import EngineOptions, cache_options
from llmgen.cli.common.models import ModelArgument, model_path
from llmgen.cli.common.options import THREADS_VARIABLE, JsonOption
from llmgen.cli.common.perplexity import WINDOW, measure_text, read_text
from llmgen.cli.terminal.output import note, print_json

if TYPE_CHECKING:
    from llmgen.engine.perplexity import Perplexity


@cache_options
def command(
    model: ModelArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A text in UTF-8; - reads stdin.")],
    n_ctx: Annotated[
        int | None,
        typer.Option("-c", "--ctx", metavar="N", min=2, help="Tokens of a window.", show_default=f"{WINDOW}"),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option("--stride", metavar="N", min=1, help="Sliding windows, one every N tokens."),
    ] = None,
    chunks: Annotated[
        int | None, typer.Option("--chunks", metavar="N", min=1, help="Use only the first N windows.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            *("-t", "--threads"),
            metavar="N",
            help="Threads.",
            show_default="usable physical cores",
            envvar=THREADS_VARIABLE,
        ),
    ] = None,
    json: JsonOption = False,
    *,
    engine: EngineOptions,
) -> None:
    """Print the mean negative log-likelihood and the perplexity of a text, with one standard error.

    Without --stride the text is cut as by llama.cpp's llama-perplexity: into chunks of -c tokens,
    of which the second half is scored. Ctrl-C prints the figure so far.
    """
    from llmgen.engine.perplexity import check_window, windows

    size = n_ctx or WINDOW
    check_window(size, stride)
    text = read_text(file)
    path = model_path(model)
    with open_llm(path, replace(engine, n_ctx=size, n_threads=threads)) as llm:
        ids = llm.tokenize(text)
        parts = windows(len(ids), size, stride)[:chunks]
        started = time.perf_counter()
        figures, trouble = measure_text(llm, ids, parts)
    if figures is not None:
        facts = _facts(figures, size, stride, len(ids), time.perf_counter() - started)
        _print({**facts, "complete": trouble is None}, json)
    if trouble is not None:
        kind, done = _kind(stride, len(parts)), 0 if figures is None else figures.n_windows
        note(f"ended after {done} of {len(parts)} {kind}")
        raise trouble


def _facts(
    figures: Perplexity, n_ctx: int, stride: int | None, n_text: int, seconds: float
) -> dict[str, Any]:
    return {
        "nll": figures.nll,
        "nll_error": figures.nll_error,
        "perplexity": figures.perplexity,
        "perplexity_error": figures.error,
        "scored_tokens": figures.n_tokens,
        "text_tokens": n_text,
        "windows": figures.n_windows,
        "ctx": n_ctx,
        "stride": stride,
        "seconds": seconds,
    }


def _print(facts: dict[str, Any], json: bool) -> None:
    if json:
        print_json(facts)
        return
    nll_error, error = facts["nll_error"], facts["perplexity_error"]
    kind = _kind(facts["stride"], facts["windows"])
    print(f"perplexity  {facts['perplexity']:.4f}" + ("" if error is None else f" ± {error:.4f}"))
    print(f"mean nll    {facts['nll']:.5f}" + ("" if nll_error is None else f" ± {nll_error:.5f}"))
    print(
        f"tokens      {facts['scored_tokens']} scored of {facts['text_tokens']},"
        f" {facts['windows']} {kind} of {facts['ctx']}"
    )


def _kind(stride: int | None, number: int) -> str:
    return ("chunk" if stride is None else "window") + ("s" if number != 1 else "")
