"""Blocks of keys that are chosen for each head, and attention to them, against formulas."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.caches import Cache
from kernels.call import aligned, require, step

from llmgen.backends.cpu.kernels import sparse_arguments  # noqa: F401 - its tables
from llmgen.backends.cpu.kernels.kv import spans_scratch
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.numpy.functions import attention, best_blocks
from naive.kv import asked, kept

N, HEADS = KEY_BLOCK + 37, 3
POSITIONS = [0, 3, 16, KEY_BLOCK, N - 1]


def filled(key_dim: int, value_dim: int, n_kv: int, kind: str) -> tuple[Cache, np.ndarray, np.ndarray]:
    """A cache of N positions, and the keys and values [N, n_kv, dim] that it keeps."""
    rng = np.random.default_rng(1)
    cache = Cache(n_kv, key_dim, value_dim, 3, kind)
    k, v = (rng.normal(0, 1, (N, n_kv, dim)).astype(np.float32) for dim in (key_dim, value_dim))
    cache.store(k, v, range(N))
    return cache, kept(k, kind), kept(v, kind)


def chosen_blocks(cache: Cache, q: np.ndarray, block: int, k: int, local: int, n_threads: int) -> np.ndarray:
    """int64 [tokens, HEADS, 1 + k]"""
    n_blocks = 16 * (-(-3 * KEY_BLOCK // block) // 16 + 1)
    scores, out = aligned((len(q), HEADS, n_blocks), fill=9.0), aligned((len(q), HEADS, 1 + k), np.int64, -1)
    shared = {"heads": HEADS, "block": block, "control": cache.control(POSITIONS)}
    shared |= {"head_stride": scores.strides[1], "scores_stride": scores.strides[0]}
    kernel = f"block_choice:scores_{cache.kinds[0]}"
    require([kernel, "block_choice:choose"])
    for thread in range(n_threads):
        scratch = aligned(cache.key_dim * KEY_GROUP)
        places = {"out": scores, "out_stride": scores.strides[0], "k_at": cache.k_at, "scratch": scratch}
        of_scores = {name: shared[name] for name in ("heads", "block", "control", "head_stride")}
        step(
            kernel,
            thread,
            n_threads,
            q=q,
            q_stride=q.strides[0],
            key_dim=cache.key_dim,
            **of_scores,
            **places,
        )
    for thread in range(n_threads):
        strides = {"out_stride": out.strides[0], "out_head_stride": out.strides[1]}
        counts = aligned(256, np.int64, -1)
        step("block_choice:choose", thread, n_threads, scores=scores, local=local, k=k, out=out, scratch=counts,
             **shared, **strides)  # fmt: skip
    return out


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
@pytest.mark.parametrize(("block", "k", "local"), [(4, 3, 1), (24, 2, 2), (128, 1, 0), (16, 4, 0)])
def test_the_best_blocks_are_chosen(block: int, k: int, local: int, kind: str) -> None:
    cache, keys, _ = filled(24, 16, 1, kind)
    q = aligned((len(POSITIONS), HEADS * 24))
    q[:] = np.random.default_rng(2).normal(0, 1, q.shape)
    for n_threads in (1, 3):
        out = chosen_blocks(cache, q, block, k, local, n_threads)
        for i, position in enumerate(POSITIONS):
            for head in range(HEADS):
                query = q[i].reshape(HEADS, 24)[head].astype(np.float64)
                expected = best_blocks(keys[: position + 1, 0] @ query, block, k, local)
                found = out[i, head, 1 : 1 + out[i, head, 0]]
                np.testing.assert_array_equal(found, np.unique(expected // block))


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("block", [4, 24, 64])
def test_attention_to_chosen_blocks(block: int, kind: str) -> None:
    """Neighbouring and single blocks, of which the last ends where the token sees no more."""
    n_kv, group, key_dim, value_dim = 2, 3, 24, 20
    cache, k, v = filled(key_dim, value_dim, n_kv, kind)
    rng = np.random.default_rng(3)
    q = aligned((len(POSITIONS), n_kv * group * key_dim))
    q[:] = rng.normal(0, 0.3, q.shape)
    chosen = aligned((len(POSITIONS), n_kv, 32), np.int64, -1)
    positions = [[best_blocks(rng.normal(size=p + 1), block, 7, 1) for _ in range(n_kv)] for p in POSITIONS]
    for row, heads in zip(chosen, positions, strict=True):
        for head, seen in zip(row, heads, strict=True):
            numbers = np.unique(seen // block)
            head[: 1 + len(numbers)] = [len(numbers), *numbers]
    kernel = f"sparse:chosen_{kind}_{kind}"
    require([kernel])
    results = []
    for n_threads in (1, 2, 5):
        out = aligned((len(POSITIONS), n_kv * group * value_dim), fill=-7.5)
        for thread in range(n_threads):
            places = {"k_at": cache.k_at, "v_at": cache.v_at, "blocks": cache.blocks, "block": block}
            places |= {"key_dim": key_dim, "value_dim": value_dim, "n_kv": n_kv, "group": group}
            places |= {"q_stride": q.strides[0], "out_stride": out.strides[0]}
            places |= {"chosen_stride": chosen.strides[0], "head_stride": chosen.strides[1]}
            scratch = aligned(spans_scratch(group, key_dim, value_dim), np.uint8)
            step(kernel, thread, n_threads, q=q, chosen=chosen, out=out, scratch=scratch, cap=0.0,
                 control=cache.control(POSITIONS), **places)  # fmt: skip
        results.append(out)
    for i, position in enumerate(POSITIONS):
        query = asked(q[i].reshape(1, n_kv * group, key_dim), kind)
        expected = attention(query, k, v, 1.0, n_past=position, chosen=[positions[i]])
        np.testing.assert_allclose(results[0][i], expected.reshape(-1), rtol=0, atol=1e-5)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
