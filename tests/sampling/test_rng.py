from __future__ import annotations

import numpy as np
import pytest

from llmgen.sampling.rng import philox4x32, uniform
from naive.sampling.draws import uniforms

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers of the Random123 library, file kat_vectors, philox4x32 10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, expected):
    assert philox4x32(counter, key) == expected


def test_one_and_many_agree():
    steps = np.array([0, 1, 2, 77, 2**32 + 5], dtype=np.uint64)
    for seed in (0, 1, 2**63 + 11):
        assert uniforms(seed, steps).tolist() == [uniform(seed, int(s)) for s in steps]
    assert uniform(1, 0, lane=1) != uniform(1, 0, lane=0)


def test_uniform_over_steps_and_over_seeds():
    draws = uniforms(42, np.arange(100_000, dtype=np.uint64))
    counts = np.bincount((draws * 100).astype(int), minlength=100)
    assert ((counts - 1000) ** 2 / 1000).sum() < 160  # chi-squared, 99 degrees: p < 1e-4
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.015
    first = np.array([uniform(seed, 0) for seed in range(2000)])
    assert abs(first.mean() - 0.5) < 0.03
    assert first.min() >= 0
    assert first.max() < 1
