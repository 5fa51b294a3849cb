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
from archs import build_arch
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.runtime.thread_policy import ThreadPolicy
from llmgen.backends.numpy.functions import ACTIVATIONS, layer_norm, rms_norm
from llmgen.gguf import GGUFFile
from llmgen.model.archs.llama import Llama
from llmgen.model.ops import Ops
from llmgen.model.weights import Weights

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


KINDS = [
    *("rms", "layer", "linear", "linear", "linear", "bias", "add", "add", "add", "silu", "gelu", "sigmoid"),
    *("only gelu", "only silu", "only relu", "times", "times row", "add row", "scale", "clamp", "gate"),
]


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
        width = N_EMBD if kind in ("rms", "layer", "times row", "add row") else rng.choice(widths)
        ops.append((kind, of(width), of(width)))
        widths.append(width)
    ops.append(("rms", of(N_EMBD), 0))
    return ops


def recorded(ops: list[tuple[Any, ...]]) -> Callable[[Llama, Ops, Weights, Any], None]:
    """The operations as the forward pass of an architecture."""

    def forward(c: Llama, b: Ops, w: Weights, states: Any) -> None:
        values = [b.embed(w.matrix("token_embd", c.vocab_size, N_EMBD))]
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
            elif kind.startswith("only "):
                values.append(b.activate(values[x], kind.removeprefix("only ")))
            else:
                values.append(b.gated(values[x], values[y], kind))
        b.logits(values[-1], w.matrix("output", c.vocab_size, N_EMBD))

    return forward


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
    seqs = [model.new_sequence() for _ in range(5)]
    generated = poisoned(model).decode(seqs, ids[:5]).copy()
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


@pytest.mark.parametrize(
    "ops",
    [
        [("linear", 0, "blk.0.attn_q"), ("add", 0, 1)],  # the addend is what the matrix multiplies
        [("linear", 0, "blk.0.attn_q"), ("add", 1, 1)],
        [("rms", 0, 0), ("linear", 1, "blk.0.attn_q"), ("add", 0, 2), ("add", 3, 2)],  # needed again
        [("rms", 0, 0), ("linear", 1, "blk.0.attn_q"), ("add", 0, 2), ("add", 3, 0)],
        [("rms", 0, 0), ("linear", 1, "blk.0.attn_q"), ("add", 0, 2), ("rms", 3, 0)],  # a true residual
    ],
)
def test_sums_into_the_matrix_product(ops: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt's programs let the panel kernel add where nobody can notice."""
    check(ops, 0, "f32", monkeypatch)


def check(ops: list[tuple[Any, ...]], seed: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Llama, "forward", recorded(ops))
    monkeypatch.setattr(engine, "check_all_read", lambda *_: None)  # these read a few of the file's tensors
    ids = np.random.default_rng(seed).integers(0, 128, 21).tolist()
    with GGUFFile.open(build_arch("llama-dense", kind)) as file:
        results = []
        for n_threads in (1, 2, 3):
            model = Model.load(file, n_ctx=64, n_threads=n_threads)
            results.extend(run(model, ids) for _ in range(1 if n_threads == 1 else 3))
            model.close()
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])
        if kind == "f32":
            expected = computed(ops, weights_of(file), ids + ids[:5], model.config.norm_eps)
            error = np.sum((results[0] - expected) ** 2) / np.sum(expected**2)
            assert error < 1e-8
