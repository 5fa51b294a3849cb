"""A model's hyperparameters, read from GGUF metadata and checked.

This is the only file of the model package that knows the names of GGUF keys.  Their
meaning follows llama.cpp's loader (src/llama-model.cpp, src/llama-hparams.h).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmgen.errors import UnsupportedModelError, shown
from llmgen.gguf import GGUFFile

_MAX_WIDTH = 1 << 20
_MAX_LAYERS = 4096
MAX_CONTEXT = 1 << 27


@dataclass(frozen=True)
class RopeScaling:
    """How positions beyond the trained context are squeezed into it."""

    kind: str = "none"  # none, linear, yarn, longrope
    factor: float = 1.0  # positions are divided by it
    original_context: int = 0
    attention_factor: float = 1.0  # multiplies cosines and sines
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: float = 0.0


@dataclass(frozen=True)
class ModelConfig:
    """Hyperparameters under the names of the field; sizes are counts of values or tokens."""

    architecture: str
    name: str
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_ff: int
    vocab_size: int
    context_length: int
    norm_eps: float
    n_rot: int
    rope_base: float
    rope_base_local: float  # of sliding-window layers
    rope_scaling: RopeScaling
    window: int = 0  # keys that a sliding-window layer sees, itself included; 0: none
    local_layers: tuple[bool, ...] = ()  # True: the layer has the window
    attention_cap: float = 0.0
    final_cap: float = 0.0
    temperature_scale: float = 0.0  # Mistral 3's growth of q with the position
    n_ctx: int = 0  # the context in use, set when a model is opened; the file knows only context_length

    def is_local(self, layer: int) -> bool:
        """Whether the layer attends within the sliding window only."""
        return bool(self.window) and self.local_layers[layer]


class _Keys:
    """Checked access to the keys of one architecture."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._metadata = file.metadata
        self.architecture = architecture

    def get(self, key: str) -> Any:
        """The value as the file has it: a number, a string, an array of any kind, or None."""
        return self._metadata.get(f"{self.architecture}.{key}")

    def fail(self, key: str, found: object, expected: str) -> UnsupportedModelError:
        """The error for a value: ``found`` as read from the file, or words about it."""
        return UnsupportedModelError(
            f"{shown(self.architecture, quote=False)}.{key} is {found}, expected {expected}; "
            "the model file is damaged or not supported"
        )

    def whole(self, key: str, default: int | None = None, low: int = 1, high: int = _MAX_WIDTH) -> int:
        """An integer in [low, high]; an array counts if all its values agree."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, np.ndarray) and value.size and np.all(value == value.flat[0]):
            value = value.flat[0].item()
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(key, _found(value), f"a whole number from {low} to {high}")
        return value

    def real(self, key: str, default: float | None = None, low: float = 0.0, high: float = math.inf) -> float:
        """A finite number in [low, high]."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not (math.isfinite(value) and low <= value <= high)
        ):
            bounds = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise self.fail(key, _found(value), f"a finite number {bounds}")
        return float(value)

    def choice(self, key: str, options: tuple[str, ...], default: str) -> str:
        """One of some words; an empty one is the default."""
        value = self.get(key)
        if value is None or (isinstance(value, str) and not value):
            return default
        if not isinstance(value, str) or value not in options:
            raise self.fail(key, _found(value), f"{', '.join(options[:-1])} or {options[-1]}")
        return value


def _found(value: object) -> str:
    """A value of the file in a message."""
    return "missing" if value is None else shown(value)


def _rope_scaling(keys: _Keys, context_length: int) -> RopeScaling:
    kind = keys.choice("rope.scaling.type", ("none", "linear", "yarn", "longrope"), "linear")
    factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 0.0)) or 1.0
    own = keys.architecture == "mistral3"  # the only one of these whose file may set the ramp
    return RopeScaling(
        kind=kind,
        factor=1.0 if kind == "none" else factor,
        original_context=keys.whole("rope.scaling.original_context_length", 0, 0, MAX_CONTEXT)
        or context_length,
        attention_factor=keys.real("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.real("rope.scaling.yarn_beta_fast", 32.0) if own else 32.0,
        beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0) if own else 1.0,
        log_multiplier=keys.real("rope.scaling.yarn_log_multiplier", 0.0) if own else 0.0,
    )


_WINDOW_PERIOD = {"gemma2": 2, "gemma3": 6, "olmo2": 4}
"""Architectures with sliding-window layers: every n-th layer is global unless the file says otherwise."""


def _local_layers(keys: _Keys, n_layers: int) -> tuple[bool, ...]:
    """Which layers have the window: one flag a layer, or every n-th layer without."""
    pattern = keys.get("attention.sliding_window_pattern")
    period = _WINDOW_PERIOD[keys.architecture]
    if isinstance(pattern, np.ndarray) and pattern.dtype.kind in "biu":
        if len(pattern) != n_layers:
            raise keys.fail(
                "attention.sliding_window_pattern",
                f"{len(pattern)} flags",
                f"one for each of {n_layers} layers",
            )
        return tuple(pattern.astype(bool).tolist())
    if pattern is not None:
        period = keys.whole("attention.sliding_window_pattern", low=0, high=_MAX_LAYERS)
    return tuple(period == 0 or layer % period < period - 1 for layer in range(n_layers))


def _vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding: one for each token, and maybe more, that no text comes to."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise UnsupportedModelError(
            f"{file.path} holds no token_embd.weight matrix, so it has no weights to run; choose another file"
        )
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sequence) and len(tokens) > embedding.shape[1]:
        raise UnsupportedModelError(
            f"token_embd.weight has {embedding.shape[1]} rows, expected one for each of the {len(tokens)} "
            "tokens of the vocabulary; the file is damaged, download it again"
        )
    return embedding.shape[1]


def _name(file: GGUFFile) -> str:
    name = file.metadata.get("general.name")
    return name if isinstance(name, str) else ""


def _check_causal(keys: _Keys) -> None:
    """Refuse a model in which a token sees those after it: such a one makes embeddings, not text."""
    value = keys.get("attention.causal")
    if value is not None and value is not True:
        raise keys.fail("attention.causal", _found(value), "True for a model that writes text")


def _check_same_heads(keys: _Keys, head_dim: int, n_rot: int) -> None:
    """Refuse sliding-window layers whose heads are not those of the other layers."""
    for key, expected in (
        ("attention.key_length_swa", head_dim),
        ("attention.value_length_swa", head_dim),
        ("rope.dimension_count_swa", n_rot),
    ):
        if keys.whole(key, expected, low=0) != expected:
            raise keys.fail(key, _found(keys.get(key)), f"{expected} as in the other layers")


def read_config(file: GGUFFile) -> ModelConfig:
    """The configuration of a model file, whose architecture is one that llmgen runs.

    Raises UnsupportedModelError for values that no model can have.
    """
    architecture = file.architecture or ""
    keys = _Keys(file, architecture)
    _check_causal(keys)
    n_layers = keys.whole("block_count", high=_MAX_LAYERS)
    n_embd = keys.whole("embedding_length")
    n_heads = keys.whole("attention.head_count", high=65536)
    n_kv_heads = keys.whole("attention.head_count_kv", n_heads, high=65536)
    if n_heads % n_kv_heads:
        raise keys.fail("attention.head_count_kv", n_kv_heads, f"a divisor of the {n_heads} heads")
    context_length = keys.whole("context_length", high=MAX_CONTEXT)
    head_dim = keys.whole("attention.key_length", n_embd // n_heads, high=65536)
    if head_dim < 1:
        raise keys.fail("attention.head_count", n_heads, f"at most the embedding's {n_embd} values")
    if keys.whole("attention.value_length", head_dim, high=65536) != head_dim:
        found = _found(keys.get("attention.value_length"))
        raise keys.fail("attention.value_length", found, f"the key length {head_dim}")
    n_rot = keys.whole("rope.dimension_count", head_dim, low=0, high=65536)
    if n_rot > head_dim or n_rot % 2:
        raise keys.fail("rope.dimension_count", n_rot, f"an even number up to the head's {head_dim}")
    eps_key = (
        "attention.layer_norm_epsilon" if architecture == "stablelm" else "attention.layer_norm_rms_epsilon"
    )
    rope_base = keys.real("rope.freq_base", 10000.0, low=1e-3)
    window = keys.whole("attention.sliding_window", 4096 if architecture == "gemma2" else 0, 0, MAX_CONTEXT)
    if architecture not in _WINDOW_PERIOD:
        window = 0
    if window:
        _check_same_heads(keys, head_dim, n_rot)
    local_base = {"gemma2": rope_base, "gemma3": 10000.0}.get(architecture, rope_base)
    if architecture in ("gemma2", "gemma3"):
        local_base = keys.real("rope.freq_base_swa", local_base, low=1e-3)
    return ModelConfig(
        architecture=architecture,
        name=_name(file),
        n_layers=n_layers,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_ff=keys.whole("feed_forward_length", high=1 << 24),
        vocab_size=_vocab_size(file),
        context_length=context_length,
        norm_eps=keys.real(eps_key, low=0.0, high=1.0),
        n_rot=n_rot,
        rope_base=rope_base,
        rope_base_local=local_base,
        rope_scaling=_rope_scaling(keys, context_length),
        window=window,
        local_layers=_local_layers(keys, n_layers) if window else (),
        attention_cap=keys.real("attn_logit_softcapping", 50.0) if architecture == "gemma2" else 0.0,
        final_cap=_final_cap(keys),
        temperature_scale=keys.real("attention.temperature_scale", 0.0)
        if architecture == "mistral3"
        else 0.0,
    )


def _final_cap(keys: _Keys) -> float:
    """Soft cap of the logits: always on in Gemma 2, on request in Gemma 3."""
    default = {"gemma2": 30.0, "gemma3": 0.0}.get(keys.architecture)
    return 0.0 if default is None else keys.real("final_logit_softcapping", default)
