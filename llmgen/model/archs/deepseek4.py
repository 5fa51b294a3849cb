"""DeepSeek V4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers
from llmgen.model.hybrid import ManyStates
from llmgen.model.hyper_connections import HyperConnections
from llmgen.model.keys import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.mixtures import ClampedExperts, clamped
from llmgen.model.ops import Choice, ChosenKeys, Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.states import KV, Contents, State, sums
from llmgen.model.weights import Matrix, Weights

INDEXED = 4
"""Tokens of a stretch in layers whose stretches overlap and are chosen by an indexer."""
PLAIN = 128
"""Tokens of a stretch in layers that see all of them."""


@architecture("deepseek4")
@dataclass(frozen=True, kw_only=True)
class DeepSeek4(DraftLayers, HyperConnections, ClampedExperts, ManyStates):
    """Residuals of several streams; one key and value for all heads, of which a token sees the last ones, and
    summaries of those before; clamped experts and a shared expert.

    A summary covers 128 tokens, or four and the four before; of the latter an indexer chooses the ones that
    count. What is summarized has rotations with a base of its own, and what attention finds is turned back.
    The first layers may take the experts that a table names for each token.
    """

    models = "DeepSeek V4"
    neox, shared_size = False, "count"
    gating, normalized, scaled = "sqrt_softplus", None, True

    window: int
    every: tuple[int, ...]
    """Tokens of a stretch for each layer; 0: no summaries."""
    summary_base: float
    """Base of the rotations in layers with summaries."""
    shared_clamps: tuple[float, ...]
    q_lora_rank: int
    n_groups: int
    """Groups of heads that have an output matrix of their own."""
    group_rank: int
    """Values that each of these matrices has."""
    n_table_layers: int
    """Layers at the beginning whose experts a table names for each token."""
    n_chosen: int
    n_indexer_heads: int
    indexer_dim: int

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count")
        key = "attention.compress_ratios"
        every = keys.per_layer(key, n_layers)
        if not set(every) <= {0, INDEXED, PLAIN}:
            raise keys.refuse(key, f"0, {INDEXED} or {PLAIN} for each layer")
        if keys.whole("expert_gating_func", high=1 << 16) != 4:
            raise keys.refuse("expert_gating_func", "4, the root of softplus")
        limits = "swiglu_clamp_shexp" if keys.get("swiglu_clamp_shexp") is not None else "swiglu_clamp_exp"
        model = super().read(
            keys,
            window=keys.whole("attention.sliding_window", high=MAX_CONTEXT),
            every=every,
            summary_base=keys.real("attention.compress_rope_freq_base", low=1e-3),
            shared_clamps=keys.per_layer_real(limits, n_layers),
            q_lora_rank=keys.whole("attention.q_lora_rank"),
            n_groups=keys.whole("attention.output_group_count", high=MAX_HEADS),
            group_rank=keys.whole("attention.output_lora_rank"),
            n_table_layers=keys.whole("hash_layer_count", low=0, high=MAX_LAYERS),
            n_chosen=keys.whole("attention.indexer.top_k", high=MAX_CONTEXT),
            n_indexer_heads=keys.whole("attention.indexer.head_count", high=MAX_HEADS),
            indexer_dim=keys.whole("attention.indexer.key_length", high=MAX_HEADS),
            **own,
        )
        if model.n_heads % model.n_groups:
            raise keys.refuse("attention.output_group_count", f"a divisor of the {model.n_heads} heads")
        if model.value_dim != model.head_dim:
            raise keys.refuse("attention.value_length", f"{model.head_dim} as the keys")
        if model.n_rot > model.indexer_dim:
            raise keys.refuse("attention.indexer.key_length", f"at least {model.n_rot} values")
        return model

    def layer_states(self, layer: int) -> list[State]:
        every, size, own = self.every[layer], self.indexer_dim, list[State]()
        if every:
            own.append(sums(self.head_dim, every == INDEXED))
        if every == INDEXED:
            own += [KV(1, size, 0, every=every), sums(size, overlapping=True)]
        return [Contents(self.head_dim, self.window, every), *own]

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        def rope(*scaled: Any) -> Rope:  # no magnitude, as in llama.cpp's src/models/deepseek4.cpp
            whole = Rope.of(self.n_rot, *scaled)
            return replace(whole, magnitude=1.0, first=self.head_dim - self.n_rot)

        summarized = rope(self.summary_base, self.neox, self.rope_scaling)
        plain = rope(self.rope_base, self.neox)
        return [summarized if every else plain for every in self.every[: self.n_layers]]

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name, n, size = f"blk.{layer}.attn_", self.n_heads, self.head_dim
        latent = self.project(b, w, x, f"{name}q_a", self.q_lora_rank)
        latent = self.norm(b, w, latent, f"{name}q_a_norm")
        q = self.project(b, w, latent, f"{name}q_b", n * size)
        q = b.rope(b.head_rms_norm(q, w.ones(size), n, self.norm_eps), n, rope, size**-0.5)
        content = self.norm(b, w, self.project(b, w, x, f"{name}kv", size), f"{name}kv_a_norm")
        contents, *others = state
        b.store(b.rope(content, 1, rope), None, contents)
        chosen = None
        if self.every[layer]:
            self.summarize(b, w, x, f"{name}compressor", size, layer, others[0], contents, rope)
        if self.every[layer] == INDEXED:
            chosen = self.chosen_summaries(b, w, x, latent, layer, others[1:], rope)
        sinks = w.vector(f"{name}sinks", n)
        found = b.attend_contents(q, contents, n, sinks, chosen)
        back = replace(rope, frequencies=-rope.frequencies)
        grouped = b.linear_heads(b.rope(found, n, back), self.group_matrices(w, f"{name}output_a"))
        return self.project(b, w, grouped, f"{name}output_b", self.n_embd)

    def summarize(
        self,
        b: Ops,
        w: Weights,
        x: Value,
        name: str,
        size: int,
        layer: int,
        state: StateHandle,
        into: StateHandle,
        rope: Rope,
    ) -> None:
        """Append the summaries, ``size`` values each, that the tensors ``name`` make of a layer's input."""
        every = self.every[layer]
        norm = w.vector(f"{name}_norm", size)
        n = size * (2 if every == INDEXED else 1)
        values, scores = (b.linear(x, w.matrix(f"{name}_{part}", n, x.n)) for part in ("kv", "gate"))
        offsets = w.vector(f"{name}_ape", n, every)
        b.summarize(values, scores, state, into, offsets=offsets, norm=norm, eps=self.norm_eps, rope=rope)

    def chosen_summaries(
        self,
        b: Ops,
        w: Weights,
        x: Value,
        latent: Value,
        layer: int,
        states: Sequence[StateHandle],
        rope: Rope,
    ) -> ChosenKeys | None:
        """What the indexer chooses; in a context of no more summaries than it may choose it is not run."""
        name, n, size = f"blk.{layer}.indexer", self.n_indexer_heads, self.indexer_dim
        if b.n_ctx // INDEXED <= self.n_chosen:
            for part in ("proj", "attn_q_b"):
                w.skip(f"{name}.{part}")
            for part in ("kv", "gate", "ape", "norm"):
                w.skip(f"{name}_compressor_{part}")
            return None
        keys, state = states
        rope = replace(rope, first=size - self.n_rot)
        self.summarize(b, w, x, f"{name}_compressor", size, layer, state, keys, rope)
        q = b.rope(self.project(b, w, latent, f"{name}.attn_q_b", n * size), n, rope)
        weights = b.scale(self.project(b, w, x, f"{name}.proj", n), float((size * n) ** -0.5))
        return b.choose_keys(q, weights, keys, n, self.n_chosen)

    def group_matrices(self, w: Weights, name: str) -> Sequence[Matrix]:
        """The output matrix of each group: [group_rank, values of a group]."""
        n, rank, size = self.n_groups, self.group_rank, self.n_heads // self.n_groups * self.head_dim
        if len(w.shape(name)) == 3:
            return w.head_matrices(name, n, rank, size)
        return w.matrix(name, n * rank, size).parts([rank] * n)

    def chosen(self, b: Ops, w: Weights, logits: Value, layer: int) -> Choice:
        w.skip(f"blk.{layer}.exp_probs_b_vl.bias")  # for tokens of images
        if layer >= self.n_table_layers:
            return super().chosen(b, w, logits, layer)
        sizes = self.vocab_size, self.n_used, self.n_experts
        table = w.numbers(f"blk.{layer}.ffn_gate_tid2eid", *sizes)
        return b.look_up_experts(logits, table, normalize=self.weights_normalized, scale=self.weights_scale)

    def shared_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return super().shared_gated(b, *clamped(b, gate, up, self.shared_clamps[layer]), layer)
