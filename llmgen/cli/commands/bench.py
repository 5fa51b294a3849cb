"""``llmgen bench``: tokens per second, next to what the machine's memory allows."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.config import configurable
from llmgen.cli.models import ModelArgument, model_path
from llmgen.cli.options import THREADS_VARIABLE
from llmgen.cli.output import print_json, size, table
from llmgen.errors import UsageError

if TYPE_CHECKING:
    from llmgen.cli.benchmark import Plan, Report, Row


@configurable
def command(
    model: ModelArgument,
    n_prompt: Annotated[
        int, typer.Option("-p", "--n-prompt", min=0, help="Prompt tokens; 0 leaves the test out.")
    ] = 512,
    n_generate: Annotated[
        int, typer.Option("-n", "--n-gen", min=0, help="Generated tokens; 0 leaves the test out.")
    ] = 128,
    depths: Annotated[
        str, typer.Option("-d", "--depth", metavar="N,...", help="Tokens already in the context.")
    ] = "0",
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", min=1, help="Runs of each test.")] = 5,
    threads: Annotated[
        str | None,
        typer.Option(
            *("-t", "--threads"),
            metavar="N,...",
            help="Threads.",
            show_default="usable physical cores",
            envvar=THREADS_VARIABLE,
        ),
    ] = None,
    kv_type: Annotated[
        str | None, typer.Option("--kv-type", help="Type of the KV cache: f32 or f16.", show_default="f16")
    ] = None,
    no_kv_cache: Annotated[
        bool,
        typer.Option("--no-kv-cache", help="Generate by recomputing the whole prefix for each token."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="The table as CSV on stdout.")] = False,
) -> None:
    """Measure prompt processing (pp) and generation (tg) in tokens per second.

    The mean and the standard deviation of the repetitions; for generation also the
    bytes of weights read per second, and their share of what plain reading reaches
    on this machine with the same threads. No text is sampled: the tokens are random.
    """
    if json and as_csv:
        raise UsageError("--json and --csv exclude each other; give one of them")
    if n_prompt == n_generate == 0:
        raise UsageError("-p 0 and -n 0 leave nothing to measure; give one of them a number of tokens")
    thread_counts = [None] if threads is None else _numbers("--threads", threads, least=1)
    all_depths = tuple(_numbers("--depth", depths, least=0))
    path = model_path(model)

    from llmgen.cli.benchmark import Plan

    plan = Plan(n_prompt, n_generate, all_depths, repetitions, kv_cache=not no_kv_cache)
    reports = []
    with _ticker() as tick:
        for count in thread_counts:
            reports.append(_measure(path, plan, count, kv_type, tick))
    if json:
        print_json({"model": path.name, **_machine(), "runs": [_as_dict(report) for report in reports]})
    elif as_csv:
        _print_csv(path, reports)
    else:
        _print_table(path, reports)


def _numbers(flag: str, text: str, least: int) -> list[int]:
    """Read ``0,4096``."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise UsageError(
            f"{flag} must be whole numbers of at least {least} with commas between, not {text!r}"
        )
    return numbers


def _measure(
    path: Path, plan: Plan, threads: int | None, kv_type: str | None, tick: Callable[[str], None]
) -> Report:
    """Load the model with so many threads and run every test."""
    from llmgen.cli.benchmark import Bench, Report, read_bandwidth
    from llmgen.gguf import GGUFFile
    from llmgen.model import Model

    with GGUFFile.open(path) as file:
        tick("loading")
        started = time.perf_counter()
        options: dict[str, Any] = {"kv_type": kv_type} if kv_type else {}
        model = Model.load(file, n_ctx=plan.n_ctx, n_threads=threads, **options)
        try:
            load_s = time.perf_counter() - started
            tick("memory bandwidth")
            report = Report(
                model.n_threads, load_s, read_bandwidth(model.n_threads), model.kv_bytes_per_token
            )
            bench = Bench(model, file, plan, tick)
            report.rows.extend(bench.rows())
            report.extras |= bench.first_token_and_sampler()
            report.extras |= bench.cache_speedup()
        finally:
            model.close()
    return report


@contextmanager
def _ticker() -> Iterator[Callable[[str], None]]:
    """Show on a terminal's stderr what is being measured."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(text)


def _machine() -> dict[str, str]:
    from llmgen.cli.versions import cpu_name, kernel_level

    return {"cpu": cpu_name(), "kernel_level": kernel_level()}


def _columns(report: Report, row: Row) -> dict[str, Any]:
    """One row of the table as numbers."""
    rate = row.weight_rate
    return {
        "test": row.test,
        "threads": row.threads,
        "depth": row.depth,
        "tokens_per_s": row.mean,
        "spread": row.spread,
        "weight_gb_per_s": rate and rate / 1e9,
        "read_gb_per_s": report.read_rate / 1e9,
        "share_of_read": rate and rate / report.read_rate,
    }


def _as_dict(report: Report) -> dict[str, Any]:
    return {
        "threads": report.threads,
        "load_s": report.load_s,
        "read_gb_per_s": report.read_rate / 1e9,
        "kv_bytes_per_token": report.kv_bytes_per_token,
        "tests": [{**_columns(report, row), "samples": list(row.rates)} for row in report.rows],
        **report.extras,
    }


def _print_csv(path: Path, reports: list[Report]) -> None:
    rows = [{"model": path.name, **_columns(report, row)} for report in reports for row in report.rows]
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})


def _print_table(path: Path, reports: list[Report]) -> None:
    machine = _machine()
    table(
        ("test", "threads", "depth", "tokens/s", "±", "weights GB/s", "of plain read"),
        [_cells(_columns(report, row)) for report in reports for row in report.rows],
        title=f"{path.name} on {machine['cpu']} ({machine['kernel_level']})",
        right=range(1, 7),
    )
    for report in reports:
        for line in _remarks(report):
            print(line)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["test"],
        str(row["threads"]),
        str(row["depth"]),
        f"{row['tokens_per_s']:.1f}",
        f"{row['spread']:.1f}",
        "" if row["weight_gb_per_s"] is None else f"{row['weight_gb_per_s']:.1f}",
        "" if row["share_of_read"] is None else f"{row['share_of_read']:.0%}",
    ]


def _remarks(report: Report) -> list[str]:
    """The figures that are no test of their own."""
    extras = report.extras
    return [
        f"{report.threads} thread{'s' if report.threads > 1 else ''}: "
        f"plain read {report.read_rate / 1e9:.1f} GB/s, loaded in {report.load_s:.2f} s",
        f"  first token of a {extras['prompt_tokens']:.0f}-token prompt "
        f"after {extras['first_token_s']:.3f} s; "
        f"sampler {extras['sampler_share']:.1%} of a step",
        f"  KV cache {size(report.kv_bytes_per_token)} per token; at 256 tokens a step is "
        f"{extras['speedup']:.1f} times faster with it than recomputing "
        f"({extras['cached_step_s'] * 1e3:.1f} ms, {extras['recomputed_step_s'] * 1e3:.1f} ms)",
    ]
