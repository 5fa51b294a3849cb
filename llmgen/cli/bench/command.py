"""``llmgen bench``: tokens per second, next to what the machine's memory allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from llmgen import hub
from llmgen.backends.cpu.runtime.threads import MAX_THREADS
from llmgen.cli.bench.report import Format, Report, report_for
from llmgen.cli.common.config import configurable
from llmgen.cli.common.guessing import check_draft, with_path
from llmgen.cli.common.guessing_options import guessing_options
from llmgen.cli.common.loading import (
    compiling,
    in_use,
    local_window,
    measuring,
    note_local_window,
    warn_of_plan,
)
from llmgen.cli.common.model_options import EngineOptions, bench_options
from llmgen.cli.common.models import complete_model, model_path
from llmgen.cli.common.options import THREADS_VARIABLE
from llmgen.cli.terminal.output import note
from llmgen.cli.terminal.progress import Bar
from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.errors import LLMGenError, UsageError
from llmgen.model.decode_config import DecodeConfig
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen.backends.cpu.model import Model
    from llmgen.cli.bench.measure import Bench, Plan, Run, Test
    from llmgen.gguf import GGUFFile

_T = TypeVar("_T")
_MOST = 2**31 - 1
_PROMPT, _GENERATE = "512", "128"


@configurable
@bench_options
@guessing_options
def command(
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Paths of .gguf files, or names that `llmgen list` shows.",
            autocompletion=complete_model,
            show_default=False,
        ),
    ],
    n_prompt: Annotated[
        str | None,
        typer.Option(
            *("-p", "--n-prompt"),
            metavar="N,...",
            help="Tests of a prompt of N tokens; 0 for none.",
            show_default=f"{_PROMPT}; none beside -pg",
        ),
    ] = None,
    n_generate: Annotated[
        str | None,
        typer.Option(
            *("-n", "--n-gen"),
            metavar="N,...",
            help="Tests of N generated tokens; 0 for none.",
            show_default=f"{_GENERATE}; none beside -pg",
        ),
    ] = None,
    prompt_generate: Annotated[
        list[str] | None,
        typer.Option(
            "-pg", "--pg", metavar="P,N", help="A test of P prompt and then N generated tokens (repeatable)."
        ),
    ] = None,
    depths: Annotated[
        str, typer.Option("-d", "--depth", metavar="N,...", help="Tokens already in the context.")
    ] = "0",
    repetitions: Annotated[
        int, typer.Option("-r", "--repetitions", metavar="N", min=1, help="Runs of each test.")
    ] = 5,
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
    no_kv_cache: Annotated[
        bool,
        typer.Option("--no-kv-cache", help="Generate by recomputing the whole prefix for each token."),
    ] = False,
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Also the time to the first token, the sampler's share of a step, and what the cache saves.",
        ),
    ] = False,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format", help="How the results are written.", show_default="table", show_choices=True
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="The same as --format csv.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE.svg",
            help="Draw tokens per second over depth and threads (.svg, .png or .pdf; needs llmgen[plot]).",
        ),
    ] = None,
    *,
    engine: EngineOptions,
    guessing: SpeculativeConfig | None,
) -> None:
    """Measure prompt processing (pp) and generation (tg) in tokens per second.

    It prints the mean and the standard deviation of the repetitions; for generation also the
    bytes of weights read per second, their share of what plain reading reaches
    on this machine with the same threads, and the shares of a token's processor time that storing
    keys and values and attending to them take. No text is sampled: the tokens are random.
    With --draft or --lookup it also measures how fast three texts are written with guesses and without.
    Ctrl-C ends it and keeps the tests that are done.
    """
    chosen = _format(form, json, as_csv)
    if guessing is not None and chosen not in (Format.TABLE, Format.MD, Format.JSON):
        raise UsageError(
            f"what --draft and --lookup gain is told by --format table, md or json, not by {chosen.value}"
        )
    check_draft(guessing)
    counts = [None] if threads is None else _numbers("--threads", threads, 1, MAX_THREADS)
    all_depths = _numbers("--depth", depths, least=0)
    pairs = _pairs(n_prompt, n_generate, prompt_generate or [])
    if plot is not None:
        from llmgen.cli.bench import plot as bench_plot

        bench_plot.check(plot, all_depths, counts)
    for name in model:
        hub.find(name)  # refuse a wrong name before anything is fetched or measured

    from llmgen.cli.bench.guessing import check
    from llmgen.cli.bench.measure import Plan, Test

    tests = tuple(Test(*pair, depth) for depth in all_depths for pair in pairs)
    guessing = with_path(guessing)
    plan = Plan(tests, repetitions, kv_cache=not no_kv_cache, details=details, guessing=guessing)
    work = _Work(plan, engine, report_for(chosen, plan), [])
    paths = [model_path(name) for name in model]
    if guessing is not None:
        check(paths, guessing)
    trouble = work.run([(path, count) for path in paths for count in counts])
    runs = [run for run in work.runs if run.rows]
    if runs:
        work.report.end(runs, complete=trouble is None)
        if plot is not None:
            bench_plot.draw(plot, runs)
            note(f"drawn: {visible(plot)}")
    if trouble is not None:
        raise trouble


def _format(form: Format | None, json: bool, as_csv: bool) -> Format:
    given = {form} if form is not None else set()
    given |= {Format.JSON} if json else set()
    given |= {Format.CSV} if as_csv else set()
    if len(given) > 1:
        raise UsageError("--format, --json and --csv exclude each other; give one of them")
    return given.pop() if given else Format.TABLE


def _numbers(flag: str, text: str, least: int, most: int = _MOST) -> list[int]:
    """Read ``0,4096``; a repeated number counts once."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least or max(numbers) > most:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise UsageError(
            f"{flag} must be whole numbers from {least} to {most} with commas between, not {shown!r}"
        )
    return list(dict.fromkeys(numbers))


def _pairs(n_prompt: str | None, n_generate: str | None, both: list[str]) -> list[tuple[int, int]]:
    """The prompt and generated tokens of each test, the defaults included."""
    prompts = _numbers("-p", n_prompt or ("0" if both else _PROMPT), least=0)
    generated = _numbers("-n", n_generate or ("0" if both else _GENERATE), least=0)
    pairs = [*((n, 0) for n in prompts if n), *((0, n) for n in generated if n)]
    for text in both:
        pair = _numbers("-pg", text, least=1) if text.count(",") == 1 else []
        if not pair:
            raise UsageError(f"-pg must be prompt and generated tokens, such as 512,128, not {text[:40]!r}")
        pairs.append((pair[0], pair[-1]))  # equal numbers count once
    if not pairs:
        raise UsageError("-p 0 and -n 0 leave nothing to measure; give one of them a number of tokens")
    return list(dict.fromkeys(pairs))


@dataclass
class _Work:
    """The tests of all models and thread counts; ``runs`` holds the finished ones, however the work ends."""

    plan: Plan
    engine: EngineOptions
    report: Report
    runs: list[Run]

    def run(self, todo: list[tuple[Path, int | None]]) -> BaseException | None:
        """Measure; returns the error that ended it early, since the finished tests are still worth reporting."""
        try:
            for path, threads in todo:
                self._measure(path, threads)
        except (KeyboardInterrupt, LLMGenError, MemoryError) as error:
            if done := sum(len(run.rows) for run in self.runs):
                note(f"ended after {done} of {len(todo) * len(self.plan.tests)} tests")
            return error
        return None

    def _measure(self, path: Path, threads: int | None) -> None:
        """Load the model with this number of threads and run every test."""
        from llmgen.cli.bench.measure import Bench
        from llmgen.gguf import GGUFFile

        with GGUFFile.open(path) as file:
            model, load_s = self._load(file, threads)
            try:
                run = _begin(path, file, model, self.plan, load_s, self.engine.decode_plan)
                self.runs.append(run)
                with in_use(path, model), Bench(model, file, self.plan) as bench:
                    self._tests(bench, run)
            finally:
                model.close()

    def _load(self, file: GGUFFile, threads: int | None) -> tuple[Model, float]:
        """The model, and the seconds of its loading, without those of a choice of its KV cache."""
        from llmgen.api_decode import settle_readings
        from llmgen.api_kv import resolved
        from llmgen.backends.cpu.model import Model
        from llmgen.tokenizer.model_text import ModelText

        text = ModelText(file, None, lambda: None)
        kinds = self.engine.kv_type or "f16"
        with compiling() as progress, measuring() as report:
            kind, _, chosen = resolved(
                *(file, lambda: text.working_tokenizer, self.plan.n_ctx, threads, kinds, report, progress),
                self.engine.rope_scaling,
            )
            started = time.perf_counter()
            model = Model.load(
                *(file, self.plan.n_ctx, threads, kind, progress),
                rope_scaling=self.engine.rope_scaling,
                decode_plan=self.engine.decode_plan or "auto",
                load=self.engine.load or "auto",
            )
            load_s = time.perf_counter() - started
        model.move_weights()
        note_local_window(model)
        warn_of_plan(chosen)
        settle_readings(model, sorted({t.depth + t.tokens for t in self.plan.tests if t.n_generate}), kinds)
        return model, load_s

    def _tests(self, bench: Bench, run: Run) -> None:
        from llmgen.cli.bench.measure import read_bandwidth

        if self.plan.generates:
            run.read_rate = _watched("memory bandwidth", lambda: read_bandwidth(run.threads))
        for test in self.plan.tests:
            self._test(bench, run, test)
        if self.plan.details:
            run.details = _watched("details", bench.details)
        if self.plan.guessing is not None:
            run.guessed = _watched("guessing", bench.guessing)

    def _test(self, bench: Bench, run: Run, test: Test) -> None:
        what = f"{run.model}: {test.name}" + (f" at {test.depth}" if test.depth else "")
        row = _watched(what, lambda: bench.measure(test))
        run.rows.append(row)
        self.report.row(run, row)


def _begin(
    path: Path, file: GGUFFile, model: Model, plan: Plan, load_s: float, decode: DecodeConfig | None
) -> Run:
    """A run before its tests."""
    from llmgen.cli.bench.measure import Run
    from llmgen.cli.common.summary import describe_file, quantization_name

    facts = describe_file(file)
    return Run(
        model=path.name,
        size=facts["size"],
        parameters=facts["parameters"],
        quantization=quantization_name(file),
        threads=model.n_threads,
        kv_type=model.layout.kv_type,
        kv_bytes_per_token=model.kv_bytes_per_token,
        kv_cache=plan.kv_cache,
        rope_scaling=str(model.config.rope_scaling),
        decode_plan=(decode or DecodeConfig()).plan,
        load_s=load_s,
        local_window=local_window(model),
    )


def _watched(what: str, work: Callable[[], _T]) -> _T:
    """Run ``work`` with a line on the terminal's stderr, which is removed before results are written."""
    with Bar() as bar:
        bar.say(visible(what))
        return work()
