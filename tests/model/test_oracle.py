"""The oracle itself, against llama.cpp's logits and against formulas worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import variants
from archs import CHANGED, SPECS, build_arch, build_variant, changed_file, reference
from llmgen.backends.cpu.dry_run import dry_run
from llmgen.backends.numpy import NumpyModel, functions
from llmgen.errors import UsageError
from llmgen.gguf import GGUFFile
from llmgen.model.archs import read_model
from llmgen.model.runs import Part
from llmgen.model.states import KV
from llmgen.model.weights import Weights
from naive import kernels, logits, nmse
from naive.kernels import Rope

EXACT = {f"{name}-dense" for name in ("llama", "mistral3", "qwen2", "qwen3", "phi3", "stablelm", "olmo2")}


@pytest.mark.parametrize("name", SPECS)
def test_reference_logits(name: str) -> None:
    tokens, expected = reference(name)
    # llama.cpp looks gelu up in a float16 table, whose rounding the models with gelu carry.
    limit = 1e-11 if name in EXACT else 1e-6
    assert nmse(logits(build_arch(name), tokens), expected) < limit


@pytest.mark.parametrize(("name", "kind"), CHANGED)
def test_more_layers_and_experts_yarn_and_scaled_logits(name: str, kind: str) -> None:
    tokens, expected = reference(f"{name}+{kind}")
    with changed_file(name, kind) as path:
        assert nmse(logits(path, tokens), expected) < 1e-6


def rounded_gelu(x: np.ndarray) -> np.ndarray:
    """As llama.cpp's CPU backend computes it: from a table of float16."""
    y = GELU(x.astype(np.float16).astype(x.dtype)).astype(np.float16).astype(x.dtype)
    return np.where(x <= -10, 0, np.where(x >= 10, x, y))


GELU = functions.ACTIVATIONS["gelu"]


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_variants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, expected = variants.reference(name)
    # llama.cpp's gelu comes from a float16 table, and its flash attention rounds queries to float16
    rounded = {"gemma": 1e-8, "minimax-m3": 1e-7}
    limit = next((limit for family, limit in rounded.items() if name.startswith(family)), 3e-11)
    if name.startswith("gemma3n"):  # it makes what gelu leaves large, layer by layer
        monkeypatch.setitem(functions.ACTIVATIONS, "gelu", rounded_gelu)
        limit = 1e-6
    assert nmse(logits(variants.build(name), tokens, n_past=88), expected) < limit


def test_summaries_and_which_of_them_are_chosen() -> None:
    path, tokens, expected = variants.deepseek4_long()
    assert nmse(logits(path, tokens, n_past=298), expected) < 1e-10


def test_groups_of_keys_that_are_chosen_by_their_mean() -> None:
    path, tokens, expected = variants.qwen4exp_few_keys()
    assert nmse(logits(path, tokens)[[82, 86]], expected) < 1e-11


def test_past_tokens_are_context_only() -> None:
    tokens, _ = reference("gemma2-dense")
    path = build_arch("gemma2-dense")
    np.testing.assert_allclose(logits(path, tokens, 40), logits(path, tokens)[40:], rtol=1e-5)


def test_pieces_of_a_prompt() -> None:
    tokens, expected = reference("gemma3-dense")
    with GGUFFile.open(build_arch("gemma3-dense")) as file:
        model = NumpyModel(file)
        seq, other = model.new_sequence(), model.new_sequence()
        rows = [model.forward([Part(seq, tokens[:1])])]
        for first, last in ((1, 7), (7, 30), (30, len(tokens))):
            part = Part(seq, tokens[first:last], last - first)
            rows.append(model.forward([Part(other, tokens[:2], 0), part]))
    assert nmse(np.concatenate(rows), expected) < 1e-8


def test_float32_and_float16_weights_stay_near() -> None:
    tokens, expected = reference("llama-dense")
    assert nmse(logits(build_arch("llama-dense"), tokens, dtype=np.float32), expected) < 1e-11
    assert nmse(logits(build_arch("llama-dense", "f16"), tokens), expected) < 1e-5
    assert nmse(logits(build_arch("llama-dense", "q8_0"), tokens, int8_activations=True), expected) < 1e-2


def test_missing_patterns_take_the_family_default() -> None:
    def windows(name: str, layers: int) -> list[int]:
        changed = {"block_count": ("UINT32", layers)}
        shapes = {f"blk.{i}.attn_norm.weight": [256] for i in range(2, layers)}
        path = build_variant(name, f"{layers}-layers", set_keys=changed, reshape=shapes,
                             drop_keys=("attention.sliding_window_pattern",))  # fmt: skip
        with GGUFFile.open(path) as file:
            return [state.window for state in read_model(file).states() if isinstance(state, KV)]

    assert windows("gemma2-dense", 4) == [32, 0, 32, 0]
    assert windows("gemma3-dense", 7) == [32, 32, 32, 32, 32, 0, 32]
    assert windows("olmo2-dense", 5) == [32, 32, 32, 0, 32]


def ropes(path: Path) -> list[Any]:
    """The rotation of each layer."""
    with GGUFFile.open(path) as file:
        model: Any = read_model(file)
        return list(model.ropes(SimpleNamespace(n_ctx=256), Weights(file)))


def test_files_with_and_without_images_pair_a_heads_values_otherwise() -> None:
    """GLM-4 rotates neighbouring pairs, and halves where positions have several axes."""
    assert [rope.neox for rope in ropes(build_arch("glm4-dense"))] == [True, True]
    assert [rope.neox for rope in ropes(variants.build("glm4-text-only"))] == [False, False]


def test_axes_that_stand_still_do_not_rotate() -> None:
    rope = ropes(variants.build("qwen3vl-axes"))[0]
    # time, height, width by turns: 24, 20 and 16 pairs each, what is left over is the fourth axis
    still = [i for i in range(64) if (i % 3 == 1 and i >= 60) or (i % 3 == 2 and i >= 48)]
    assert np.flatnonzero(rope.frequencies == 0).tolist() == still


def test_the_size_of_baichuan_decides_about_its_positions() -> None:
    def positions(layers: int) -> tuple[float, int]:
        path = build_variant("baichuan-dense", f"{layers}", set_keys={"block_count": ("UINT32", layers)})
        with GGUFFile.open(path) as file:
            model: Any = read_model(file)
        return model.max_bias, ropes(path)[0].n_rot

    assert positions(32) == (0.0, 128)
    assert positions(40) == (8.0, 0)


def test_learned_positions_end() -> None:
    with pytest.raises(UsageError, match="learned positions for 256 tokens"):
        logits(build_arch("gpt2-dense"), [1, 2], n_ctx=257)


def test_long_factors_follow_the_opened_context() -> None:
    with GGUFFile.open(build_arch("phi3-dense")) as file:
        model, weights = read_model(file), Weights(file)
        for n_ctx, name in ((256, "rope_factors_short"), (257, "rope_factors_long")):
            ops: Any = SimpleNamespace(n_ctx=n_ctx)
            factors = model.longrope_factors(ops, weights)
            assert factors is not None
            np.testing.assert_array_equal(factors, weights.values(name, model.n_rot // 2))
            np.testing.assert_allclose(model.rope(factors).frequencies * factors, model.rope().frequencies)


# --- kernel twins ---


def test_rope_pairs() -> None:
    x = np.arange(1.0, 7.0).reshape(1, 1, 6)
    c, s = math.cos(3.0), math.sin(3.0)  # pair 0 turns by the position itself
    paired = kernels.rotate(x, Rope(4), np.array([3]))[0, 0]
    halves = kernels.rotate(x, Rope(4, neox=True), np.array([3]))[0, 0]
    np.testing.assert_allclose(paired[:2], [1 * c - 2 * s, 1 * s + 2 * c])
    np.testing.assert_allclose(halves[[0, 2]], [1 * c - 3 * s, 1 * s + 3 * c])
    np.testing.assert_array_equal(paired[4:], [5, 6])  # beyond n_rot
    np.testing.assert_array_equal(halves[4:], [5, 6])


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones() -> None:
    rope = Rope(64, freq_scale=0.25, yarn=True, n_ctx_orig=4096)
    cos, _ = kernels.rope_tables(rope, np.array([5]))
    plain, _ = kernels.rope_tables(replace(rope, yarn=False, freq_scale=1.0), np.array([5]))
    scaled, _ = kernels.rope_tables(replace(rope, yarn=False), np.array([5]))
    assert cos[0, 0] == plain[0, 0]
    assert cos[0, -1] == scaled[0, -1]


@pytest.mark.parametrize("n_past", [0, 7])
def test_attention_is_masked_softmax(n_past: int) -> None:
    random = np.random.default_rng(1)
    n, window = 9, 4
    q = random.normal(size=(n, 4, 8))
    k, v = random.normal(size=(2, n_past + n, 2, 8))
    out = functions.attention(q, k, v, 0.3, n_past=n_past, window=window, cap=2.0)
    position, key = np.arange(n_past, n_past + n)[:, None], np.arange(n_past + n)[None]
    hidden = (key > position) | (position - key >= window)
    for head in range(4):
        scores = 2.0 * np.tanh(q[:, head] @ k[:, head // 2].T * 0.3 / 2.0)
        weights = functions.softmax(np.where(hidden, -np.inf, scores))
        np.testing.assert_allclose(out[:, head], weights @ v[:, head // 2])


def test_norms() -> None:
    x = np.array([[3.0, 4.0, 0.0, -1.0]])
    weight, bias = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(functions.rms_norm(x, weight, 0.5), x / math.sqrt(26 / 4 + 0.5) * weight)
    expected = (x - 1.5) / math.sqrt(17 / 4 + 0.5) * weight + bias
    np.testing.assert_allclose(functions.layer_norm(x, weight, bias, 0.5), expected)


def test_quantized_activations() -> None:
    x = np.zeros(96, np.float32)
    x[:4] = [127, 0.5, 1.5, -2.5]  # scale 1: halves go to the even integer
    x[64:] = np.linspace(-1, 1, 32)
    integers, scale = functions.quantize_blocks(x)
    assert integers[0, :4].tolist() == [127, 0, 2, -2]
    assert scale[1] == 0
    assert not integers[1].any()
    assert integers[2, 0] == -127
    assert integers[2, -1] == 127
    assert np.abs(functions.round_activations(x) - x).max() <= 0.5 + 1e-6


def test_integer_dots_agree_with_the_dequantized_product() -> None:
    random = np.random.default_rng(2)
    ints = random.integers(-127, 128, (5, 3, 32)).astype(np.int8)
    scales = random.uniform(0.001, 0.01, (5, 3)).astype(np.float32)
    x = random.normal(size=96).astype(np.float32)
    weight = (ints * scales[..., None]).reshape(5, 96)
    blocked = kernels.matvec_int8_q8_0(ints, scales, x)
    np.testing.assert_allclose(blocked, kernels.matmul_int8(weight, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["exaone4-dense", "glm4-dense", "glm4moe-moe", "hy_v3-moe"])
def test_layers_that_guess_further_tokens_are_left_out(name: str) -> None:
    keys = {"block_count": ("UINT32", 3), "nextn_predict_layers": ("UINT32", 1)}
    more = {"blk.2.attn_norm.weight": [256], "blk.2.nextn.eh_proj.weight": [512, 256]}
    path = build_variant(name, "drafts", set_keys=keys, reshape=more)
    tokens, expected = reference(name)
    assert nmse(logits(path, tokens), expected) < 1e-11
    with GGUFFile.open(path) as file:
        dry_run(file)  # no tensor is left unread
