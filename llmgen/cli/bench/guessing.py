"""What guessing tokens gains: the same greedy texts with and without it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from llmgen.api_speculation import OpenDraft
from llmgen.backends.cpu.model import Model
from llmgen.engine import Session, SpeculationStats, SpeculativeConfig
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

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "text": self.text,
            "plain_tokens_per_s": self.plain,
            "tokens_per_s": self.guessed,
            "speedup": self.guessed / self.plain,
            "acceptance_rate": self.stats.acceptance_rate,
            "tokens_per_step": self.stats.tokens_per_step,
        }


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
        found = []
        for name, text in texts.items():
            ids = tokenizer.encode_prompt(text)
            plain, _ = _best(model, tokenizer, ids, None, repetitions)
            guessed, stats = _best(model, tokenizer, ids, speculation, repetitions)
            if stats is not None:
                found.append(Guessed(name, plain, guessed, stats))
        return found


def _best(
    model: Model, tokenizer: Tokenizer, ids: list[int], speculation: Speculation | None, repetitions: int
) -> tuple[float, SpeculationStats | None]:
    """Tokens per second of the fastest repetition, and its figures."""
    params = SamplingParams(temp=0.0, max_tokens=N_TOKENS, ignore_eos=True)
    with Session(model, tokenizer, reuse="none", speculation=speculation) as session:
        results = [session.generate(ids, params) for _ in range(repetitions)]
    best = max(results, key=lambda result: result.timings.decode_tokens_per_s or 0.0)
    if not best.timings.decode_tokens_per_s:
        raise LLMGenError(f"only {best.completion_tokens} tokens were generated: a longer context is needed")
    return best.timings.decode_tokens_per_s, best.speculation
