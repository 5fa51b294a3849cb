"""``llmgen batch``: many prompts, one JSON line out per line in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.batch.input import Line, Reader, Source, failure, identity
from llmgen.cli.batch.journal import line_hash
from llmgen.cli.batch.output import Sink, file_target, open_sink
from llmgen.cli.common import exits
from llmgen.cli.common.config import configurable
from llmgen.cli.common.endings import cut_by, cut_note
from llmgen.cli.common.guessing import check_draft
from llmgen.cli.common.guessing_options import guessing_options
from llmgen.cli.common.interrupts import Stop, noted
from llmgen.cli.common.loading import local_window, open_llm
from llmgen.cli.common.model_options import EngineOptions, model_options
from llmgen.cli.common.models import ModelArgument, model_path
from llmgen.cli.common.sampling_options import sampling_options
from llmgen.cli.common.stats import StatsOption, Totals, throughput
from llmgen.cli.common.templates import SystemOption, TemplateOption, refuse_beside_raw, template_for_prompts
from llmgen.cli.terminal.output import note, say
from llmgen.cli.terminal.progress import Bar
from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.errors import LLMGenError
from llmgen.sampling.params import SamplingParams, option_table
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.engine import Answer, Request


@configurable
@model_options
@guessing_options
@sampling_options
def command(
    model: ModelArgument,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN.jsonl", help="The prompts, one JSON object or text a line; - reads stdin."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="OUT.jsonl", help="Where the answers go; - is stdout. [default: -]"
        ),
    ] = None,
    slots: Annotated[
        int,
        typer.Option("--slots", metavar="N", min=1, max=8, help="Answers computed at the same time, 1 to 8."),
    ] = 8,
    system: SystemOption = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete texts as they stand, without the chat template.")
    ] = False,
    template: TemplateOption = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the answers of an interrupted run.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT.jsonl where it exists.")
    ] = False,
    stats: StatsOption = False,
    *,
    engine: EngineOptions,
    guessing: SpeculativeConfig | None,
    sampling: SamplingParams,
) -> None:
    """Complete many prompts, several at a time; one JSON line out per line in, in the same order.

    A line of IN.jsonl is a text, or an object with prompt (a text or token ids) or
    messages, and optionally system, id, and any sampling option under its name. A bad
    line gives a line with "error"; the exit code is then 1. --timeout and --seed
    apply to each line separately.

    OUT.jsonl appears when all is done. Until then the answers are in OUT.jsonl.part, and
    after an interruption the same command continues from there.
    """
    refuse_beside_raw(raw, system, template)
    check_draft(guessing)
    with closing(Source(source)) as lines:
        target = file_target(output, lines, restart, overwrite)
        total = lines.count()  # before the model is loaded, which takes longer
        path = model_path(model)
        chat = template_for_prompts(path, template, raw, system)
        with open_llm(path, engine, chat, guessing) as llm:
            if chat is None and not raw:
                note("this model has no chat template, so texts are completed as they stand")
            depends_on = {
                "model": f"{path.name} {llm.model.fingerprint[:16]}",
                "ctx": llm.n_ctx,
                "kv_type": llm.model.kv_type,
                **({} if engine.rope_scaling is None else {"rope_scaling": engine.rope_scaling}),
                **local_window(llm.model),
                "raw": raw,
                "system": system,
                "template": None if chat is None else line_hash(chat.source.encode()),
                **{option.name: getattr(sampling, option.name) for option in option_table()},
            }
            reader = Reader(llm, sampling, chat, raw, system)
            with (
                closing(open_sink(output, target, depends_on, restart, overwrite)) as sink,
                Bar("answers", total) as bar,
            ):
                code = _Run(llm, reader, sink, bar, Totals() if stats else None).run(lines, slots, total)
    raise typer.Exit(code)


@dataclass
class _Run:
    """One pass over the input."""

    llm: LLM
    reader: Reader
    sink: Sink
    bar: Bar
    totals: Totals | None = None
    answers: int = 0
    tokens: int = 0
    failed: int = 0
    finish_reasons: set[str] = field(default_factory=set)
    unanswered: int = 0
    exhausted: bool = False
    cuts: list[str | None] = field(default_factory=list)  # of the answers of this run
    started: float = field(default_factory=time.perf_counter)

    def run(self, source: Source, slots: int, total: int) -> int:
        """Answer the lines that have no answer yet; returns the exit code."""
        is_done = False
        try:
            with noted() as cancel, cancel.raising_when_repeated():
                requests = self._requests(source, cancel)
                for answer in self.llm.batch(
                    requests, slots=slots, cancel=cancel, on_event=self._on_event, on_prompt=self._on_prompt
                ):
                    self._take(answer)
            if self.exhausted and not self.unanswered:
                self.sink.finish()
                is_done = True
        except KeyboardInterrupt:
            pass
        except (OSError, MemoryError, LLMGenError):
            if advice := self.sink.advice():
                note(f"ended after {self.answers} of {total} answers{advice}")
            raise
        if not is_done:
            note(f"interrupted after {self.answers} of {total} answers{self.sink.advice()}")
            return exits.INTERRUPTED
        self._note()
        return exits.FAILED if "error" in self.finish_reasons else exits.exit_code(self.finish_reasons)

    def _requests(self, source: Source, cancel: Stop) -> Iterator[Request]:
        """The requests for the lines without an answer; bad lines get their error at once."""
        from llmgen.engine import Request

        for line in source.lines():
            if cancel.is_set():  # many lines may come without a request
                return
            self.unanswered += 1
            ending = self.sink.known(line)
            if ending is not None:
                self.finish_reasons.add(ending)
                self._count()
                continue
            try:
                ids, params = self.reader.parse(line)
            except LLMGenError as error:
                self._fail(line, error)
                continue
            yield Request(ids, params, line)
        self.exhausted = True

    def _take(self, answer: Answer) -> None:
        """Keep an answer; one that was interrupted is left to the next run."""
        line: Line = answer.request.key
        if answer.error is not None:
            self._fail(line, answer.error, {} if answer.result is None else answer.result.as_dict())
            return
        assert answer.result is not None
        found = {**identity(line), **answer.result.as_dict(), **local_window(self.llm.model)}
        if answer.result.finish_reason == "interrupted":
            self.sink.partial(line, found)
            return
        self.finish_reasons.add(answer.result.finish_reason)
        self.cuts.append(cut_by(answer.result))
        if self.totals is not None:
            self.totals.add(answer.result)
        self.sink.add(line, found)
        self._count()

    def _fail(self, line: Line, error: LLMGenError, partial: dict[str, Any] | None = None) -> None:
        self.failed += 1
        self.finish_reasons.add("timeout" if error.exit_code == exits.TIMEOUT else "error")
        say(f"line {line.number + 1}: {visible(error)}")
        self.sink.add(line, {**identity(line), **failure(error), **(partial or {})})
        self._count()

    def _on_event(self, request: Request, event: Any) -> None:
        self.tokens += event.token_id is not None
        self._show()

    def _on_prompt(self, request: Request, done: int, total: int) -> None:
        line: Line = request.key
        self._show(f"line {line.number + 1}: {done:,}/{total:,} tokens of its prompt" if done < total else "")

    def _count(self) -> None:
        self.answers += 1
        self.unanswered -= 1
        self._show()

    def _show(self, note: str = "") -> None:
        rate = self.tokens / max(time.perf_counter() - self.started, 1e-9)
        self.bar.update(self.answers, note or f"{rate:.1f} tokens/s")

    def _note(self) -> None:
        """A summary on stderr."""
        if (cut := cut_note(self.cuts, self.llm.n_ctx)) is not None:
            note(cut)
        note(throughput(self.answers, self.tokens, time.perf_counter() - self.started, self.failed))
        if self.totals is not None:
            self.totals.note(self.llm.model)
