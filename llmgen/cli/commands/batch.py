"""``llmgen batch``: many prompts, one JSON line out per line in."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli import exits
from llmgen.cli.config import configurable
from llmgen.cli.journal import Journal
from llmgen.cli.loading import open_llm
from llmgen.cli.models import ModelArgument, model_path
from llmgen.cli.options import EngineOptions, model_options, sampling_options
from llmgen.cli.output import note, print_json, visible
from llmgen.cli.requests import Line, failure, identity, parse, read_lines
from llmgen.cli.verbose import VerboseOption, log_if
from llmgen.errors import LLMGenError, UsageError
from llmgen.generation.params import SamplingParams

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.generation import Answer, Request


@configurable
@model_options
@sampling_options
def command(
    model: ModelArgument,
    source: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="The prompts, one JSON object or text a line.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT.jsonl", help="Where the answers go. [default: stdout]"),
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", min=1, max=8, help="Answers computed at the same time.")
    ] = 8,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete texts as they stand, without the chat template.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget the answers of a run that was interrupted.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT.jsonl where it exists.")
    ] = False,
    verbose: VerboseOption = False,
    *,
    engine: EngineOptions,
    sampling: SamplingParams,
) -> None:
    """Complete many prompts, several at a time; one JSON line out per line in, in the same order.

    A line of IN.jsonl is a text, or an object with prompt (a text or token ids) or
    messages, and optionally system, id, and any sampling option under its name. A bad
    line gives a line with "error"; the exit code is then 1. --timeout and --seed hold
    for each line by itself.

    OUT.jsonl appears when all is done. Until then the answers are in OUT.jsonl.part: after
    an interruption the same command goes on from there.
    """
    if raw and system is not None:
        raise UsageError("--system needs the chat template that --raw leaves out; give one of them")
    if output is None and (restart or overwrite):
        raise UsageError("--restart and --overwrite belong to --output; add it, or leave them out")
    if output is not None and output.exists() and not overwrite:
        raise UsageError(f"{output} exists; give another name, or --overwrite to replace it")
    total = sum(1 for _ in read_lines(source))  # before the model is loaded, which takes longer
    log_if(verbose)
    path = model_path(model)
    with open_llm(path, engine) as llm:
        sink: Any = _ToStdout(read_lines(source))
        if output is not None:
            depends_on = {
                "model": f"{path.name} {llm.model.fingerprint[:16]}",
                "ctx": llm.n_ctx,
                "kv_type": llm.model.kv_type,
                "raw": raw,
                "system": system,
                **_as_options(sampling),
            }
            sink = _ToFile(output, depends_on, restart)
        with sink.closing(), _progress(total) as tick:
            code = _Run(llm, sampling, raw, system, sink, tick).run(source, slots, total)
    if code != exits.DONE:
        raise typer.Exit(code)


def _as_options(sampling: SamplingParams) -> dict[str, Any]:
    """The sampling options as JSON gives them back."""
    return {
        name: [list(item) if isinstance(item, tuple) else item for item in value]
        if isinstance(value, tuple)
        else value
        for name, value in asdict(sampling).items()
    }


class _ToStdout:
    """Writes answers in the input's order, each as soon as those before it are there."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._order = (line.number for line in lines)
        self._next = next(self._order, None)
        self._waiting: dict[int, dict[str, Any]] = {}

    def has(self, line: Line) -> bool:
        return False

    def add(self, line: Line, answer: dict[str, Any]) -> None:
        self._waiting[line.number] = answer
        while self._next in self._waiting:
            print_json(self._waiting.pop(self._next))
            self._next = next(self._order, None)
        sys.stdout.flush()

    def finish(self, n_lines: int) -> None:
        pass

    @contextmanager
    def closing(self) -> Iterator[None]:
        yield

    def advice(self) -> str:
        return ""


class _ToFile:
    """Keeps answers in a journal until all are there."""

    def __init__(self, output: Path, depends_on: dict[str, Any], restart: bool) -> None:
        if restart:
            output.with_name(output.name + ".part").unlink(missing_ok=True)
        self._journal = Journal(output, depends_on)

    def has(self, line: Line) -> bool:
        return (line.number, line.digest) in self._journal

    def add(self, line: Line, answer: dict[str, Any]) -> None:
        self._journal.add(line.number, line.digest, answer)

    def finish(self, n_lines: int) -> None:
        self._journal.finish(n_lines)

    @contextmanager
    def closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._journal.close()

    def advice(self) -> str:
        return f"; what is done is in {self._journal.path}, and the same command goes on from there"


@dataclass
class _Run:
    """One pass over the input."""

    llm: LLM
    sampling: SamplingParams
    raw: bool
    system: str | None
    sink: Any
    tick: Callable[[int, int], None]
    answers: int = 0
    tokens: int = 0
    failed: int = 0
    timeouts: int = 0
    started: float = field(default_factory=time.perf_counter)

    def run(self, source: Path, slots: int, total: int) -> int:
        """Answer what has no answer yet; returns the exit code."""
        interrupted = False
        try:
            requests = self._requests(source)
            for answer in self.llm.batch(requests, slots=slots, on_event=self._on_event):
                interrupted = self._take(answer) or interrupted
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            note(f"interrupted after {self.answers} of {total} answers{visible(self.sink.advice())}")
            return exits.INTERRUPTED
        last = max((line.number for line in read_lines(source)), default=-1)
        self.sink.finish(last + 1)
        self._note()
        if self.failed:
            return exits.FAILED
        return exits.TIMEOUT if self.timeouts else exits.DONE

    def _requests(self, source: Path) -> Iterator[Request]:
        """The requests of the lines that are to be done; bad lines are answered at once."""
        from llmgen.generation import Request

        for line in read_lines(source):
            if self.sink.has(line):
                self._count()
                continue
            try:
                ids, params = parse(line, self.llm, self.sampling, self.raw, self.system)
            except LLMGenError as error:
                self._fail(line, error)
                continue
            yield Request(ids, params, line)

    def _take(self, answer: Answer) -> bool:
        """Keep an answer; True for one that an interruption ended, which is for the next run."""
        line: Line = answer.request.key
        if answer.error is not None:
            self._fail(line, answer.error, {} if answer.result is None else answer.result.as_dict())
            return False
        assert answer.result is not None
        if answer.result.finish_reason == "interrupted":
            return True
        self.timeouts += answer.result.finish_reason == "timeout"
        self.sink.add(line, {**identity(line), **answer.result.as_dict()})
        self._count()
        return False

    def _fail(self, line: Line, error: LLMGenError, partial: dict[str, Any] | None = None) -> None:
        self.failed += 1
        note(f"line {line.number + 1}: {visible(error)}")
        self.sink.add(line, {**identity(line), **failure(error), **(partial or {})})
        self._count()

    def _on_event(self, request: Request, event: Any) -> None:
        self.tokens += event.token_id is not None
        self.tick(self.answers, self.tokens)

    def _count(self) -> None:
        self.answers += 1
        self.tick(self.answers, self.tokens)

    def _note(self) -> None:
        """One line at the end, on stderr."""
        seconds = time.perf_counter() - self.started
        failed = f" ({self.failed} failed)" if self.failed else ""
        rate = self.tokens / max(seconds, 1e-9)
        note(f"{self.answers} answers{failed}, {self.tokens} tokens in {seconds:.1f} s, {rate:.1f} tokens/s")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, int], None]]:
    """On a terminal, a bar with the rate and the time left; called with the answers and tokens so far."""
    if not sys.stderr.isatty():
        yield lambda answers, tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("answers"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.1f} tokens/s"),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    started = shown = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("answers", total=total, rate=0.0)

        def tick(answers: int, tokens: int) -> None:
            nonlocal shown
            now = time.perf_counter()
            if now - shown >= 0.1 or answers == total:
                shown = now
                bar.update(task, completed=answers, rate=tokens / max(now - started, 1e-9))

        yield tick
