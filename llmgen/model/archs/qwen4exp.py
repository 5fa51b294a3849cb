"""Qwen 4 Exp (llama.cpp's src/models/qwen4exp.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.archs.qwen35 import Qwen35MoE
from llmgen.model.delta_net import DeltaNet
from llmgen.model.hybrid import convolution_weights
from llmgen.model.hyper_connections import Streams
from llmgen.model.keys import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.ngrams import NGrams
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.state_space import MAX_TAPS
from llmgen.model.states import KV, Recurrent, State, sums
from llmgen.model.weights import Vector, Weights


class SigmoidDeltaNet(DeltaNet):
    """The result is gated by a sigmoid."""

    gate = "sigmoid"


@architecture("qwen4exp")
@dataclass(frozen=True, kw_only=True)
class Qwen4Exp(Streams, Qwen35MoE):
    """Qwen 3.5 with residuals of several streams, which are gated value by value and need no other norms; one layer
    brings in embeddings of the last tokens together.

    In a context of more tokens than it chooses, an indexer chooses the keys of a token, some neighbours at a time, by
    the mean of theirs. llama.cpp fills its number of keys up with some of a further group; here groups are whole.
    """

    models = "Qwen 4 Exp"
    delta_net, qkv_bias = SigmoidDeltaNet, False

    low_rank: int
    """Values between the matrices of the streams' gates."""
    n_chosen: int
    """Keys that the indexer chooses."""
    n_indexer_heads: int
    indexer_dim: int
    every: tuple[int, ...]
    """For each layer how many neighbours are chosen together; 0: all keys count."""
    ngram_layer: int
    """The layer with embeddings of several tokens, or -1."""
    ngrams: NGrams | None
    ngram_dim: int
    ngram_taps: int

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", high=MAX_LAYERS)
        given = keys.get("ple.layers")
        layers = given.tolist() if isinstance(given, np.ndarray) else []
        if len(layers) > 1 or not all(isinstance(i, int) and 0 <= i < n_layers for i in layers):
            raise keys.refuse("ple.layers", "one of the layers")
        model = super().read(
            keys,
            n_streams=keys.whole("hyper_connection.count", low=2, high=64),
            low_rank=keys.whole("hyper_connection.low_rank"),
            n_chosen=keys.whole("attention.indexer.top_k", high=MAX_CONTEXT),
            n_indexer_heads=keys.whole("attention.indexer.head_count", high=MAX_HEADS),
            indexer_dim=keys.whole("attention.indexer.key_length", high=MAX_HEADS),
            every=keys.per_layer("attention.compress_ratios", n_layers, 0, high=64),
            ngram_layer=layers[0] if layers else -1,
            ngrams=NGrams.read(keys) if layers else None,
            ngram_dim=keys.whole("embedding_length_per_layer_input") if layers else 0,
            ngram_taps=keys.whole("ple.conv_kernel", low=2, high=MAX_TAPS) if layers else 0,
            **own,
        )
        if model.n_rot > model.indexer_dim:
            raise keys.refuse("attention.indexer.key_length", f"at least {model.n_rot} values")
        if model.n_chosen < max(model.every):
            raise keys.refuse("attention.indexer.top_k", f"at least {max(model.every)} keys")
        if layers and not model.recurrent[layers[0]]:
            raise keys.refuse("ple.layers", "a layer with a delta net")
        if model.ngrams and model.ngram_dim * model.ngrams.n_heads != model.n_embd:
            raise keys.refuse(
                "embedding_length_per_layer_input", f"{model.n_embd} values for all heads together"
            )
        if model.ngram_dim % 16:
            raise keys.refuse("embedding_length_per_layer_input", "a multiple of 16")
        if model.mixer.key_dim != model.mixer.value_dim:
            raise keys.refuse("ssm.state_size", f"{model.mixer.value_dim} as the values of a head")
        return model

    # ---- streams -------------------------------------------------------------------

    def connected(
        self, b: Ops, w: Weights, x: Value, layer: int, part: str, inner: Callable[[Value], Value]
    ) -> Value:
        name, n = f"blk.{layer}.hc_{part}", self.n_streams
        normed = self.normed_streams(b, w, x, f"{name}_norm")
        y = inner(self.gathered(b, w, normed, name))
        inject = b.scale(b.linear(normed, w.matrix(f"{name}_inject", n, x.n)), 1.0 / n)
        return b.add(x, b.blend(y, b.scale(b.activate(inject, "sigmoid"), 2.0), n))

    def outcome(self, b: Ops, w: Weights, x: Value) -> Value:
        return self.gathered(b, w, self.normed_streams(b, w, x, "output_hc_norm"), "output_hc")

    def normed_streams(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        """Each stream with an RMS norm of its own; x stays as it is."""
        copy = b.head_part(x, 1, 0, x.n)
        return b.head_rms_norm(
            copy, w.vector(name, self.n_embd, self.n_streams), self.n_streams, self.norm_eps
        )

    def gathered(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        """The mean of the streams, each value gated: [n_embd]."""
        n = self.n_streams
        low = b.scale(b.linear(x, w.matrix(f"{name}_down", self.low_rank, x.n)), 1.0 / n)
        gate = b.linear(b.activate(low, "silu"), w.matrix(f"{name}_up", x.n, self.low_rank))
        shares = w.derived(f"1 / {n}", lambda: np.full(n, 1 / n, np.float32))
        return b.blend(b.gated(gate, x, "sigmoid"), shares, 1)

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        if layer == self.ngram_layer:
            *state, tokens, inputs = state
            x = self.with_ngrams(b, w, x, layer, tokens, inputs)
        return super().block(b, w, x, layer, state, rope)

    # ---- embeddings of several tokens -------------------------------------------------

    def layer_states(self, layer: int) -> list[State]:
        own = super().layer_states(layer)
        if self.every[layer] and not self.is_recurrent(layer):
            own += [KV(1, self.indexer_dim, 0, every=self.every[layer]), sums(self.indexer_dim)]
        if layer != self.ngram_layer or self.ngrams is None:
            return own
        n_before = (self.ngram_taps - 1) * self.ngrams.size
        return [*own, self.ngrams.state, Recurrent(self.n_streams * self.n_embd, n_before)]

    def with_ngrams(
        self, b: Ops, w: Weights, x: Value, layer: int, tokens: StateHandle, inputs: StateHandle
    ) -> Value:
        """The streams plus values that embeddings of several tokens have, gated by how well their keys fit, and plus
        a convolution of these."""
        assert self.ngrams is not None
        name, n, size = f"blk.{layer}.ple_", self.n_streams, self.n_embd
        table = "per_layer_token_embd"
        rows = max(self.ngrams.n_rows, w.shape(table)[-1] if w.has(table) else 0)
        found = b.embed_ngrams(w.matrix(table, rows, self.ngram_dim), self.ngrams, tokens)
        key = b.linear(found, w.matrix(f"{name}key", n * size, size))
        key = b.head_rms_norm(key, w.vector(f"{name}norm_key", size, n), n, self.norm_eps)
        query = self.normed_streams(b, w, x, f"{name}norm_query")
        gate = b.activate(b.root_products(key, query, n, size**-0.5, 1e-6), "sigmoid")
        values = b.blend(b.linear(found, w.matrix(f"{name}value", size, size)), gate, n)
        normed = self.normed_streams(b, w, values, f"{name}norm_conv")
        convolved = b.convolve(normed, self.spaced_taps(w, f"{name}conv1d"), None, inputs)
        return b.add(x, b.add(values, b.activate(convolved, "silu")))

    def spaced_taps(self, w: Weights, name: str) -> Vector:
        """The weights of the convolution over every ``ngrams.size``-th token, with zeros between: [taps, values]."""
        assert self.ngrams is not None
        size, step = self.n_streams * self.n_embd, self.ngrams.size
        [dense] = convolution_weights(w, name, self.ngram_taps, [size])

        def spaced() -> np.ndarray:
            taps = np.zeros(((self.ngram_taps - 1) * step + 1, size), np.float32)
            taps[::step] = dense.values
            return taps

        return w.derived(f"{name} of every {step}-th token", spaced)

    # ---- attention ------------------------------------------------------------------

    def keys_seen(
        self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle], rope: Rope
    ) -> dict[str, Any]:
        name, n, size = f"blk.{layer}.indexer.", self.n_indexer_heads, self.indexer_dim
        if not self.every[layer] or b.n_ctx <= self.n_chosen:
            for part in ("q_proj", "k_proj", "q_norm", "k_norm"):
                w.skip(f"{name}{part}")
            return {}
        _, keys, state = states
        norm = w.vector(f"{name}k_norm", size)
        key = b.linear(x, w.matrix(f"{name}k_proj", size, x.n))
        b.summarize(key, None, state, keys, norm=norm, eps=self.norm_eps, rope=rope)
        q = b.linear(x, w.matrix(f"{name}q_proj", n * size, x.n))
        q = b.rope(b.head_rms_norm(q, w.vector(f"{name}q_norm", size), n, self.norm_eps), n, rope)
        chosen = b.choose_keys(q, w.ones(n), keys, n, self.n_chosen // self.every[layer])
        return {"chosen": b.stretch_tokens(chosen, keys)}
