"""What guessing tokens gains: the same greedy texts with and without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgen.api_speculation import OpenDraft
from llmgen.backends.cpu.model import Model
from llmgen.engine import GenerationResult, Session, SpeculationStats, SpeculativeConfig
from llmgen.engine.speculation.speculator import Speculation
from llmgen.errors import LLMGenError
from llmgen.gguf import GGUFFile
from llmgen.sampling.params import SamplingParams
from llmgen.tokenizer import Tokenizer

N_TOKENS = 128
N_CTX = 768
"""The context that the texts below need, in any tokenizer, with what is written after them."""

TEXTS = {
    "code": (
        "# Python\n"
        "class Point:\n"
        "    def __init__(self, x, y):\n"
        "        self.x = x\n"
        "        self.y = y\n"
        "\n"
        "    def __add__(self, other):\n"
        "        return Point(self.x + other.x, self.y + other.y)\n"
        "\n"
        "    def __sub__(self, other):\n"
    ),
    "prose": (
        "The lighthouse keeper had not spoken to anyone since the autumn storms. Every evening he climbed the"
        " narrow stairs, trimmed the lamp, and wrote one line into a book that nobody would ever read."
    ),
    "rewriting": (
        "Text: The committee meets on the first Monday of every month in the old town hall. Its members discuss"
        " the budget, the repair of the bridges, and the letters of the citizens.\n"
        "The same text again: The committee meets on the first Monday of every month in the old town hall. Its"
    ),
}
"""Beginnings of texts of three kinds, by their names."""


@dataclass(frozen=True)
class Guessed:
    """A text written with guesses, and its speed without, in tokens per second."""

    text: str
    plain: float
    guessed: float
    stats: SpeculationStats

    @property
    def speedup(self) -> float:
        """How many times as fast as without guesses, as measured."""
        return self.guessed / self.plain

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "text": self.text,
            "plain_tokens_per_s": self.plain,
            "tokens_per_s": self.guessed,
            **self.stats.as_dict(),
            "speedup": self.speedup,  # not the estimate of a single answer
        }


def check(paths: Iterable[Path], config: SpeculativeConfig) -> None:
    """Refuse models that these options cannot be used with, before anything is measured.  Raises LLMGenError."""
    for path in paths:
        with GGUFFile.open(path) as file:
            OpenDraft(config, file).close()


def measure(
    model: Model,
    file: GGUFFile,
    config: SpeculativeConfig,
    repetitions: int,
    texts: Mapping[str, str] = TEXTS,
) -> list[Guessed]:
    """Write each text so often both ways, and keep the fastest.  Raises LLMGenError."""
    tokenizer = Tokenizer.from_gguf(file)
    with closing(OpenDraft(config, file)) as draft:
        speculation = draft.speculation(model)
        return [
            _in_turn(name, model, tokenizer, tokenizer.encode_prompt(text), speculation, repetitions)
            for name, text in texts.items()
        ]


def _in_turn(
    name: str,
    model: Model,
    tokenizer: Tokenizer,
    ids: list[int],
    speculation: Speculation,
    repetitions: int,
) -> Guessed:
    """The fastest of the repetitions of either way; in turn, so that what else the machine does slows both."""
    params = SamplingParams(temp=0.0, max_tokens=N_TOKENS, ignore_eos=True)
    plain, guessing = list[GenerationResult](), list[GenerationResult]()
    with (
        Session(model, tokenizer, reuse="none") as one,
        Session(model, tokenizer, reuse="none", speculation=speculation) as other,
    ):
        for _ in range(repetitions):
            plain.append(one.generate(ids, params))
            guessing.append(other.generate(ids, params))
    fastest, best = max(plain, key=_rate), max(guessing, key=_rate)
    assert best.speculation is not None
    return Guessed(name, _rate(fastest), _rate(best), best.speculation)


def _rate(result: GenerationResult) -> float:
    """Tokens per second."""
    rate = result.timings.decode_tokens_per_s
    if not rate:
        raise LLMGenError(
            f"only {result.completion_tokens} tokens were generated: a longer context is needed"
        )
    return rate
