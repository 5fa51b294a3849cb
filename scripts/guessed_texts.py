"""Texts for scripts/bench_speculation.py: how sure a draft is of its guesses, and whole answers side by side."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgen.backends.cpu.model import Model
from llmgen.engine import GenerationEvent, Session, SpeculationStats
from llmgen.engine.speculation.experience import DRAFT, Experience
from llmgen.engine.speculation.speculator import Speculation
from llmgen.model.runs import GUESSABLE
from llmgen.sampling.params import SamplingParams

_NOTICE = (
    "The swimming hall opens at seven o'clock and closes at nine in the evening. Children under ten come with an"
    " adult. Please shower before you enter the water, do not run beside the pool, and leave bottles outside. On"
    " Wednesdays the large pool belongs to the school until noon."
)
TEXTS = {
    "code": (
        "# Python\nclass Tree:\n    '''A binary search tree.'''\n\n    def insert(self, key):\n",
        "/* A parser for arithmetic expressions in C. */\n#include <stdio.h>\n\nstatic double expression(",
    ),
    "chat": (
        "Question: How do I keep bread fresh for longer?\nAnswer: ",
        "Question: What is the difference between a lake and a pond?\nAnswer: ",
    ),
    "story": (
        "The lighthouse keeper had not spoken to anyone since the autumn storms. Every evening he climbed the",
        "Once upon a time there was a clock that ran backwards, and a girl who",
    ),
    "rewriting": (
        f"Text: {_NOTICE}\nThe same text, but it opens at eight: The swimming hall opens at eight",
        f"Text: {_NOTICE}\nThe same text, but for dogs instead of children: The swimming hall opens at",
    ),
}
"""Two beginnings of texts of each kind."""


@dataclass
class Places:
    """The draft's greedy guess at each place of a text."""

    right: list[bool]
    confidence: list[float]
    """The probability that the draft gives to it."""


def places(model: Model, draft: Model, prompt: Sequence[int], n: int) -> Places:
    """Write n tokens greedily, and have the draft guess each of them from those before it."""
    text = _written(model, prompt, n)
    seq = draft.new_sequence()
    try:
        rows = draft.prefill(seq, text[:-1], logits="all")
    finally:
        seq.close()
    assert rows is not None
    rows = rows[len(prompt) - 1 :, :GUESSABLE]
    guesses = rows.argmax(axis=1)
    right = [int(guess) == token for guess, token in zip(guesses, text[len(prompt) :], strict=True)]
    return Places(right, [_highest_probability(row) for row in rows])


def _highest_probability(logits: NDArray[np.float32]) -> float:
    """Of float32 [n_vocab]."""
    return float(1 / np.exp(logits - logits.max()).sum())


def _written(model: Model, prompt: Sequence[int], n: int) -> list[int]:
    """The prompt, and n tokens after it."""
    with Session(model, reuse="none") as session:
        return [*prompt, *session.generate(prompt, _greedy(n)).token_ids]


def _greedy(n: int) -> SamplingParams:
    return SamplingParams(temp=0.0, max_tokens=n, ignore_eos=True)


@dataclass
class Costs:
    """In plain steps."""

    runs: Sequence[float]
    """Runs of 1, 2, 3 ... tokens."""
    guess: float


def gain(found: Sequence[Places], costs: Costs, n_guesses: int | None) -> float:
    """How many times as fast the texts come by so many guesses a step; None: as the draft's confidence says.

    Computed with these costs, without what the draft takes to begin with a text.
    """
    tokens, seconds, experience = 0, 0.0, Experience()
    for one in found:
        at = 0
        while at < len(one.right):
            most = min(len(costs.runs), len(one.right) - at) - 1
            n = min(n_guesses, most) if n_guesses is not None else _sure(one, at, most, costs, experience)
            right = sum(itertools.takewhile(bool, one.right[at : at + n]))
            for place in range(at, at + min(n, right + 1)):
                experience.judged(DRAFT, one.right[place], one.confidence[place])
            at, tokens = at + right + 1, tokens + right + 1
            seconds += costs.runs[n] + n * costs.guess
    return tokens / seconds


def _sure(one: Places, at: int, most: int, costs: Costs, experience: Experience) -> int:
    """How many guesses the draft makes from a place on: one more while that pays."""
    n = min(1, most)
    while n < most:
        right = experience.all_right(one.confidence[at : at + n]) * experience.expected(DRAFT)
        if right <= costs.guess + costs.runs[n + 1] - costs.runs[n]:
            break
        n += 1
    return n


def report_confidence(
    found: dict[str, list[Places]], costs: Costs, counts: Sequence[int] = (1, 2, 3, 4)
) -> None:
    """The gain by kind of text, and how often guesses of a confidence are right, as Markdown."""
    print("\n| text | right | " + " | ".join(f"{n} guesses" for n in counts) + " | by confidence |")
    print("|---" + "|---:" * (len(counts) + 2) + "|")
    for kind, its in found.items():
        gains = [f"{gain(its, costs, n):.2f}" for n in (*counts, None)]
        share = np.mean([right for one in its for right in one.right])
        print(f"| {kind} | {share:.0%} | " + " | ".join(gains) + " |")
    every = [one for its in found.values() for one in its]
    right = np.array([right for one in every for right in one.right])
    confidence = np.array([value for one in every for value in one.confidence])
    print("\nconfidence -> right:", end="")
    for low, high in itertools.pairwise((0.0, 0.2, 0.3, 0.5, 0.6, 0.8, 0.9, 0.97, 1.01)):
        chosen = right[(low <= confidence) & (confidence < high)]
        if len(chosen):
            print(f"  {low:.0%} to {min(high, 1):.0%}: {chosen.mean():.0%} of {len(chosen)}", end="")
    print()


_CHUNK = 4
"""Tokens that one stream writes before the other one goes on."""


@dataclass
class SideBySide:
    """Seconds of an answer after its first token, plain and with guesses."""

    plain_s: float
    guessed_s: float
    stats: SpeculationStats | None


def side_by_side(model: Model, prompt: Sequence[int], n: int, speculation: Speculation) -> SideBySide:
    """Write n tokens both ways at once, some tokens in turn, so that what changes on the machine meets both alike."""
    with (
        Session(model, reuse="none") as plain,
        Session(model, reuse="none", speculation=speculation) as guessing,
    ):
        streams = plain.stream(prompt, _greedy(n)), guessing.stream(prompt, _greedy(n))
        texts = [[next(stream).token_id] for stream in streams]
        seconds = [0.0, 0.0]
        while len(texts[0]) < n:
            for i, stream in enumerate(streams):
                began = time.perf_counter()
                texts[i] += [
                    event.token_id for event in itertools.islice(stream, min(_CHUNK, n - len(texts[i])))
                ]
                seconds[i] += time.perf_counter() - began
        assert texts[0] == texts[1], "the text has changed"
        return SideBySide(*seconds, _stats(streams[1]))


def _stats(stream: Iterator[GenerationEvent]) -> SpeculationStats | None:
    """Of a stream that has given all tokens."""
    results = [event.result for event in stream if event.result]
    return results[0].speculation if results else None
