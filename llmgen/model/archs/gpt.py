"""GPT-2 and its kin: layer norms, a plain feed-forward with gelu, biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import LayerNorms, PreNorm
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import LearnedPositions
from llmgen.model.rope import Rope
from llmgen.model.weights import Matrix, Weights


@architecture("gpt2")
class GPT2(LayerNorms, LearnedPositions, PreNorm):
    """Learned positions, layer norms, a plain feed-forward with gelu, biases everywhere."""

    models = "GPT-2, Cerebras-GPT"
    ff_kind, activation = "plain", "gelu"


@architecture("gptneox")
@dataclass(frozen=True, kw_only=True)
class GPTNeoX(LayerNorms, PreNorm):
    """GPT-2 with rotary positions on halves; attention and feed-forward may run side by side (arXiv:2204.06745)."""

    models = "Pythia, GPT-NeoX 20B, Dolly 2, RedPajama INCITE, StableLM Alpha"
    ff_kind, activation = "plain", "gelu"

    parallel: bool

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, parallel=keys.flag("use_parallel_residual"), **own)

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        if not self.parallel:
            return super().block(b, w, x, layer, state, rope)
        name = f"blk.{layer}."
        a = self.attended(b, w, self.norm(b, w, x, name + "attn_norm"), layer, state, rope)
        f = self.fed_forward(b, w, self.norm(b, w, x, name + "ffn_norm"), layer)
        return b.add(b.add(x, a), f)


@architecture("codeshell")
class CodeShell(LayerNorms, PreNorm):
    """GPT-2 with rotary positions on halves; a file may leave out the embedding for the output (arXiv:2403.15747)."""

    models = "CodeShell 7B"
    ff_kind, activation = "plain", "gelu"

    def embedding(self, w: Weights) -> Matrix:
        return super().embedding(w) if w.has("token_embd") else self.output_matrix(w)


@architecture("pockettts")
class PocketTTS(LayerNorms, PreNorm):
    """The transformer of a model that speaks: rotary positions on pairs, and the logits of its text's embedding."""

    models = "Pocket TTS (its backbone)"
    neox, ff_kind, activation = False, "plain", "gelu"


@architecture("jais2")
class Jais2(LayerNorms, PreNorm):
    """GPT-2 with rotary positions on halves, and the square of ReLU."""

    models = "Jais 2 8B and 70B"
    ff_kind, activation = "plain", "relu_squared"


@architecture("nemotron")
class Nemotron(LayerNorms, PreNorm):
    """GPT-2 with partial rotary positions on halves, and the square of ReLU (arXiv:2407.14679)."""

    models = "Minitron, Nemotron-Mini 4B, Nemotron-4"
    ff_kind, activation = "plain", "relu_squared"
