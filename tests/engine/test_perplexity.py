"""Perplexity against the formulas, over a model whose logits are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.fakes import FakeModel
from llmgen.engine.perplexity import Window, measure, windows
from llmgen.errors import UsageError


def nll_by_hand(model, ids, parts, bos=None):
    found = []
    for w in parts:
        tokens = list(ids[w.start : w.stop])
        if bos is not None:
            tokens[0] = bos
        for i in range(w.first - w.start, len(tokens)):
            row = model.logits(tokens[:i]).astype(np.float64)
            found.append(math.log(np.exp(row).sum()) - row[tokens[i]])
    return np.array(found)


@pytest.mark.parametrize("stride", [None, 3, 7])
@pytest.mark.parametrize("bos", [None, 1])
def test_figures_are_those_of_the_formulas(stride, bos):
    model = FakeModel()
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 256, 45)]
    parts = windows(len(ids), 8, stride)
    *_, last = measure(model, ids, parts, bos)
    nll = nll_by_hand(FakeModel(), ids, parts, bos)
    assert last.n_tokens == len(nll)
    assert last.n_windows == len(parts)
    assert last.nll == pytest.approx(nll.mean(), rel=1e-5)
    assert last.perplexity == pytest.approx(math.exp(nll.mean()), rel=1e-5)
    error = math.sqrt((nll**2).mean() - nll.mean() ** 2) / math.sqrt(len(nll) - 1)
    assert last.nll_error == pytest.approx(error, rel=1e-4)
    assert last.error == pytest.approx(error * math.exp(nll.mean()), rel=1e-4)
    assert all(seq.closed for seq in model.sequences)


def test_chunks_score_the_second_half_as_llama_cpp_does():
    assert windows(45, 8) == [Window(start, start + 5, start + 8) for start in (0, 8, 16, 24, 32)]
    assert windows(8, 8) == [Window(0, 5, 8)]
    assert windows(9, 3)[0] == Window(0, 2, 3)


@pytest.mark.parametrize(
    ("n", "n_ctx", "stride"), [(45, 8, 3), (100, 16, 15), (5, 8, 2), (2, 8, 1), (64, 8, 7)]
)
def test_sliding_windows_score_each_token_once(n, n_ctx, stride):
    parts = windows(n, n_ctx, stride)
    assert [i for w in parts for i in range(w.first, w.stop)] == list(range(1, n))
    assert all(w.stop - w.start <= n_ctx and w.first > w.start for w in parts)


def test_what_cannot_be_measured_is_refused():
    for bad in ((7, 8, None), (1, 8, 2), (0, 8, None), (10, 8, 8), (10, 8, 0), (10, 1, None), (10, 2, None)):
        with pytest.raises(UsageError):
            windows(*bad)


def test_one_token_has_no_error_bar():
    [found] = measure(FakeModel(), [1, 2], windows(2, 8, 4))
    assert (found.n_tokens, found.nll_error, found.error) == (1, None, None)


def test_long_windows_report_the_tokens_that_are_computed():
    model, reported = FakeModel(n_ctx=4096), []
    parts = windows(4000, 2000)
    *_, last = measure(model, [1] * 4000, parts, on_tokens=reported.append)
    assert sum(reported) == sum(part.stop - part.start - 1 for part in parts) == 2 * 1999
    assert max(reported) == 512
    assert last == [*measure(FakeModel(n_ctx=4096), [1] * 4000, parts)][-1]
