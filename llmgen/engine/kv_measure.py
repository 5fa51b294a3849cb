"""What a kind of KV cache costs a model in quality and in time, measured on the model itself.

Two models that differ in their caches only are given the same tokens: first a prompt, then a few tokens
one by one as if they had been generated, so that both ways of reading the cache count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.interfaces import ModelLike, TokenizerLike
from llmgen.model.runs import Part, Role
from llmgen.sampling.logits import check_finite

TEXT = """The harbour of the small town lies between two hills, and in winter the wind comes straight from the sea.
Every morning at half past five the first boat leaves the quay; its owner, a woman of sixty, has fished here since she
was a girl. She sells what she catches to three restaurants and keeps a list: 14 kg of cod on Monday, 9 kg on Tuesday,
nothing on Wednesday because of the storm. "You cannot argue with the weather," she says.

def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

A mean of 14, 9 and 0 is about 7.67. The harbour master writes such numbers into a book that nobody reads, although it
goes back to 1871 and would tell how the sea has changed: herring first became rare, then the winters became mild, and
in the end the big ships stayed away. Today tourists come in July and August, drink coffee, take photographs of the
boats, and ask whether one can live from fishing. One can, if one has no debts.

"""
"""What is measured by default: prose, numbers and code; a longer probe repeats it."""
_QUESTION, _ANSWER = " The keeper of the old lighthouse is called", " Ottilie"
_FILLER = "The day was calm and the boats came back before noon. "
_TEXTS = (TEXT, _FILLER, _QUESTION, _ANSWER)
FOUND = 5
"""A needle counts for a model that, with an exact cache, has the right token among so many."""
_WARMING = 2


@dataclass(frozen=True)
class Probe:
    """What is measured: a text, how it is split, and a fact to be found again."""

    ids: list[int]
    """A prompt and, behind it, the tokens that are given one by one."""
    n_steps: int
    needle: list[int]
    """A long prompt with a fact in its middle that ends with a question about it."""
    answer: int
    """The token that should follow."""


@dataclass(frozen=True)
class Quality:
    """How one cache does against another, over ``tokens`` predictions."""

    tokens: int
    nll: float
    """Mean -ln p of the text's tokens."""
    delta_nll: float
    """How much larger that is than with the other cache."""
    ppl_ratio: float
    mean_kl: float
    """Mean over all predictions of sum p ln(p / q); p: with the other cache."""
    same_top: float
    """The share of predictions whose most likely token is the same."""


def probe(tokenizer: TokenizerLike | None, n_vocab: int, n_ctx: int, n_tokens: int, n_steps: int) -> Probe:
    """The probe for a model; its text is a row of numbers drawn at random where no tokenizer can write it.

    n_tokens: of the prompt, n_steps: of what is given one by one, both as far as the context has room.
    """
    n_steps = min(n_steps, n_ctx // 2)
    n_tokens = min(n_tokens, n_ctx - n_steps)
    n_needle = min(4 * n_tokens, n_ctx)
    pieces = [] if tokenizer is None else [tokenizer.encode_fragment(text) for text in _TEXTS]
    if tokenizer is None or not all(pieces):
        ids = np.random.default_rng(0).integers(0, n_vocab, n_tokens + n_steps + n_needle).tolist()
        return Probe(ids[: n_tokens + n_steps], n_steps, ids[-n_needle:], ids[0])
    text, filler, question, answer = pieces
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    ids = (begin + text * (1 + (n_tokens + n_steps) // len(text)))[: n_tokens + n_steps]
    room = max(0, n_needle - len(begin) - 2 * len(question) - len(answer)) // 2
    half = (filler * (1 + room // len(filler)))[:room]
    needle = [*begin, *half, *question, *answer, *half, *question]
    return Probe(ids, n_steps, needle[-n_needle:], answer[0])


def compare(reference: ModelLike, model: ModelLike, ids: Sequence[int], n_steps: int) -> Quality:
    """The quality of ``model`` against ``reference`` over tokens, the last ``n_steps`` of them one by one.

    Raises LLMGenError where logits are not finite.
    """
    nll, other_nll, kl, same = [], [], [], 0
    rows = zip(
        _log_probabilities(reference, ids, n_steps), _log_probabilities(model, ids, n_steps), strict=True
    )
    for i, (p, q) in enumerate(rows):
        kl.append(float(np.exp(p) @ (p - q)))
        same += int(p.argmax() == q.argmax())
        if i + 1 < len(ids):
            other_nll.append(-float(p[ids[i + 1]]))
            nll.append(-float(q[ids[i + 1]]))
    mean_nll, other_mean = (statistics.fmean(values) if values else 0.0 for values in (nll, other_nll))
    delta = mean_nll - other_mean
    ratio = float(np.exp(min(delta, 700.0)))
    return Quality(len(kl), mean_nll, delta, ratio, statistics.fmean(kl), same / len(kl))


def _log_probabilities(model: ModelLike, ids: Sequence[int], n_steps: int) -> Iterator[NDArray[np.float64]]:
    """ln p after each token: float64 [n_vocab], one token at a time, so that a long text needs no memory."""
    seq = model.new_sequence()
    size, n_prompt = min(model.max_prompt_tokens, model.max_outputs), len(ids) - n_steps
    try:
        starts = [*range(0, n_prompt, size), *range(n_prompt, len(ids))]
        for start in starts:
            role: Role = "prompt" if start < n_prompt else "generated"
            part = ids[start : min(start + size, n_prompt)] if role == "prompt" else [ids[start]]
            for row in model.forward([Part(seq, part, len(part))], role):
                check_finite(row[None])
                wide = row.astype(np.float64)
                wide -= wide.max()
                yield wide - np.log(np.exp(wide).sum())
    finally:
        seq.close()


def needle_rank(model: ModelLike, probe: Probe) -> int:
    """The place, from 1, of the fact's token among all after the needle's prompt."""
    seq = model.new_sequence()
    try:
        row: NDArray[np.float32] | None = None
        for start in range(0, len(probe.needle), model.max_prompt_tokens):
            part = probe.needle[start : start + model.max_prompt_tokens]
            [row] = model.forward([Part(seq, part, 1)], "prompt")
        assert row is not None
        return 1 + int((row > row[probe.answer]).sum())
    finally:
        seq.close()


def step_seconds(model: ModelLike, length: int, n_steps: int) -> float:
    """Seconds of a generated token at about ``length`` tokens of context: the median of n_steps.

    The context is not computed but stood in for, since a step takes as long whatever the cache holds.
    """
    seq = model.new_sequence()
    try:
        n = min(_WARMING + n_steps, length)
        seq.stand_in(length - n)
        seconds = []
        for _ in range(n):
            started = time.perf_counter()
            model.forward([Part(seq, [0])], "generated")
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[_WARMING:] or seconds)
    finally:
        seq.close()
