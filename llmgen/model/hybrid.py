"""Recurrent layers, whose state has a fixed size: their parts, and models that mix them with attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llmgen.model.blocks import PreNorm
from llmgen.model.keys import MAX_LAYERS, Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.states import State
from llmgen.model.weights import Vector, Weights


class Mixer(Protocol):
    """Mixes the tokens in a layer without attention."""

    def states(self) -> list[State]:
        """The states that it needs."""

    def __call__(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        """[x.n] -> [x.n], with the weights of a layer."""


class ManyStates(PreNorm):
    """A layer may have several states, and gets a list of them."""

    def layer_states(self, layer: int) -> list[State]:
        """The states of a layer."""
        return [self.kv_state(layer)]

    def states(self) -> list[State]:
        return [state for layer in self.layers for state in self.layer_states(layer)]

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        slots, ropes = iter(states), self.ropes(b, w)
        x = self.embedded(b, w)
        for layer in self.layers:
            own = [next(slots) for _ in self.layer_states(layer)]
            x = self.block(b, w, x, layer, own, ropes[layer])
        self.finish(b, w, self.outcome(b, w, x))


class Hybrid(ManyStates):
    """Some layers have a mixer and no attention; unless said otherwise those without key heads."""

    mixer: Mixer

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer has a mixer in place of attention."""
        return not self.kv_heads(layer)

    def layer_states(self, layer: int) -> list[State]:
        return self.mixer.states() if self.is_recurrent(layer) else super().layer_states(layer)

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        if self.is_recurrent(layer):
            return self.mixer(b, w, x, layer, state)
        return super().attended(b, w, x, layer, state[0], rope)


def recurrent_layers(keys: Keys, period: int) -> tuple[bool, ...]:
    """Whether each layer is recurrent: flags of the file, or all but every n-th.

    period: n where no key tells it.
    """
    n_layers, key = keys.whole("block_count", high=MAX_LAYERS), "attention.recurrent_layers"
    if keys.get(key) is not None:
        return tuple(map(bool, keys.per_layer(key, n_layers, high=1)))
    period = keys.whole("full_attention_interval", period, 1, MAX_LAYERS)
    return tuple((layer + 1) % period != 0 for layer in range(n_layers))


def convolved(
    b: Ops, w: Weights, parts: Sequence[Value], name: str, taps: int, states: Sequence[StateHandle]
) -> list[Value]:
    """Convolutions of the tensor ``name``, with its bias if there is one, and silu.

    parts: its columns one after another; states: one for each part.
    """
    sizes = tuple(part.n for part in parts)
    bias_name = f"{name}.bias"
    biases: list[Vector | None] = [None] * len(parts)
    if w.has(bias_name):
        biases = [*w.vector_parts(bias_name, sizes)]
    weights = convolution_weights(w, name, taps, sizes)
    return [
        b.activate(b.convolve(part, weight, bias, state), "silu")
        for part, weight, bias, state in zip(parts, weights, biases, states, strict=True)
    ]


def convolution_weights(w: Weights, name: str, taps: int, sizes: Sequence[int]) -> list[Vector]:
    """The weights of a convolution, [taps, size] for each of its parts; the file has [all columns][taps]."""

    def part(first: int, size: int) -> Vector:
        whole = w.vector(name, taps, sum(sizes)).values.reshape(-1, taps)
        return w.derived(f"{name}[{first}:{first + size}]", lambda: whole[first : first + size].T)

    return [part(sum(sizes[:i]), size) for i, size in enumerate(sizes)]
