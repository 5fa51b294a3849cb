"""The method reject: the text may change, its distribution does not."""

from __future__ import annotations

import numpy as np
import pytest

from engine.speculation.guessers import Draft, Repeating, seen, session, speculation
from llmgen.engine import Sampler, SamplingParams
from sampling.test_rejection import chi_squared

PROMPT = [5, 6, 7, 5, 6]
FEW = SamplingParams(max_tokens=3, ignore_eos=True, top_k=3, top_p=1.0, min_p=0.0, temp=4.0)


def probabilities(tokens):
    """Of the next token, under FEW: id -> probability."""
    found = Sampler(FEW, 260, eog_ids=(256,)).distribution(Repeating().logits(tokens))
    weights = np.exp(found.logits.astype(np.float64))
    return dict(zip(found.ids.tolist(), weights / weights.sum(), strict=True))


def likely():
    """A prompt after which likely tokens would be found by a lookup."""
    prompt = [6, 0, 0, 7, 6]
    prompt[1] = max(probabilities(prompt).items(), key=lambda item: item[1])[0]
    prompt[2] = max(probabilities([*prompt, prompt[1]]).items(), key=lambda item: item[1])[0]
    return prompt


@pytest.mark.parametrize("guesser", ["lookup", "draft"])
def test_three_tokens_are_distributed_as_without_guesses(guesser):
    prompt = likely()
    expected = {
        (a, b, c): p * q * r
        for a, p in probabilities(prompt).items()
        for b, q in probabilities([*prompt, a]).items()
        for c, r in probabilities([*prompt, a, b]).items()
    }
    draft = Draft(noise=1.5) if guesser == "draft" else None
    one = session(Repeating(), speculation(draft, adaptive=False, method="reject"))
    counts, guessed, accepted = dict.fromkeys(expected, 0), 0, 0
    for seed in range(2500):
        result = one.generate(prompt, FEW.with_(seed=seed))
        counts[result.token_ids] += 1
        guessed, accepted = guessed + result.speculation.guessed, accepted + result.speculation.accepted
    statistic, limit = chi_squared(np.array(list(counts.values())), np.array(list(expected.values())))
    assert statistic < limit
    assert 0 < accepted < guessed


def test_greedy_texts_are_the_same_and_scores_are_right():
    params = SamplingParams(temp=0.0, max_tokens=40, ignore_eos=True, logprobs=2)
    guessing = speculation(Draft(noise=0.7), adaptive=False, method="reject")
    assert seen(session(Repeating(), guessing), PROMPT, params) == seen(session(Repeating()), PROMPT, params)


def test_a_draft_that_is_the_model_is_always_right():
    guessing = speculation(Draft(), adaptive=False, method="reject")
    params = SamplingParams(max_tokens=300, ignore_eos=True, seed=3, logprobs=1)
    result = session(Repeating(), guessing).generate(PROMPT, params)
    assert result.speculation.acceptance_rate > 0.99
    for i, score in enumerate(result.logprobs):  # of accepted, extra and further tokens
        row = Repeating().logits([*PROMPT, *result.token_ids[:i]]).astype(np.float64)
        log_total = np.log(np.exp(row - row.max()).sum()) + row.max()
        assert score.token_id == result.token_ids[i]
        assert score.logprob == pytest.approx(row[score.token_id] - log_total, abs=1e-4)
