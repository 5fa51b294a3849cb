"""What a model file holds and what llmgen will do with it, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmgen.cli.common.model_options import EngineOptions
from llmgen.errors import LLMGenError, UsageError
from llmgen.gguf import GGMLType, GGUFFile
from llmgen.gguf.types import WEIGHT_TYPES
from llmgen.quantize.mixes import MIXES

if TYPE_CHECKING:
    from llmgen.backends.cpu.states import StateLayout
    from llmgen.model.decoder import Decoder

_TOKEN_ID = ("tokenizer.ggml.", "_token_id")
_TEMPLATE = "tokenizer.chat_template"


def quant_mix(file: GGUFFile) -> dict[str, dict[str, Any]]:
    """Return the number of tensors, parameters and bytes of each tensor type; the most bytes first."""
    mix: dict[str, dict[str, Any]] = {}
    for tensor in file.tensors.values():
        entry = mix.setdefault(tensor.type.name, {"tensors": 0, "parameters": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["parameters"] += tensor.n_elements
        entry["bytes"] += tensor.nbytes
    return dict(sorted(mix.items(), key=lambda item: -item[1]["bytes"]))


def quantization_name(file: GGUFFile) -> str:
    """The name of the file's quantization, ``Q4_K_M``; if it has none, the two types with the most bytes.

    A mix has several types, and little of the one that names it where a vocabulary is large.
    """
    file_type = file.metadata.get("general.file_type")
    named = next((mix.name for mix in MIXES.values() if mix.file_type == file_type), None)
    return named or ", ".join(list(quant_mix(file))[:2])


def describe_file(file: GGUFFile) -> dict[str, Any]:
    """The file itself: path, size, name, and its tensors by type."""
    n_bytes = sum(tensor.nbytes for tensor in file.tensors.values())
    n_parameters = sum(tensor.n_elements for tensor in file.tensors.values())
    return {
        "path": str(file.path),
        "parts": len(file.paths),
        "size": file.file_size,
        "gguf_version": file.version,
        "name": _text(file.metadata, "general.name"),
        "license": _text(file.metadata, "general.license"),
        "architecture": file.architecture,
        "tensors": len(file.tensors),
        "parameters": n_parameters,
        "bits_per_weight": 8 * n_bytes / max(1, n_parameters),
        "quantization": quant_mix(file),
        "unreadable": unreadable(file),
    }


def unreadable(file: GGUFFile) -> dict[str, list[str]]:
    """The names of the tensors that cannot run, by their type: of an unknown id, or of activations."""
    runs = {*WEIGHT_TYPES, GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64}
    found: dict[str, list[str]] = {}
    for tensor in file.tensors.values():
        if tensor.type not in runs:
            found.setdefault(tensor.type.name, []).append(tensor.name)
    return found


def describe_tensors(file: GGUFFile) -> list[dict[str, Any]]:
    """One entry for each tensor, in file order; shapes have the fastest axis first, as GGUF does."""
    return [
        {
            "name": t.name,
            "type": t.type.name,
            "shape": list(t.shape),
            "parameters": t.n_elements,
            "bytes": t.nbytes,
        }
        for t in file.tensors.values()
    ]


def describe_tokenizer(file: GGUFFile) -> dict[str, Any]:
    """The vocabulary, its special and end-of-generation tokens; ``error`` if it cannot be used."""
    kind = _text(file.metadata, "tokenizer.ggml.model")
    if kind in (None, "no_vocab"):
        return {"kind": None}
    from llmgen.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.from_gguf(file)
    except LLMGenError as error:
        return {"kind": kind, "error": str(error)}

    def token(token_id: int) -> dict[str, Any]:
        known = 0 <= token_id < tokenizer.n_vocab
        return {"id": token_id, "text": tokenizer.token_text(token_id) if known else None}

    return {
        "kind": tokenizer.kind,
        "pre": tokenizer.pre,
        "tokens": tokenizer.n_vocab,
        "add_bos": tokenizer.add_bos,
        "add_eos": tokenizer.add_eos,
        "special": {name: token(token_id) for name, token_id in _special_ids(file.metadata).items()},
        "end_of_generation": [token(token_id) for token_id in sorted(tokenizer.eog_ids)],
    }


def describe_template(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Where the chat template comes from; ``source`` is None if there is none."""
    named = sorted(key for key in metadata if key.startswith(_TEMPLATE + "."))
    text = _text(metadata, _TEMPLATE)
    return {
        "source": _TEMPLATE if text is not None else None,
        "characters": len(text) if text is not None else 0,
        "other": [key.removeprefix(_TEMPLATE + ".") for key in named],
    }


def _special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """``{"bos": 1, ...}``, as far as the file names them."""
    start, end = _TOKEN_ID
    return {
        key.removeprefix(start).removesuffix(end): value
        for key, value in metadata.items()
        if key.startswith(start) and key.endswith(end) and isinstance(value, int)
    }


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def describe_engine(file: GGUFFile, engine: EngineOptions) -> dict[str, Any]:
    """What loading the model with these options would give, without loading it.

    The forward pass is recorded once, which checks every tensor's shape and type;
    ``error`` says why the model cannot run.  Raises UsageError for options that no model takes.
    """
    from llmgen.backends.cpu.dry_run import dry_run
    from llmgen.backends.cpu.runtime.threads import default_threads
    from llmgen.cli.common.machine import kernel_level
    from llmgen.model.kv_config import KV_KINDS, KVCacheConfig
    from llmgen.model.states import KV, Contents

    try:
        kinds = KVCacheConfig.of(engine.kv_type or "f16")
        config, layout = dry_run(file, engine.n_ctx, kinds, engine.n_threads, engine.rope_scaling)
    except UsageError:
        raise
    except LLMGenError as error:
        return {"error": str(error)}
    return {
        "shape": {
            "layers": config.n_layers,
            "width": config.n_embd,
            "feed-forward": config.n_ff,
            "heads": config.n_heads,
            "KV heads": config.n_kv_heads,
            "head size": config.head_dim,
            "vocabulary": config.vocab_size,
            **_experts(config),
        },
        "window": max((s.window for s in config.states() if isinstance(s, KV | Contents)), default=0) or None,
        "context_length": config.context_length,
        "reach": config.reach,
        "n_ctx": layout.n_ctx,
        "kv_type": layout.kv_type,
        "kv_bytes_per_token": layout.bytes_per_token,
        "kv_bytes_per_context": layout.bytes_for(layout.n_ctx),
        "kv_kinds": {kind: _kv_bytes(layout, kind) for kind in KV_KINDS},
        "recurrent_bytes": layout.bytes_for(0),
        "threads": engine.n_threads or default_threads(),
        "kernel_level": kernel_level(),
    }


def _experts(config: Decoder) -> dict[str, int]:
    """The experts of a mixture, as parts of its shape."""
    from llmgen.model.mixtures import Mixture

    if not isinstance(config, Mixture) or not config.n_experts:
        return {}
    return {"experts": config.n_experts, "used for a token": config.n_used, "size of one": config.n_expert_ff}


def _kv_bytes(layout: StateLayout, kind: str) -> dict[str, int]:
    """Bytes of a token and of the whole context if keys and values were of this kind."""
    from llmgen.model.kv_config import KVCacheConfig

    other = layout.of_kind(KVCacheConfig.of(kind))
    return {"bytes_per_token": other.bytes_per_token, "bytes_per_context": other.bytes_for(other.n_ctx)}
