"""The whole forward pass in numpy: ten architectures, from token ids to logits."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from gguf.quants import dequantize

from gguf import GGMLQuantizationType, GGUFReader
from naive import kernels
from naive.kernels import Array
from naive.settings import ALWAYS_TIED, ATTENTION_OUT_BIAS, FFN_BIAS, OUTPUT_BIAS, read_settings

FLOAT_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


def nmse(a: Array, b: Array) -> float:
    """Normalized mean squared error of a against the reference b."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.sum((a - b) ** 2) / np.sum(b * b))


def logits(path_or_reader: Any, tokens: Any, n_past: int = 0, **options: Any) -> Array:
    """float32 [len(tokens) - n_past, vocab]: the logits after each token from the n_past-th on."""
    return Oracle(path_or_reader, **options).logits(tokens, n_past)


class Oracle:
    """One GGUF file, ready to compute.

    dtype: float64 for the truth, float32 for large models. quantize_activations: round
    what enters a quantized weight to int8 per 32, as llmgen's kernels do; with f16_cache keys
    and values pass through float16. n_ctx: the session's context, by default the trained one.
    """

    def __init__(
        self,
        path_or_reader: str | os.PathLike[str] | GGUFReader,
        *,
        n_ctx: int | None = None,
        dtype: Any = np.float64,
        quantize_activations: bool = False,
        f16_cache: bool = False,
    ) -> None:
        reader = path_or_reader if isinstance(path_or_reader, GGUFReader) else GGUFReader(path_or_reader)
        self.dtype, self.quantize_activations, self.f16_cache = dtype, quantize_activations, f16_cache
        self.tensors: dict[str, Array] = {
            t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors
        }
        self.quantized = {t.name for t in reader.tensors if t.tensor_type not in FLOAT_TYPES}
        self.settings = read_settings(reader, self.tensors, n_ctx)
        self.architecture = self.settings.architecture

    # --- building blocks ---

    def logits(self, tokens: Any, n_past: int = 0) -> Array:
        """float32 [len(tokens) - n_past, vocab] for tokens[n_past:]; the tokens before are context."""
        s = self.settings
        x = self.tensors["token_embd.weight"][np.asarray(tokens)].astype(self.dtype)
        x = x * self.dtype(s.embedding_scale)
        layer = LAYERS[self.architecture]
        for index in range(s.n_layers):
            x = layer(self, index, x)
        x = self.norm(x[n_past:], "output_norm")
        tied = self.architecture in ALWAYS_TIED or "output.weight" not in self.tensors
        out = self.linear(x, "token_embd" if tied else "output", bias=False)
        if self.architecture in OUTPUT_BIAS and "output.bias" in self.tensors:  # tied or not
            out = out + self.tensors["output.bias"].astype(self.dtype)
        return kernels.soft_cap(out, s.final_cap).astype(np.float32)

    def linear(self, x: Array, name: str, bias: bool) -> Array:
        """x [n, n_in] times the named weight, plus its bias where the file has one and it counts."""
        weight, b = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        if self.quantize_activations and f"{name}.weight" in self.quantized:
            x = kernels.round_activations(x).astype(self.dtype)
        y = kernels.matmul(weight, x)
        return y + b.astype(self.dtype) if bias and b is not None else y

    def norm(self, x: Array, name: str, optional: bool = False) -> Array:
        """x normalized over its last axis the way of the architecture, with the named weight."""
        if optional and f"{name}.weight" not in self.tensors:
            return x
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        if self.architecture == "stablelm":
            return kernels.layer_norm(x, weight, bias, self.settings.eps)
        return kernels.rms_norm(x, weight, self.settings.eps)

    def qkv(self, x: Array, index: int) -> tuple[Array, Array, Array]:
        """Queries, keys, values as flat rows, from three matrices or from one that stacks them."""
        s, names = self.settings, [f"blk.{index}.attn_{which}" for which in "qkv"]
        fused = f"blk.{index}.attn_qkv"
        if f"{fused}.weight" not in self.tensors:
            q, k, v = (self.linear(x, name, bias=True) for name in names)
            return q, k, v
        rows = self.linear(x, fused, bias=True)
        biases = [self.tensors.get(f"{name}.bias") for name in names]
        if f"{fused}.bias" not in self.tensors and all(b is not None for b in biases):
            rows = rows + np.concatenate(biases).astype(self.dtype)  # type: ignore[arg-type]
        ends = np.cumsum([s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim])
        q, k, v = np.split(rows, ends, axis=1)
        return q, k, v

    def attention(self, x: Array, index: int) -> Array:
        """Self-attention of one layer over x [n, n_embd] (already normalized), projected back."""
        s, block = self.settings, f"blk.{index}"
        q, k, v = self.qkv(x, index)
        n = len(x)
        if self.architecture == "olmo2":  # normalizes the whole width, before the split into heads
            q, k = self.norm(q, f"{block}.attn_q_norm"), self.norm(k, f"{block}.attn_k_norm")
        q, k, v = q.reshape(n, s.n_heads, -1), k.reshape(n, s.n_kv_heads, -1), v.reshape(n, s.n_kv_heads, -1)
        if (
            self.architecture in ("qwen3", "gemma3", "stablelm")
            and f"{block}.attn_q_norm.weight" in self.tensors
        ):
            # One weight for all heads; stablelm: one row per head. Both broadcast.
            q, k = self.norm(q, f"{block}.attn_q_norm"), self.norm(k, f"{block}.attn_k_norm")
        positions = np.arange(n)
        q, k = (kernels.rotate(each, s.ropes[index], positions) for each in (q, k))
        if s.temperature_scale:
            growth = 1 + s.temperature_scale * np.log(positions // s.n_ctx_orig + 1.0)
            q = q * growth[:, None, None].astype(self.dtype)
        if self.f16_cache:
            k, v = k.astype(np.float16).astype(self.dtype), v.astype(np.float16).astype(self.dtype)
        out = kernels.attention(q, k, v, s.attention_scale, window=s.windows[index], cap=s.attention_cap)
        bias = self.architecture in ATTENTION_OUT_BIAS
        return self.linear(out.reshape(n, -1), f"{block}.attn_output", bias)

    def ffn(self, x: Array, index: int) -> Array:
        """The gated feed-forward network of one layer."""
        block, bias = f"blk.{index}", self.architecture in FFN_BIAS
        up = self.linear(x, f"{block}.ffn_up", bias)
        if self.architecture == "phi3":  # one matrix: first the gate's rows, then up's
            gate, up = np.split(up, 2, axis=1)
        else:
            gate = self.linear(x, f"{block}.ffn_gate", bias)
        activation = kernels.gelu if self.architecture.startswith("gemma") else kernels.silu
        return self.linear(activation(gate) * up, f"{block}.ffn_down", bias)


# --- one layer, per family ---


def pre_norm_layer(m: Oracle, index: int, x: Array) -> Array:
    """llama, mistral3, qwen2, qwen3, gemma, phi3."""
    x = x + m.attention(m.norm(x, f"blk.{index}.attn_norm"), index)
    return x + m.ffn(m.norm(x, f"blk.{index}.ffn_norm"), index)


def sandwich_layer(m: Oracle, index: int, x: Array) -> Array:
    """gemma2, gemma3: norms before and after each half."""
    a = m.attention(m.norm(x, f"blk.{index}.attn_norm"), index)
    x = x + m.norm(a, f"blk.{index}.post_attention_norm")
    f = m.ffn(m.norm(x, f"blk.{index}.ffn_norm"), index)
    return x + m.norm(f, f"blk.{index}.post_ffw_norm")


def post_norm_layer(m: Oracle, index: int, x: Array) -> Array:
    """olmo2: norms after each half only."""
    x = x + m.norm(m.attention(x, index), f"blk.{index}.post_attention_norm")
    return x + m.norm(m.ffn(x, index), f"blk.{index}.post_ffw_norm")


def stablelm_layer(m: Oracle, index: int, x: Array) -> Array:
    """stablelm: without an ffn_norm both halves read the same normalized input."""
    h = m.norm(x, f"blk.{index}.attn_norm")
    y = x + m.attention(h, index)
    serial = f"blk.{index}.ffn_norm.weight" in m.tensors
    return y + m.ffn(m.norm(y, f"blk.{index}.ffn_norm") if serial else h, index)


LAYERS = {
    "llama": pre_norm_layer,
    "mistral3": pre_norm_layer,
    "qwen2": pre_norm_layer,
    "qwen3": pre_norm_layer,
    "gemma": pre_norm_layer,
    "gemma2": sandwich_layer,
    "gemma3": sandwich_layer,
    "phi3": pre_norm_layer,
    "stablelm": stablelm_layer,
    "olmo2": post_norm_layer,
}
