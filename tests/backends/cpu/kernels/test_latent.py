"""Attention over a latent cache against a plain softmax."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.caches import NO_WINDOW, Cache
from kernels.call import STORE, ControlBlock, aligned, lower_float_levels, require, step

from llmgen.backends.cpu.kernels.kv import attention_kernel
from llmgen.backends.cpu.kernels.layout import (
    FIELDS,
    KEY_BLOCK,
    LATENT_HEADS,
    chosen_scratch,
    latent_scratch,
    row_state_bytes,
)
from llmgen.backends.numpy.functions import attention
from naive.kv import kept

KINDS = ("f16", "f32", "q4_0 nf4", "q8_0")
# content, position: whole vectors, the sizes of DeepSeek, and such as fill no vector
DIMS = ((64, 32), (512, 64), (40, 10), (13, 6), (16, 2))


def names(kinds: tuple[str, ...]) -> list[str]:
    """The kernels for caches of these kinds."""
    pairs = [(kind.split() * 2)[:2] for kind in kinds]
    return [attention_kernel(role, *pair, "latent") for role in ("blocks", "tiles") for pair in pairs]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require([*names(KINDS), *STORE, "attention:combine"])


class Scenario:
    """A filled cache of n positions, and the queries of each."""

    def __init__(self, n: int, heads: int, dims: tuple[int, int], kind: str = "f32", seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.heads, (self.content, self.position) = n, heads, dims
        self.cache = Cache(1, self.position, self.content, -(-n // KEY_BLOCK), kind)
        content, position = (rng.normal(0, 1, (n, 1, size)).astype(np.float32) for size in dims)
        self.cache.store(position, content, range(n))
        kinds = self.cache.kinds
        self.p, self.c = kept(position, kinds[0]), kept(content, kinds[1])
        scale = np.float32(2 / np.sqrt(sum(dims)))
        self.q, self.q_position = (
            rng.normal(0, 1, (n, heads, size)).astype(np.float32) * scale for size in dims
        )

    def expected(self, first: int, last: int, window: int = NO_WINDOW, sinks: np.ndarray | None = None):  # type: ignore[no-untyped-def]
        queries = np.concatenate([self.q[first:last], self.q_position[first:last]], axis=2)
        keys = np.concatenate([self.c[:last], self.p[:last]], axis=2)
        shown = 0 if window == NO_WINDOW else window
        wide = queries.astype(np.float64)
        return attention(wide, keys, self.c[:last], 1.0, n_past=first, window=shown, sinks=sinks)

    def common(self, positions: list[int], window: int, sinks: np.ndarray | None) -> dict[str, object]:
        cache = self.cache
        queries = []
        for q in (self.q, self.q_position):
            buffer = aligned((len(positions), q.shape[1] * q.shape[2]))
            buffer[:] = q[positions].reshape(len(positions), -1)
            queries.append(buffer)
        return {
            "q": queries[0],
            "q_stride": queries[0].strides[0],
            "q_position": queries[1],
            "q_position_stride": queries[1].strides[0],
            "group": self.heads,
            "key_dim": self.position,
            "value_dim": self.content,
            "k_at": cache.k_at,
            "v_at": cache.v_at,
            "blocks": cache.blocks,
            "window": window,
            "last": 8 * FIELDS["positions"],
            "cap": 0.0,
            "sinks": 0 if sinks is None else sinks,
        }

    def scratch(self, prompt: int) -> np.ndarray:
        return aligned(latent_scratch(self.position, self.content, prompt), np.uint8, 0xFF)

    def prompt(
        self,
        first: int,
        last: int,
        window: int = NO_WINDOW,
        sinks: np.ndarray | None = None,
        n_threads: int = 1,
        level: str | None = None,
    ) -> np.ndarray:
        positions = list(range(first, last))
        width = self.heads * self.content
        out = aligned((len(positions), width + 16), fill=-7.5)
        for thread in range(n_threads):
            step(
                attention_kernel("tiles", *self.cache.kinds, "latent"),
                thread,
                n_threads,
                level,
                **self.common(positions, window, sinks),
                out=out,
                out_stride=out.strides[0],
                scratch=self.scratch(1),
                control=self.cache.control(positions),
            )
        assert np.all(out[:, width:] == -7.5)
        return out[:, :width].reshape(len(positions), self.heads, -1)

    def among(self, positions: list[int], keys: list[np.ndarray], n_threads: int = 1) -> np.ndarray:
        """Tokens that see only the keys at given positions each."""
        n, width = len(positions), self.heads * self.content
        table = aligned((n, 1 + max(map(len, keys))), np.int64, -1)
        for row, some in zip(table, keys, strict=True):
            row[0], row[1 : 1 + len(some)] = len(some), some
        out = aligned((n, width + 16), fill=-7.5)
        for thread in range(n_threads):
            step(
                attention_kernel("chosen", *self.cache.kinds, "latent"),
                thread,
                n_threads,
                **self.common(positions, NO_WINDOW, None),
                out=out,
                out_stride=out.strides[0],
                chosen=table,
                chosen_stride=table.strides[0],
                scratch=aligned(chosen_scratch(self.position, self.content), np.uint8, 0xFF),
                control=self.cache.control(positions),
            )
        assert np.all(out[:, width:] == -7.5)
        return out[:, :width].reshape(n, self.heads, -1)

    def generated(
        self,
        positions: list[int],
        window: int = NO_WINDOW,
        sinks: np.ndarray | None = None,
        n_threads: int = 1,
        level: str | None = None,
    ) -> np.ndarray:
        n, width = len(positions), self.heads * self.content
        states = aligned((n, self.heads * self.cache.blocks * row_state_bytes(self.content)), np.uint8, 0xFF)
        out = aligned((n, width + 16), fill=-7.5)
        control = ControlBlock(n, positions=positions, sequences=[self.cache.base] * n)
        common = self.common(positions, window, sinks)
        for thread in range(n_threads):
            step(
                attention_kernel("blocks", *self.cache.kinds, "latent"),
                thread,
                n_threads,
                level,
                **common,
                out=states,
                out_stride=states.strides[0],
                scratch=self.scratch(0),
                control=control,
            )
        for thread in range(n_threads):
            step(
                "attention:combine",
                thread,
                n_threads,
                level,
                n_kv=1,
                **{name: common[name] for name in ("group", "value_dim", "window", "last")},
                states=states,
                states_stride=states.strides[0],
                out=out,
                out_stride=out.strides[0],
                control=control,
            )
        assert np.all(out[:, width:] == -7.5)
        return out[:, :width].reshape(n, self.heads, -1)


def assert_close(ours: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)  # sums of up to 576 products in float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", DIMS)
def test_sizes(dims: tuple[int, int], kind: str) -> None:
    n = KEY_BLOCK + 21
    case = Scenario(n, 5, dims, kind)
    for first in (0, 5, n - 13):
        assert_close(case.prompt(first, n), case.expected(first, n))
    for position in (0, 15, KEY_BLOCK - 1, KEY_BLOCK, n - 1):
        assert_close(case.generated([position]), case.expected(position, position + 1))


@pytest.mark.parametrize(
    "heads", [1, 2, LATENT_HEADS - 1, LATENT_HEADS, LATENT_HEADS + 1, 2 * LATENT_HEADS + 3]
)
def test_numbers_of_heads(heads: int) -> None:
    n = 2 * KEY_BLOCK + 3
    case = Scenario(n, heads, (40, 10))
    assert_close(case.prompt(0, n), case.expected(0, n))
    assert_close(case.generated([n - 1]), case.expected(n - 1, n))


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
@pytest.mark.parametrize("dims", [(40, 10), (64, 32)])
def test_chosen_keys(dims: tuple[int, int], kind: str) -> None:
    n, rng = 3 * KEY_BLOCK + 7, np.random.default_rng(3)
    case = Scenario(n, LATENT_HEADS + 3, dims, kind)
    require([attention_kernel("chosen", *case.cache.kinds, "latent")])
    positions = [0, 40, 150, n - 1]
    keys = [np.sort(rng.permutation(position + 1)[: rng.integers(1, position + 2)]) for position in positions]
    keys[-1] = np.arange(n)  # all of them: three blocks and a rest
    ours = case.among(positions, keys)
    queries = np.concatenate([case.q[positions], case.q_position[positions]], axis=2).astype(np.float64)
    parts = np.concatenate([case.c, case.p], axis=2)
    assert_close(ours, attention(queries, parts, case.c, 1.0, n_past=n, chosen=[[seen] for seen in keys]))
    for n_threads in (2, 5):
        np.testing.assert_array_equal(case.among(positions, keys, n_threads), ours)
    np.testing.assert_array_equal(case.among(positions[2:3], keys[2:3]), ours[2:3])


@pytest.mark.parametrize("window", [NO_WINDOW, 1, 50, KEY_BLOCK])
def test_windows_and_sinks(window: int) -> None:
    n, heads = 3 * KEY_BLOCK + 5, LATENT_HEADS + 2
    case = Scenario(n, heads, (24, 8))
    sinks = aligned(heads)
    sinks[:] = np.linspace(-2, 3, heads)
    for some in (None, sinks):
        assert_close(case.prompt(0, n, window, some), case.expected(0, n, window, some))
        for position in (0, 70, n - 1):
            expected = case.expected(position, position + 1, window, some)
            assert_close(case.generated([position], window, some), expected)


def test_threads_company_and_pieces_do_not_change_a_bit() -> None:
    n = 2 * KEY_BLOCK + 30
    case = Scenario(n, LATENT_HEADS + 4, (40, 10), "f16")
    whole = case.prompt(0, n)
    pieces = [case.prompt(first, last) for first, last in ((0, 1), (1, 40), (40, 97), (97, n))]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    positions = [0, 5, KEY_BLOCK - 1, KEY_BLOCK, n - 1]
    alone = np.concatenate([case.generated([position]) for position in positions])
    for n_threads in (1, 2, 3, 7):
        np.testing.assert_array_equal(case.prompt(0, n, n_threads=n_threads), whole)
        np.testing.assert_array_equal(case.generated(positions, n_threads=n_threads), alone)


def test_nan_reaches_those_that_see_it_and_no_others() -> None:
    n = KEY_BLOCK + 40
    case = Scenario(n, 3, (24, 8))
    clean = case.prompt(0, n)
    for part in ("p", "c"):
        broken = {"p": case.p.astype(np.float32), "c": case.c.astype(np.float32)}
        broken[part][50, 0, 3] = np.nan
        case.cache.store(broken["p"], broken["c"], range(n))
        ours = case.prompt(0, n)
        np.testing.assert_array_equal(ours[:50], clean[:50])
        assert np.isnan(ours[50:]).any(axis=2).all()
        np.testing.assert_array_equal(case.prompt(0, n, window=20)[70:], case.prompt(70, n, window=20))
        assert np.isfinite(case.prompt(0, n, window=20)[70:]).all()
        assert np.isnan(case.generated([n - 1])).any(axis=2).all()


@pytest.mark.parametrize("level", lower_float_levels())
def test_lower_levels(level: str) -> None:
    """The loads of the other kinds are those of attention, whose tests compare them."""
    require([*names(("f16",)), "attention:combine"], level)
    n = KEY_BLOCK + 21
    case = Scenario(n, 9, (40, 10), "f16")
    np.testing.assert_array_equal(case.prompt(0, n, level=level), case.prompt(0, n))
    np.testing.assert_array_equal(case.generated([n - 1], level=level), case.generated([n - 1]))
