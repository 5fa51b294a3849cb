"""``--stats`` and ``/stats``: speeds, guesses, the KV cache and how answers ended, on stderr."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from llmgen.cli.common.guessing import guessing_note
from llmgen.cli.terminal.output import note, size
from llmgen.engine.speculation.stats import SpeculationStats

if TYPE_CHECKING:
    from llmgen.backends.cpu.model import Model
    from llmgen.engine import GenerationResult

StatsOption = Annotated[bool, typer.Option("--stats", help="Print speeds and the like on stderr.")]


def note_stats(result: GenerationResult, model: Model) -> None:
    """Note the figures of one answer, one line a subject."""
    t = result.timings
    cached = f", {t.cached_tokens} of them cached, {t.prefill_tokens} new" if t.cached_tokens else ""
    # An answer that was stopped before its first token has no prompt speed.
    speed = "" if t.ttft_s is None else f"{_rate(t.prefill_tokens_per_s)}, first token after {t.ttft_s:.3f} s"
    note(f"prompt: {result.prompt_tokens} tokens{cached} in {t.prefill_s:.3f} s{speed}")
    note(f"answer: {result.completion_tokens} tokens in {t.decode_s:.3f} s{_rate(t.decode_tokens_per_s)}")
    if (guesses := guessing_note(result.speculation)) is not None:
        note(guesses)
    layout, n = model.layout, result.prompt_tokens + result.completion_tokens
    note(
        f"KV cache: {layout.kv_type}, {layout.bytes_per_token:,} bytes a token, {size(layout.bytes_for(n))} for {n}"
        f"{_streams(model, n)}"
    )
    note(f"ended: {_ending(result)}; seed {result.seed}")


def note_totals(results: Iterable[GenerationResult], model: Model, seconds: float) -> None:
    """Note the figures of several answers, which took this many seconds together."""
    totals = Totals()
    for result in results:
        totals.add(result)
    note(throughput(totals.endings.total(), totals.tokens, seconds))
    totals.note(model)


def throughput(answers: int, tokens: int, seconds: float, failed: int = 0) -> str:
    """How many answers and generated tokens came, and how fast, as a line."""
    number = f"{answers} answer{'s' if answers != 1 else ''}{f' ({failed} failed)' if failed else ''}"
    return f"{number}, {tokens} tokens in {seconds:.1f} s, {tokens / max(seconds, 1e-9):.1f} tokens/s"


@dataclass
class Totals:
    """The figures of several answers, added up one answer at a time."""

    prompt_tokens: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    speculation: SpeculationStats | None = None
    rates: list[float] = field(default_factory=list)
    """Generated tokens per second of each answer, as far as it has a rate."""
    delays: list[float] = field(default_factory=list)
    """Seconds to the first token of each answer."""
    endings: Counter[str] = field(default_factory=Counter)

    def add(self, result: GenerationResult) -> None:
        """Count one more answer."""
        t = result.timings
        self.prompt_tokens += result.prompt_tokens
        self.tokens += result.completion_tokens
        self.cached_tokens += t.cached_tokens
        self.prefill_tokens += t.prefill_tokens
        if (rate := t.decode_tokens_per_s) is not None:
            self.rates.append(rate)
        if t.ttft_s is not None:
            self.delays.append(t.ttft_s)
        self.endings[_ending(result)] += 1
        if result.speculation is not None:
            self.speculation = _sum(self.speculation or SpeculationStats(), result.speculation)

    def note(self, model: Model) -> None:
        """Note the figures, one line a subject."""
        note(
            f"prompts: {self.prompt_tokens} tokens, {self.cached_tokens} of them cached, {self.prefill_tokens} new"
        )
        parts = []
        if self.rates:
            parts.append(f"{statistics.median(self.rates):.1f} tokens/s")
        if self.delays:
            parts.append(f"first token after {statistics.median(self.delays):.3f} s")
        if parts:
            note(f"median of the answers: {', '.join(parts)}")
        if (guesses := guessing_note(self.speculation)) is not None:
            note(guesses)
        note(f"KV cache: {model.layout.kv_type}, {model.layout.bytes_per_token:,} bytes a token")
        note("ended: " + ", ".join(f"{n} {ending}" for ending, n in self.endings.most_common()))


def _sum(a: SpeculationStats, b: SpeculationStats) -> SpeculationStats:
    """The counts of both together; what a step takes differs between them, so there is no speed-up."""
    return SpeculationStats(
        steps=a.steps + b.steps,
        tokens=a.tokens + b.tokens,
        guessed=a.guessed + b.guessed,
        accepted=a.accepted + b.accepted,
        draft_s=a.draft_s + b.draft_s,
        decode_s=a.decode_s + b.decode_s,
        idle=b.idle,
    )


def _ending(result: GenerationResult) -> str:
    return f"{result.finish_reason} ({result.finish_detail})"


def _streams(model: Model, length: int) -> str:
    """In how many streams generated tokens read the cache; nothing where that makes no difference."""
    if not model.readings.matter:
        return ""
    found, measured = model.readings.at(length)
    return f", read in {found.streams} stream{'s' if found.streams > 1 else ''}{' (measured)' if measured else ''}"


def _rate(tokens_per_s: float | None) -> str:
    return "" if tokens_per_s is None else f", {tokens_per_s:.1f} tokens/s"
