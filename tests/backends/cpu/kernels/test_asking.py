"""The key block that is read next is asked for line by line, in streams, and no result depends on how many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.caches import Cache, generate

from llmgen.backends.cpu.kernels.kv import asking
from llmgen.model.decode_config import STREAMS

KEYS, VALUES = 1 << 20, 1 << 30


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize(("key_bytes", "value_bytes"), [(8192, 8192), (4352, 2304), (2000, 0), (64, 8256)])
def test_lines_are_asked_for_in_streams(
    key_bytes: int, value_bytes: int, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(asking, "prefetch_far", asked.append)
    coming = asking.upcoming.py_func(KEYS, VALUES, key_bytes, value_bytes, streams.bit_length() - 1)
    lines = [KEYS + at for at in range(0, key_bytes, 64)] + [VALUES + at for at in range(0, value_bytes, 64)]
    for moment in range(len(lines)):
        asking.ask.py_func(coming, 64 * moment)
    part = len(lines) // streams
    in_streams = [lines[n * part + i] for i in range(part) for n in range(streams)]
    assert asked[: len(in_streams)] == in_streams
    # fewer lines than streams are left over: no stream gets to them, some ask for the first line of the next
    assert asked[len(in_streams) :] == [lines[(n + 1) * part] for n in range(len(lines) % streams)]


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_streams_change_no_bit(kind: str) -> None:
    rng: Any = np.random.default_rng(5)
    n_kv, group, dim, positions = 2, 3, 64, 300
    cache = Cache(n_kv, dim, dim, 5, kind)
    k, v = rng.standard_normal((2, positions, n_kv, dim), dtype=np.float32)
    cache.store(k, v, range(positions))
    q = rng.standard_normal((2, n_kv * group, dim), dtype=np.float32)
    first, *others = (
        generate([cache] * 2, q, [298, 299], n_threads=2, streams=streams) for streams in STREAMS
    )
    for other in others:
        np.testing.assert_array_equal(other, first)
