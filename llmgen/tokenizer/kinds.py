"""The kinds of tokenizers (``tokenizer.ggml.model``), and what holds for each where a file says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmgen.errors import TokenizerError, shown
from llmgen.tokenizer.vocab import PREFIX

NO_VOCABULARY = ("no_vocab", "none")


@dataclass(frozen=True)
class Defaults:
    """What holds for a kind of tokenizer if the file does not say otherwise."""

    add_bos: bool = False
    add_eos: bool = False
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    space_prefix: bool = False
    surrounds: bool = True
    """Whether BOS and EOS are ever added."""


_DEFAULTS = {
    "gpt2": Defaults(),
    "gemma4": Defaults(),
    "llama": Defaults(add_bos=True, bos_id=1, eos_id=2, unk_id=0, space_prefix=True),
    "rwkv": Defaults(surrounds=False),
    "t5": Defaults(add_eos=True, eos_id=1, unk_id=2),
    "plamo2": Defaults(bos_id=1, eos_id=2, unk_id=0, surrounds=False),
}
_NOT_GENERATIVE = {"bert": "an encoder that makes embeddings"}


def defaults_of(kind: str) -> Defaults:
    """The defaults of a kind of tokenizer.  Raises TokenizerError for one that llmgen does not run."""
    if kind in _NOT_GENERATIVE:
        raise TokenizerError(
            f"the tokenizer {shown(kind)} belongs to {_NOT_GENERATIVE[kind]}; llmgen generates text, "
            "so use a model made for that"
        )
    if kind not in _DEFAULTS:
        raise TokenizerError(
            f"the tokenizer {shown(kind)} is not known, expected one of {', '.join(sorted(_DEFAULTS))}; "
            "use another model, or a newer llmgen"
        )
    return _DEFAULTS[kind]


def bos_and_eos(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """The spellings of a file's BOS and EOS, empty if there is none; reads no other token."""
    model, tokens = metadata.get(PREFIX + "model"), metadata.get(PREFIX + "tokens")
    kind = _DEFAULTS.get(model, Defaults()) if isinstance(model, str) else Defaults()
    texts = []
    for name, default in (("bos", kind.bos_id), ("eos", kind.eos_id)):
        id = metadata.get(f"{PREFIX}{name}_token_id", default)
        if isinstance(tokens, Sequence) and isinstance(id, int) and 0 <= id < len(tokens):
            texts.append(str(tokens[id]))
        else:
            texts.append("")
    return texts[0], texts[1]


def stated_size(metadata: Mapping[str, Any]) -> int:
    """The size that a file without tokens gives its vocabulary, 0 if it does not."""
    value = metadata.get(f"{metadata.get('general.architecture')}.vocab_size", 0)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
