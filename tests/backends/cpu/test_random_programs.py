"""Random architectures, recorded, planned and run: what a step says it touches is what it touches.

Working memory is filled with NaN before each run, so a value that is read before it
is written, or whose memory was given away too early, shows at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gguf
import llmgen.backends.cpu.model as engine
from archs import build_variant
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.runtime.thread_policy import ThreadPolicy
from llmgen.backends.numpy import functions
from llmgen.backends.numpy.functions import ACTIVATIONS, choose, layer_norm, rms_norm
from llmgen.gguf import GGUFFile
from llmgen.model.archs.llama import Llama
from llmgen.model.ops import Ops
from llmgen.model.states import Recurrent, State
from llmgen.model.weights import Vector, Weights

N_EMBD, N_FF = 256, 384
MATRICES = {  # name: rows, columns
    "attn_q": (N_EMBD, N_EMBD),
    "attn_k": (N_EMBD, N_EMBD),
    "attn_v": (N_EMBD, N_EMBD),
    "attn_output": (N_EMBD, N_EMBD),
    "ffn_gate": (N_FF, N_EMBD),
    "ffn_up": (N_FF, N_EMBD),
    "ffn_down": (N_EMBD, N_FF),
}
N_EXPERTS, N_USED = 8, 3
EXPERTS = {
    "blk.0.ffn_gate_inp.weight": [N_EMBD, N_EXPERTS],
    "blk.0.ffn_up_exps.weight": [N_EMBD, N_FF, N_EXPERTS],
    "blk.0.ffn_down_exps.weight": [N_FF, N_EMBD, N_EXPERTS],
    "blk.0.ffn_down_exps.bias": [N_EMBD, N_EXPERTS],
}


KINDS = [
    *("rms", "layer", "linear", "linear", "linear", "bias", "add", "add", "add", "silu", "gelu", "sigmoid"),
    *("only gelu", "only silu", "only relu", "times", "times row", "add row", "scale", "clamp", "gate"),
    *("only softplus", "turn", "convolve", "attend", "delta", "scan", "experts", "spread", "streams"),
]
HEADS, KEY_DIM, SIZE, TAPS = 4, 8, 6, 3
N_PROMPT, N_ALONE = 21, 5
"""Tokens of the prompt, and generated ones of as many sequences."""


def state_of(kind: str, width: int) -> Recurrent | None:
    """The state that an operation on so many values needs."""
    return {
        "convolve": Recurrent(width, TAPS - 1),
        "scan": Recurrent(width, SIZE),
        "attend": Recurrent(width // HEADS, HEADS * KEY_DIM),
        "delta": Recurrent(width // HEADS, HEADS * KEY_DIM),
    }.get(kind)


def row(n: int, seed: int, low: float = -0.5) -> np.ndarray:
    """A vector of weights."""
    return np.random.default_rng(seed).uniform(low, 0.5, n).astype(np.float32)


def random_ops(rng: random.Random) -> list[tuple[Any, ...]]:
    """(operation, operands by number, weight): value 0 is the embedding; widths stay consistent."""
    widths, ops = [N_EMBD], []

    def of(width: int) -> int:
        return rng.choice([i for i, w in enumerate(widths) if w == width])

    for _ in range(rng.randint(4, 24)):
        kind = rng.choice(KINDS)
        if kind in ("linear", "bias"):
            name = rng.choice([n for n, (_, cols) in MATRICES.items() if cols in widths])
            ops.append((kind, of(MATRICES[name][1]), f"blk.{rng.randint(0, 1)}.{name}"))
            widths.append(MATRICES[name][0])
            continue
        narrow = ("rms", "layer", "times row", "add row", "experts", "spread")
        width = N_EMBD if kind in narrow else rng.choice(widths)
        ops.append((kind, of(width), of(width)))
        widths.append(width)
    ops.append(("rms", of(N_EMBD), 0))
    return ops


def widths_of(ops: list[tuple[Any, ...]]) -> list[int]:
    """How many values each value has."""
    widths = [N_EMBD]
    for kind, x, y in ops:
        widths.append(MATRICES[y[6:]][0] if kind in ("linear", "bias") else widths[x])
    return widths


def states_of(ops: list[tuple[Any, ...]]) -> list[State]:
    """The states of all operations, in order."""
    found = [state_of(kind, widths_of(ops)[x]) for kind, x, _ in ops]
    return [state for state in found if state]


def recurred(b: Ops, w: Weights, kind: str, x: Any, y: Any, state: Any) -> Any:
    """An operation over a state; what it needs besides x is taken from parts of y."""

    def fixed(name: str, *shape: int) -> Vector:
        return w.derived(f"{name}{shape}", lambda: row(int(np.prod(shape)), len(name)).reshape(shape))

    if kind == "convolve":
        return b.convolve(x, fixed("taps", TAPS, x.n), fixed("bias", x.n), state)
    if kind == "scan":
        step = b.activate(y, "sigmoid")
        parts = (b.head_part(y, 1, first, SIZE) for first in (0, SIZE))
        return b.selective_scan(x, step, fixed("a", SIZE, x.n), *parts, fixed("skip", x.n), state)
    q, k = (b.head_part(y, 2, first, KEY_DIM) for first in (3, 16))
    k = b.scale(b.activate(k, "sigmoid"), 0.25)
    decay, write = (b.activate(b.head_part(y, HEADS, first, 1), "sigmoid") for first in (0, 5))
    options: dict[str, Any] = (
        {"delta": True, "tiled": True} if kind == "delta" else {"skip": fixed("d", HEADS)}
    )
    return b.linear_attend(q, k, x, decay, state, HEADS, write=write, **options)


def recorded(ops: list[tuple[Any, ...]]) -> Callable[[Llama, Ops, Weights, Any], None]:
    """The operations as the forward pass of an architecture."""

    def forward(c: Llama, b: Ops, w: Weights, states: Any) -> None:
        values, slots = [b.embed(w.matrix("token_embd", c.vocab_size, N_EMBD))], iter(states)
        norm = w.vector("blk.0.attn_norm", N_EMBD)
        for kind, x, y in ops:
            if kind in ("linear", "bias"):
                bias = w.optional_vector(f"{y}.bias", MATRICES[y[6:]][0]) if kind == "bias" else None
                values.append(b.linear(values[x], w.matrix(y, *MATRICES[y[6:]]), bias))
            elif kind == "rms":
                values.append(b.rms_norm(values[x], norm, c.norm_eps))
            elif kind == "layer":
                values.append(b.layer_norm(values[x], norm, None, c.norm_eps))
            elif kind == "add":
                values.append(b.add(values[x], values[y]))
            elif kind in ("times row", "add row"):
                values.append((b.multiply if kind == "times row" else b.add)(values[x], norm))
            elif kind == "times":
                values.append(b.multiply(values[x], values[y]))
            elif kind == "scale":
                values.append(b.scale(values[x], 0.3))
            elif kind == "clamp":
                values.append(b.clamp(values[x], 0.5))
            elif kind == "gate":
                values.append(b.gate_heads(values[x], values[y]))  # heads of one value
            elif kind == "turn":
                values.append(b.head_part(values[x], 1, 0, values[x].n))
            elif kind == "streams":
                mixing = b.sinkhorn(b.head_part(values[y], 1, 3, HEADS * HEADS), 2, 1e-3)
                values.append(b.blend(values[x], mixing, HEADS))
            elif state_of(kind, N_EMBD):
                values.append(recurred(b, w, kind, values[x], values[y], next(slots)))
            elif kind in ("experts", "spread"):
                values.append(mixture(b, w, values[x], values[y], kind == "spread"))
            elif kind.startswith("only "):
                values.append(b.activate(values[x], kind.removeprefix("only ")))
            else:
                values.append(b.gated(values[x], values[y], kind))
        b.logits(values[-1], w.matrix("output", c.vocab_size, N_EMBD))

    return forward


def sequences(values: np.ndarray) -> list[np.ndarray]:
    """The tokens of the prompt, then each generated one by itself."""
    return np.split(values, range(N_PROMPT, N_PROMPT + N_ALONE))


def recurrence(kind: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``recurred`` in numpy, for the tokens of one sequence."""
    n, width = x.shape
    if kind == "convolve":
        taps = row(TAPS * width, 4).reshape(TAPS, width).astype(x.dtype)
        return functions.convolution(x, taps, np.zeros((TAPS - 1, width)))[0] + row(width, 4)
    if kind == "scan":
        a, b, c = row(SIZE * width, 1).reshape(SIZE, width), y[:, :SIZE], y[:, SIZE : 2 * SIZE]
        step = ACTIVATIONS["sigmoid"](y)
        return functions.selective_scan(x, step, a, b, c, np.zeros((SIZE, width)))[0] + row(width, 4) * x
    delta, twos, fours = kind == "delta", y.reshape(n, 2, -1), y.reshape(n, HEADS, -1)
    own = [0, 1, 0, 1] if delta else [0, 0, 1, 1]
    q, k = twos[:, own, 3 : 3 + KEY_DIM], 0.25 * ACTIVATIONS["sigmoid"](twos[:, own, 16 : 16 + KEY_DIM])
    decay, write = (ACTIVATIONS["sigmoid"](fours[..., first]) for first in (0, 5))
    v = x.reshape(n, HEADS, -1)
    state = np.zeros((HEADS, KEY_DIM, v.shape[2]))
    out, _ = functions.linear_attention(q, k, v, decay[..., None], write, state, delta)
    return (out if delta else out + row(HEADS, 1)[:, None] * v).reshape(x.shape)


def mixture(b: Ops, w: Weights, x: Any, y: Any, spread: bool) -> Any:
    """Experts that y chooses work on x; spread: their weights are applied first."""
    name = "blk.0.ffn_"
    choice = b.choose_experts(b.linear(y, w.matrix(f"{name}gate_inp", N_EXPERTS, N_EMBD)), N_USED)
    up = w.experts(f"{name}up_exps", N_EXPERTS, N_FF, N_EMBD)
    rows = b.spread(x, choice) if spread else x
    inner = b.gated(b.expert_linear(rows, up, choice), b.expert_linear(x, up, choice), "silu")
    down = w.experts(f"{name}down_exps", N_EXPERTS, N_EMBD, N_FF)
    bias = w.matrix(f"{name}down_exps.bias", N_EXPERTS, N_EMBD)
    return b.mix(b.expert_linear(inner, down, choice, bias), choice, weighted=not spread)


def computed_mixture(
    weights: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, spread: bool
) -> np.ndarray:
    router, up, down, bias = (weights[name] for name in EXPERTS)
    out = np.zeros_like(x)
    for t, (ids, factors) in enumerate(zip(*choose(y @ router.T, N_USED), strict=True)):
        for expert, factor in zip(ids, factors, strict=True):
            entering = x[t] * factor if spread else x[t]
            inner = ACTIVATIONS["silu"](up[expert] @ entering) * (up[expert] @ x[t])
            out[t] += (down[expert] @ inner + bias[expert]) * (1 if spread else factor)
    return out


def computed(
    ops: list[tuple[Any, ...]], weights: dict[str, np.ndarray], ids: list[int], eps: float
) -> np.ndarray:
    """The same in numpy, float64."""
    values = [weights["token_embd.weight"][ids]]
    norm = weights["blk.0.attn_norm.weight"]
    for kind, x, y in ops:
        if kind in ("linear", "bias"):
            out = values[x] @ weights[f"{y}.weight"].T
            values.append(out + weights.get(f"{y}.bias", 0) if kind == "bias" else out)
        elif kind in ("rms", "layer"):
            normed = (
                rms_norm(values[x], norm, eps) if kind == "rms" else layer_norm(values[x], norm, None, eps)
            )
            values.append(normed)
        elif kind == "add":
            values.append(values[x] + values[y])
        elif kind == "times":
            values.append(values[x] * values[y])
        elif kind in ("times row", "add row"):
            values.append(values[x] * norm if kind == "times row" else values[x] + norm)
        elif kind == "scale":
            values.append(values[x] * 0.3)
        elif kind == "clamp":
            values.append(np.clip(values[x], -0.5, 0.5))
        elif kind == "gate":
            values.append(values[x] * ACTIVATIONS["sigmoid"](values[y]))
        elif kind == "turn":
            values.append(values[x])
        elif kind == "streams":
            parts = values[x].reshape(len(ids), HEADS, -1)
            logits = values[y][:, 3 : 3 + HEADS * HEADS].reshape(len(ids), HEADS, HEADS)
            mixing = functions.sinkhorn(logits, 2, 1e-3)
            values.append(np.einsum("tij,tin->tjn", mixing, parts).reshape(values[x].shape))
        elif state_of(kind, N_EMBD):
            pairs = zip(sequences(values[x]), sequences(values[y]), strict=True)
            values.append(np.concatenate([recurrence(kind, *pair) for pair in pairs]))
        elif kind in ("experts", "spread"):
            values.append(computed_mixture(weights, values[x], values[y], kind == "spread"))
        elif kind.startswith("only "):
            values.append(ACTIVATIONS[kind.removeprefix("only ")](values[x]))
        else:
            values.append(ACTIVATIONS[kind](values[x]) * values[y])
    return values[-1] @ weights["output.weight"].T


def poisoned(model: Model) -> Model:
    """NaN in all working memory (-1 in integers)."""
    for arena in (model._workspace.shared, *model._workspace._private):
        arena.data[:] = 0xFF
    return model


def run(model: Model, ids: list[int]) -> np.ndarray:
    """Logits as a prompt, then as five generated tokens of different sequences."""
    prompt = poisoned(model).prefill(model.new_sequence(), ids, logits="all")
    assert prompt is not None
    seqs = [model.new_sequence() for _ in range(N_ALONE)]
    generated = poisoned(model).decode(seqs, ids[:N_ALONE]).copy()
    alone = poisoned(model).decode([model.new_sequence()], ids[:1])
    np.testing.assert_array_equal(alone[0], generated[0])
    return np.concatenate([prompt, generated])


@pytest.fixture(autouse=True)
def _all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadPolicy, "report", lambda *_: None)


def weights_of(file: GGUFFile) -> dict[str, np.ndarray]:
    found = {}
    for tensor in gguf.GGUFReader(file.path).tensors:
        found[tensor.name] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
    return found


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
@pytest.mark.parametrize("seed", range(12))
def test_random_architectures(seed: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(random_ops(random.Random(seed)), seed, kind, monkeypatch)


@pytest.mark.parametrize("seed", range(100, 108))
def test_random_recurrences(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among other operations, so that what they read and write is shared out in every way."""
    rng = random.Random(seed)
    ops = random_ops(rng)
    for i, (kind, x, y) in enumerate(ops[:-1]):
        if (
            state_of(kind, N_EMBD) is None
            and kind not in ("linear", "bias", "rms", "layer")
            and "row" not in kind
        ):
            ops[i] = (rng.choice([kind, "convolve", "attend", "delta", "scan"]), x, y)
    check(ops, seed, "f32", monkeypatch)


@pytest.mark.parametrize(
    "ops",
    [
        [("linear", 0, "blk.0.attn_q"), ("add", 0, 1)],  # the addend is what the matrix multiplies
        [("linear", 0, "blk.0.attn_q"), ("add", 1, 1)],
        [("rms", 0, 0), ("linear", 1, "blk.0.attn_q"), ("add", 0, 2), ("add", 3, 2)],  # needed again
        [("rms", 0, 0), ("linear", 1, "blk.0.attn_q"), ("add", 0, 2), ("add", 3, 0)],
        [("rms", 0, 0), ("linear", 1, "blk.0.attn_q"), ("add", 0, 2), ("rms", 3, 0)],  # a true residual
        [
            ("rms", 0, 0),
            ("rms", 1, 0),
            ("linear", 1, "blk.0.attn_q"),
            ("add", 2, 3),
            ("add", 0, 4),
        ],  # a sum of sums
        [("rms", 0, 0), ("experts", 1, 1), ("add", 0, 2), ("spread", 3, 1), ("add", 3, 4)],
        [("linear", 0, "blk.0.attn_q"), ("experts", 1, 1), ("experts", 1, 2), ("spread", 3, 1)],
        [  # the sum of two products is added
            *(("rms", 0, 0), ("linear", 1, "blk.0.attn_q"), ("linear", 1, "blk.0.attn_k")),
            *(("add", 2, 3), ("add", 0, 4), ("rms", 5, 0)),
        ],
    ],
)
def test_sums_into_the_matrix_product(ops: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt's programs let the panel kernel add where nobody can notice."""
    check(ops, 0, "f32", monkeypatch)


def check(ops: list[tuple[Any, ...]], seed: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Llama, "forward", recorded(ops))
    monkeypatch.setattr(Llama, "states", lambda _: states_of(ops))
    monkeypatch.setattr(engine, "check_all_read", lambda *_: None)  # these read a few of the file's tensors
    ids = np.random.default_rng(seed).integers(0, 128, N_PROMPT).tolist()
    with GGUFFile.open(build_variant("llama-dense", "experts", reshape=EXPERTS, type=kind)) as file:
        results = []
        for n_threads in (1, 2, 3):
            model = Model.load(file, n_ctx=64, n_threads=n_threads)
            results.extend(run(model, ids) for _ in range(1 if n_threads == 1 else 3))
            model.close()
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])
        if kind == "f32":
            expected = computed(ops, weights_of(file), ids + ids[:N_ALONE], model.config.norm_eps)
            error = np.sum((results[0] - expected) ** 2) / np.sum(expected**2)
            assert error < 1e-8
