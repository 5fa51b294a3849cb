"""What most architectures share: hyperparameters, projections, attention, feed-forward.

An architecture is one subclass of ``Decoder`` in archs/: a frozen dataclass that reads its
keys, lists the states a sequence needs, and writes its forward pass in the vocabulary of
``model.ops``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from llmgen.model.keys import MAX_CONTEXT, MAX_FEED_FORWARD, MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope, RopeScaling
from llmgen.model.states import KV, State
from llmgen.model.weights import Matrix, Vector, Weights


@dataclass(frozen=True, kw_only=True)
class Decoder(ABC):
    """A decoder-only transformer.  Sizes are in values or tokens.

    ``read`` reads the keys that most architectures share.  A subclass with keys of its own
    adds fields and extends ``read``; a key that no field reads has no effect.
    """

    eps_key: ClassVar[str] = "attention.layer_norm_rms_epsilon"
    """The key of the norms' epsilon."""
    eps_default: ClassVar[float | None] = None
    """The epsilon if the file has no such key; None: the file is refused."""
    neox: ClassVar[bool] = True
    """How rotary positions pair a head's values, see ``Rope``."""

    models: ClassVar[str] = ""
    """Well-known models of the architecture, for docs/architectures.md."""
    output_bias: ClassVar[bool] = True
    """False: a bias of the attention's output matrix is not used, as in llama.cpp's graph."""
    causal: ClassVar[bool] = True
    """False: a token also sees those behind it, so that a text is computed in one run, and none is written
    token by token."""
    qkv_bias: ClassVar[bool] = True
    """False: biases of q, k and v are not used either."""
    mixture: ClassVar[bool] = False
    """Whether its files may have keys or tensors of experts."""

    architecture: str
    name: str
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    """Values of a head's query and key."""
    value_dim: int
    """Values of a head's value."""
    n_ff: int
    vocab_size: int
    context_length: int
    norm_eps: float
    n_rot: int
    rope_base: float
    rope_scaling: RopeScaling

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        """The hyperparameters of a file; ``own`` are fields that a subclass has read itself.

        Raises UnsupportedModelError for values that no model can have.
        """
        causal = keys.get("attention.causal")
        if cls.causal and causal is not None and causal is not True:
            raise keys.refuse("attention.causal", "True for a model that writes text")
        n_embd = keys.whole("embedding_length")
        n_heads = own.get("n_heads") or keys.whole("attention.head_count", high=MAX_HEADS)
        n_kv_heads = own.get("n_kv_heads") or keys.whole("attention.head_count_kv", n_heads, high=MAX_HEADS)
        if n_heads % n_kv_heads and "n_heads" not in own:
            raise keys.fail("attention.head_count_kv", n_kv_heads, f"a divisor of the {n_heads} heads")
        context_length = keys.whole("context_length", high=MAX_CONTEXT)
        head_dim = _head_dim(keys, n_embd, n_heads)
        n_rot = keys.whole("rope.dimension_count", head_dim, low=0, high=MAX_HEADS)
        if n_rot > head_dim or n_rot % 2:
            raise keys.fail("rope.dimension_count", n_rot, f"an even number up to the head's {head_dim}")
        shared: dict[str, Any] = {
            "architecture": keys.architecture,
            "name": keys.name(),
            "n_layers": keys.whole("block_count", high=MAX_LAYERS),
            "n_embd": n_embd,
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "head_dim": head_dim,
            "value_dim": keys.whole("attention.value_length", n_embd // n_heads, high=MAX_HEADS),
            "n_ff": own.get("n_ff") or keys.whole("feed_forward_length", high=MAX_FEED_FORWARD),
            "vocab_size": keys.vocab_size(),
            "context_length": context_length,
            "norm_eps": cls.read_eps(keys),
            "n_rot": n_rot,
            "rope_base": keys.real("rope.freq_base", 10000.0, low=1e-3),
            "rope_scaling": RopeScaling.read(keys, context_length),
        }
        return cls(**(shared | own))

    @classmethod
    def read_eps(cls, keys: Keys) -> float:
        """The epsilon of the norms."""
        return keys.real(cls.eps_key, cls.eps_default, low=0.0, high=1.0)

    def states(self) -> list[State]:
        """The states of a sequence, in the order in which ``forward`` gets them: by default a KV state a layer."""
        return [self.kv_state(layer) for layer in self.layers]

    def kv_state(self, layer: int) -> State:
        """The keys and values of a layer."""
        sizes = self.kv_heads(layer), self.head_dim, self.value_dim
        return KV(*sizes, self.window_of(layer), causal=self.causal)

    @property
    def reach(self) -> int:
        """Tokens up to which the model knows its positions: those it was made for, or is stretched to."""
        scaling = self.rope_scaling
        return int(scaling.original_context * scaling.factor) if scaling.asked else self.context_length

    @property
    def layers(self) -> range:
        """The numbers of the layers, in the order in which they run."""
        return range(self.n_layers)

    def heads(self, layer: int) -> int:
        """Query heads of a layer."""
        return self.n_heads

    def kv_heads(self, layer: int) -> int:
        """Heads of keys and values of a layer."""
        return self.n_kv_heads

    def ff(self, layer: int) -> int:
        """Values inside the feed-forward of a layer."""
        return self.n_ff

    def window_of(self, layer: int) -> int:
        """The sliding window of a layer, in keys; 0: no window."""
        return 0

    @abstractmethod
    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        """One pass over the tokens of a run, from their ids to logits."""

    # ---- parts of a forward pass ----------------------------------------------------

    def embedding(self, w: Weights) -> Matrix:
        """token_embd [vocab_size, n_embd]."""
        return w.matrix("token_embd", self.vocab_size, self.n_embd)

    def output_matrix(self, w: Weights) -> Matrix:
        """output [vocab_size, n_embd]; models without it use the embedding."""
        return w.matrix("output", self.vocab_size, self.n_embd) if w.has("output") else self.embedding(w)

    def norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        """The norm with the weights ``name`` over the whole width of x."""
        return b.rms_norm(x, w.vector(name, x.n), self.norm_eps)

    def weightless_norm(self, b: Ops, w: Weights, x: Value) -> Value:
        """An RMS norm that only norms."""
        return b.rms_norm(x, w.ones(x.n), self.norm_eps)

    def project(self, b: Ops, w: Weights, x: Value, name: str, n_rows: int) -> Value:
        """x times the matrix ``name``, with its bias where the file has one: [n_rows]."""
        bias = w.optional_vector(f"{name}.bias", n_rows)
        return b.linear(x, w.matrix(name, n_rows, x.n), bias)

    def ff_project(self, b: Ops, w: Weights, x: Value, name: str, n_rows: int) -> Value:
        """``project`` in a feed-forward, where a matrix's factor holds for its bias too (llama.cpp's build_ffn)."""
        matrix, bias = w.matrix(name, n_rows, x.n), w.optional_vector(f"{name}.bias", n_rows)
        if bias is not None and matrix.factor != 1.0:
            values = bias.values * np.float32(matrix.factor)
            bias = w.derived(f"{name}.bias * factor", lambda: values)
        return b.linear(x, matrix, bias)

    def qkv(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        """Queries, keys and values of all heads, with the biases the file has."""
        n_q, n_k = self.heads(layer) * self.head_dim, self.kv_heads(layer) * self.head_dim
        n_v = self.kv_heads(layer) * self.value_dim
        name = f"blk.{layer}.attn_"
        if w.has(f"{name}qkv"):
            fused = w.matrix(f"{name}qkv", n_q + n_k + n_v, self.n_embd)
            parts = [fused.rows(0, n_q), fused.rows(n_q, n_k), fused.rows(n_q + n_k, n_v)]
        else:
            sizes = {"q": n_q, "k": n_k, "v": n_v}
            parts = [w.matrix(name + p, n, self.n_embd) for p, n in sizes.items()]
        if not self.qkv_bias:
            for part in ("qkv", "q", "k", "v"):
                w.skip(f"{name}{part}.bias")
            biases: list[Vector | None] = [None] * 3
        elif w.has(f"{name}qkv.bias"):
            biases = [*w.vector_parts(f"{name}qkv.bias", (n_q, n_k, n_v))]
        else:
            biases = [
                w.optional_vector(f"{name}{p}.bias", part.n_rows)
                for p, part in zip("qkv", parts, strict=True)
            ]
        q, k, v = (b.linear(x, part, bias) for part, bias in zip(parts, biases, strict=True))
        return q, k, v

    def normed_qkv(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        """``qkv`` with an RMS norm over each head of q and k."""
        q, k, v = self.qkv(b, w, x, layer)
        return *self.norm_heads(b, w, q, k, layer), v

    def norm_heads(self, b: Ops, w: Weights, q: Value, k: Value, layer: int) -> tuple[Value, Value]:
        """An RMS norm over each head of q and k."""
        q_norm, k_norm = (w.vector(f"blk.{layer}.attn_{p}_norm", self.head_dim) for p in "qk")
        q = b.head_rms_norm(q, q_norm, self.heads(layer), self.norm_eps)
        return q, b.head_rms_norm(k, k_norm, self.kv_heads(layer), self.norm_eps)

    def attention(
        self,
        b: Ops,
        w: Weights,
        qkv: tuple[Value, Value, Value],
        layer: int,
        state: StateHandle,
        rope: Rope,
        **scores: Any,
    ) -> Value:
        """Rotate, append to the cache, attend, project: [n_embd].  scores: see ``attend``."""
        return self.attention_output(b, w, self.attend(b, w, qkv, layer, state, rope, **scores), layer)

    def attend(
        self,
        b: Ops,
        w: Weights,
        qkv: tuple[Value, Value, Value],
        layer: int,
        state: StateHandle,
        rope: Rope,
        *,
        scale: float | None = None,
        position_scale: np.ndarray | None = None,
        **scores: Any,
    ) -> Value:
        """Rotate, append to the cache, attend: [n_heads * value_dim].

        scale: of the scores, 1 / sqrt(head_dim) unless given; position_scale as in
        ``Ops.rope``; scores: cap, slopes and sinks as in ``Ops.attend``.
        """
        q, k, v = self.rotated(b, w, qkv, layer, rope, scale, position_scale)
        b.store(k, v, state)
        return b.attend(q, state, self.heads(layer), **scores)

    def rotated(
        self,
        b: Ops,
        w: Weights,
        qkv: tuple[Value, Value, Value],
        layer: int,
        rope: Rope,
        scale: float | None,
        position_scale: np.ndarray | None,
    ) -> tuple[Value, Value, Value]:
        """Queries and keys rotated by their positions, the queries scaled."""
        q, k, v = qkv
        q = b.rope(
            q, self.heads(layer), rope, self.head_dim**-0.5 if scale is None else scale, position_scale
        )
        return q, b.rope(k, self.kv_heads(layer), rope) if rope.n_rot else k, v

    def attention_output(self, b: Ops, w: Weights, a: Value, layer: int) -> Value:
        """The attention's output through its output matrix: [n_embd]."""
        name = f"blk.{layer}.attn_output"
        if self.output_bias:
            return self.project(b, w, a, name, self.n_embd)
        w.skip(f"{name}.bias")
        return b.linear(a, w.matrix(name, self.n_embd, a.n))

    def feed_forward(self, b: Ops, w: Weights, x: Value, layer: int, activation: str = "silu") -> Value:
        """down(activation(gate x) * up x), Shazeer's gated unit (arXiv:2002.05202): [n_embd]."""
        name, n_ff = f"blk.{layer}.ffn_", self.ff(layer)
        gate, up = (self.ff_project(b, w, x, name + which, n_ff) for which in ("gate", "up"))
        return self.ff_project(
            b, w, self.ff_gated(b, gate, up, layer, activation), name + "down", self.n_embd
        )

    def ff_gated(self, b: Ops, gate: Value, up: Value, layer: int, activation: str) -> Value:
        """The gated activation inside ``feed_forward``."""
        return b.gated(gate, up, activation)

    def fused_feed_forward(self, b: Ops, w: Weights, x: Value, layer: int, activation: str = "silu") -> Value:
        """``feed_forward`` whose gate and up projections are one matrix, gate first."""
        name, n_ff = f"blk.{layer}.ffn_", self.ff(layer)
        both = w.matrix(name + "up", 2 * n_ff, self.n_embd)
        gate, up = (b.linear(x, both.rows(first, n_ff)) for first in (0, n_ff))
        return self.ff_project(b, w, b.gated(gate, up, activation), name + "down", self.n_embd)

    def plain_feed_forward(self, b: Ops, w: Weights, x: Value, layer: int, activation: str) -> Value:
        """down(activation(up x)): [n_embd]."""
        name = f"blk.{layer}.ffn_"
        up = self.ff_project(b, w, x, name + "up", self.ff(layer))
        return self.ff_project(b, w, b.activate(up, activation), name + "down", self.n_embd)

    def rope(self, factors: np.ndarray | None = None) -> Rope:
        """The rotation of the model; ``factors`` divides the frequencies, float64 [n_rot / 2]."""
        return Rope.of(self.n_rot, self.rope_base, self.neox, self.rope_scaling, factors)

    def rope_factors(self, w: Weights, name: str) -> np.ndarray | None:
        """A tensor of frequency divisors, float64 [n_rot / 2], if the file has it."""
        return w.values(name, self.n_rot // 2) if w.has(name) else None

    def factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        """The divisors of frequencies that the file has, if any: Llama 3's, else LongRoPE's."""
        plain = self.rope_factors(w, "rope_freqs")
        return self.longrope_factors(b, w) if plain is None else plain

    def longrope_factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        """LongRoPE's divisors: the long ones where the model is opened for more than the original context."""
        long, short = (self.rope_factors(w, f"rope_factors_{which}") for which in ("long", "short"))
        return long if b.n_ctx > self.rope_scaling.original_context else short


def check_same_heads(keys: Keys, model: Decoder, rotation: bool = True) -> None:
    """Refuse sliding-window layers whose heads are not those of the other layers, or (rotation) turn otherwise."""
    expectations = {
        "attention.key_length_swa": model.head_dim,
        "attention.value_length_swa": model.value_dim,
    }
    if rotation:
        expectations["rope.dimension_count_swa"] = model.n_rot
    for key, expected in expectations.items():
        if keys.whole(key, expected, low=0) != expected:
            raise keys.refuse(key, f"{expected} as in the other layers")


def _head_dim(keys: Keys, n_embd: int, n_heads: int) -> int:
    head_dim = keys.whole("attention.key_length", n_embd // n_heads, high=MAX_HEADS)
    if head_dim < 1:
        raise keys.fail("attention.head_count", n_heads, f"at most the embedding's {n_embd} values")
    return head_dim
