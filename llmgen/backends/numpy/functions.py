"""The formulas of a forward pass, one function each: no blocking, no tricks.

Shapes are written as [outer, ..., inner].  Every function computes in the floating type
of its input, so the caller chooses float64 for truth or float32 for speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.model.ngrams import NGrams

Array = NDArray[Any]

BLOCK = 32
"""Activations are quantized in blocks of so many values."""


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """x [..., n] divided by the root of its mean square, times weight (broadcast over [..., n])."""
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))
    return y if weight is None else y * weight.astype(x.dtype)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """x [..., n] shifted to mean 0 and scaled to variance 1, times weight, plus bias."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    y = centred / np.sqrt(variance + x.dtype.type(eps))
    if weight is not None:
        y = y * weight.astype(x.dtype)
    return y if bias is None else y + bias.astype(x.dtype)


def silu(x: Array) -> Array:
    """x * sigmoid(x), elementwise."""
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """The tanh form of GELU, elementwise (llama.cpp's, without its float16 table)."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def gelu_erf(x: Array) -> Array:
    """x/2 (1 + erf(x / sqrt(2))), elementwise: GELU itself."""
    erf = np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))
    return 0.5 * x * (1 + erf)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), elementwise."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    """max(x, 0), elementwise."""
    return np.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "relu": relu,
    "relu_squared": lambda x: relu(x) ** 2,
    "sigmoid": sigmoid,
    "softplus": lambda x: np.logaddexp(x.dtype.type(0), x),
    "exp": np.exp,
    "tanh": np.tanh,
}
"""By the names of ``model.ops``."""


def swiglu_oai(gate: Array, up: Array) -> Array:
    """GPT-OSS's gated unit, elementwise: quick gelu of the gate, at most 7, times up, within -7 and 7, plus 1."""
    return ACTIVATIONS["gelu_quick"](np.minimum(gate, 7)) * (np.clip(up, -7, 7) + 1)


def soft_cap(x: Array, cap: float) -> Array:
    """x squeezed smoothly into (-cap, cap); cap 0 leaves it alone."""
    return x if cap == 0 else cap * np.tanh(x / cap)


def rotate(x: Array, rows: Array, neox: bool, first: int = 0) -> Array:
    """x [n_tokens, n_heads, head_dim] with n_rot values of each head from ``first`` on rotated, the others kept.

    rows: cosines and signed sines of the tokens' positions, [n_tokens, 2, n_rot] (``Rope.rows``).
    neox: the partner of value i is half of n_rot away, otherwise its neighbour.
    """
    n_rot = rows.shape[2]
    turned = x[..., first : first + n_rot]
    if neox:
        partners = np.roll(turned, n_rot // 2, axis=-1)
    else:
        partners = turned.reshape(*turned.shape[:-1], n_rot // 2, 2)[..., ::-1].reshape(turned.shape)
    cosines, sines = (rows[:, None, i].astype(x.dtype) for i in (0, 1))
    y = x.copy()
    y[..., first : first + n_rot] = turned * cosines + partners * sines
    return y


def softmax(x: Array) -> Array:
    """Softmax along the last axis of x [..., n]; at least one value of a row must be finite."""
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def summaries(x: Array, scores: Array, positions: Array, every: int, state: Array) -> tuple[Array, Array]:
    """The sums of ``model.ops.Ops.summarize``, before their norm: [n, n_values], and the state after them.

    x, scores: float [n_tokens, n_values], or [n_tokens, 2 * n_values] where stretches overlap; state: as
    ``model.states.sums`` says, float [3 or 9, n_values].
    """
    parts = state.reshape(-1, 3, state.shape[1]).copy()
    n_values, found = state.shape[1], []
    for value, score, position in zip(x, scores, positions, strict=True):
        halves = zip(value.reshape(-1, n_values), score.reshape(-1, n_values), strict=True)
        for part, (v, s) in zip(parts[-len(value) // n_values :], halves, strict=True):
            if position % every == 0:
                part[:] = s, np.ones_like(s), v
                continue
            largest = np.maximum(part[0], s)
            old, new = np.exp(part[0] - largest), np.exp(s - largest)
            part[:] = largest, part[1] * old + new, part[2] * old + v * new
        if (position + 1) % every:
            continue
        covered = parts[[-1]] if len(parts) == 1 or position < every else parts[[0, 2]]
        weights = np.exp(covered[:, 0] - covered[:, 0].max(axis=0))
        found.append((covered[:, 2] * weights).sum(axis=0) / (covered[:, 1] * weights).sum(axis=0))
        if len(parts) > 1:
            parts[0] = parts[1]
    return np.reshape(found, (len(found), n_values)).astype(x.dtype), parts.reshape(state.shape)


def ngram_rows(ids: Array, before: Array, ngrams: NGrams) -> tuple[Array, Array]:
    """The rows of each token, int64 [n, n_heads], and the tokens before the next one, as ``NGrams.state`` has them."""
    known, found = [int(n) for n in before], []
    for token in ids.tolist():
        tokens, cut = [token], False
        for earlier in known:
            cut = cut or earlier == 0 or earlier - 1 == ngrams.end
            tokens.append(ngrams.end if cut else earlier - 1)
        mixed, total = [], 0
        for one, multiplier in zip(tokens, ngrams.multipliers, strict=True):
            total ^= one * multiplier % 2**64
            mixed.append(total)
        heads = zip(range(ngrams.n_heads), ngrams.offsets, ngrams.rows, strict=True)
        found.append([offset + mixed[ngrams.tokens_of(head) - 1] % n for head, offset, n in heads])
        known = [token + 1, *known[:-1]]
    return np.array(found, np.int64).reshape(len(ids), ngrams.n_heads), np.array(known)


_SCORES: dict[str, Callable[[Array], Array]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "softmax_chosen": lambda x: x,
    "sqrt_softplus": lambda x: np.sqrt(ACTIVATIONS["softplus"](x)),
}


def sinkhorn(x: Array, rounds: int, eps: float) -> Array:
    """x [n, size, size] made nearly doubly stochastic, as ``model.ops.Ops.sinkhorn`` says."""
    y = softmax(x) + x.dtype.type(eps)
    for i in range(rounds):
        if i:
            y = y / (y.sum(axis=2, keepdims=True) + x.dtype.type(eps))
        y = y / (y.sum(axis=1, keepdims=True) + x.dtype.type(eps))
    return y


def choose(
    logits: Array,
    n_used: int,
    scores: str = "softmax",
    bias: Array | None = None,
    groups: tuple[int, int] = (1, 1),
    normalize: bool = False,
    scale: float = 1.0,
    shared_by: int = 1,
) -> tuple[Array, Array]:
    """The experts of each token and their weights, [n, n_used] each, from logits [n, n_experts].

    The arguments are those of ``model.ops.Ops.choose_experts``.
    """
    weights = _SCORES[scores](logits)
    n_groups, n_groups_used = groups
    # without a bias the logits have the order of the scores, of which rounding may make equals
    keys = logits if bias is None and n_groups == 1 else weights + (0 if bias is None else bias)
    if n_groups > 1:
        grouped = keys.reshape(len(keys), n_groups, -1)
        totals = np.sort(grouped, axis=2)[..., -2:].sum(axis=2)
        left_out = np.argsort(np.where(np.isnan(totals), -np.inf, -totals), axis=1, kind="stable")[
            :, n_groups_used:
        ]
        grouped = grouped.copy()
        np.put_along_axis(grouped, left_out[..., None], -np.inf, axis=1)
        keys = grouped.reshape(keys.shape)
    ids = np.argsort(np.where(np.isnan(keys), -np.inf, -keys), axis=1, kind="stable")[:, :n_used]
    ids = ids // shared_by
    chosen = np.take_along_axis(weights, ids, axis=1)
    if scores == "softmax_chosen":
        chosen = softmax(chosen)
    return ids, weighed(chosen, normalize, scale)


def weighed(scores: Array, normalize: bool, scale: float) -> Array:
    """The weights of chosen experts, [n, n_used], from their scores."""
    if normalize:
        # llama.cpp's least divisor (src/llama-graph.cpp, build_moe_ffn)
        scores = scores / np.maximum(np.sum(scores, axis=1, keepdims=True), 2.0**-14)
    return scores * scores.dtype.type(scale)


def looked_up(logits: Array, ids: Array, table: Array, normalize: bool, scale: float) -> tuple[Array, Array]:
    """As ``choose``, but the experts are those of the tokens' rows of ``table`` [vocabulary, n_used]."""
    chosen = table[ids]
    scores = np.take_along_axis(_SCORES["sqrt_softplus"](logits), chosen, axis=1)
    return chosen, weighed(scores, normalize, scale)


def attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    *,
    n_past: int = 0,
    window: int = 0,
    chunked: bool = False,
    causal: bool = True,
    cap: float = 0.0,
    slopes: Array | None = None,
    sinks: Array | None = None,
    chosen: list[list[Array]] | None = None,
) -> Array:
    """Attention with grouped heads.

    q [n, n_heads, d] stands at positions n_past .. n_past+n-1; k [n_past+n, n_kv_heads, d] and
    v [n_past+n, n_kv_heads, dv] at 0 .. . With a window w a query sees w keys, itself included;
    0 means all; if it is chunked, those from the last multiple of w on. Without causal order it
    also sees what comes after it. slopes [n_heads]: what a score loses with each position of distance (ALiBi,
    arXiv:2108.12409). sinks [n_heads]: a score without a value (arXiv:2309.17453).
    chosen: the positions of the keys that each query sees with each kv head.
    Returns [n, n_heads, dv]. One query at a time: no quadratic memory.
    """
    n, n_heads, _ = q.shape
    group = n_heads // k.shape[1]
    out = np.empty((n, n_heads, v.shape[2]), q.dtype)
    for i in range(n):
        end = n_past + (i + 1 if causal else n)
        start = max(0, end - window) if window else 0
        if chunked:
            start = (end - 1) // window * window
        for head in range(n_heads):
            seen: Any = slice(start, end) if chosen is None else chosen[i][head // group]
            keys, values = k[seen, head // group], v[seen, head // group]
            scores = soft_cap(keys @ q[i, head] * q.dtype.type(scale), cap)
            if slopes is not None:
                scores = scores - slopes[head] * np.arange(end - 1 - start, -1, -1)
            if sinks is not None:
                scores = np.append(scores, q.dtype.type(sinks[head]))
            out[i, head] = softmax(scores)[: len(values)] @ values
    return out


def best_blocks(scores: Array, block: int, k: int, local: int) -> Array:
    """The positions in the k blocks with the largest of ``scores`` [n], the last ``local`` blocks first."""
    starts = np.arange(0, len(scores), block)
    best = np.maximum.reduceat(scores, starts)
    best[max(0, len(best) - local) :] = np.inf
    chosen = np.sort(np.argsort(-best, kind="stable")[:k])
    positions = (starts[chosen][:, None] + np.arange(block)).reshape(-1)
    return positions[positions < len(scores)]


def convolution(x: Array, w: Array, before: Array) -> tuple[Array, Array]:
    """Causal convolution of each column: x [n, width], w [taps, width], before [taps - 1, width] -> [n, width].

    Also returns the last taps - 1 inputs, which stand before the next token.
    """
    inputs = np.concatenate([before, x])
    out = sum(w[i] * inputs[i : i + len(x)] for i in range(len(w)))
    return np.asarray(out), inputs[len(x) :]


def linear_attention(
    q: Array, k: Array, v: Array, decay: Array, write: Array, state: Array, delta: bool
) -> tuple[Array, Array]:
    """Attention without a softmax, over a state that decays; one token after another.

    q, k [n, heads, d], v [n, heads, dv], decay [n, heads, 1 or d], write [n, heads], state [heads, d, dv].
    Returns [n, heads, dv] and the new state.  Without ``delta`` the recurrent form of Mamba 2
    (Dao and Gu, arXiv:2405.21060), with it the gated delta rule (Yang et al., arXiv:2412.06464).
    """
    out = np.empty_like(v)
    for t in range(len(q)):
        state = state * decay[t, :, :, None]
        value = v[t] - np.einsum("hi,hij->hj", k[t], state) if delta else v[t]
        state = state + k[t, :, :, None] * (write[t, :, None] * value)[:, None, :]
        out[t] = np.einsum("hi,hij->hj", q[t], state)
    return out, state


def selective_scan(x: Array, step: Array, a: Array, b: Array, c: Array, state: Array) -> tuple[Array, Array]:
    """Mamba's recurrence (Gu and Dao, arXiv:2312.00752): x, step [n, width], a, state [size, width], b, c [n, size].

    Returns [n, width] and the new state.
    """
    out = np.empty_like(x)
    for t in range(len(x)):
        state = np.exp(step[t] * a) * state + b[t, :, None] * (step[t] * x[t])
        out[t] = c[t] @ state
    return out, state


def quantize_blocks(x: Array) -> tuple[Array, Array]:
    """Activations as int8 in blocks of 32: integers int8 [..., n/32, 32] and scales float32 [..., n/32].

    The scale is max|x| / 127 and rounding is half to even; a block of zeros has scale 0.
    """
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    peak = np.max(np.abs(blocks), axis=-1)
    inverse = np.zeros_like(peak)
    np.divide(np.float32(127), peak, out=inverse, where=peak > 0)
    integers = np.rint(blocks * inverse[..., None]).astype(np.int8)
    return integers, peak * np.float32(1 / 127)


def round_activations(x: Array) -> Array:
    """What is left of x [..., n] after int8 quantization in blocks of 32, as float32."""
    integers, scale = quantize_blocks(x)
    return (integers * scale[..., None]).reshape(x.shape).astype(np.float32)
