"""``llmgen inspect``: what is in a model file, and what llmgen will do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.common.model_options import EngineOptions, file_options
from llmgen.cli.common.models import ModelArgument, model_path
from llmgen.cli.common.options import JsonOption
from llmgen.cli.terminal.output import count, facts, print_json, shorten, size, table

if TYPE_CHECKING:
    from llmgen.gguf import GGUFFile

_NAMED = 5
"""Tensors that are named where a list of them might be long."""


@file_options
def command(
    model: ModelArgument,
    tensors: Annotated[bool, typer.Option("--tensors", help="List the tensors too.")] = False,
    json: JsonOption = False,
    *,
    engine: EngineOptions,
) -> None:
    """Show what is in a model file, and what llmgen will do with it.

    Nothing is loaded: only the file's header is read. -c, -t, --kv-type and --rope-scaling show
    what they would change.
    """
    path = model_path(model)

    from llmgen.cli.common import summary
    from llmgen.gguf import GGUFFile

    with GGUFFile.open(path) as file:
        report: dict[str, Any] = {
            "file": summary.describe_file(file),
            "tokenizer": summary.describe_tokenizer(file),
            "chat_template": summary.describe_template(file.metadata),
            "engine": summary.describe_engine(file, engine),
        }
        if tensors:
            report["tensors"] = summary.describe_tensors(file)
        if json:
            print_json({**report, "metadata": _metadata(file)})
            return
    facts(
        [
            *_file_facts(report["file"]),
            *_engine_facts(report["engine"]),
            *_tokenizer_facts(report["tokenizer"]),
            ("chat template", _template(report["chat_template"])),
        ]
    )
    if tensors:
        _print_tensors(report["tensors"])


def _metadata(file: GGUFFile) -> dict[str, Any]:
    """All metadata; arrays, which may be long vocabularies, as type and length."""
    values = {}
    for key, value in file.metadata.items():
        kind = file.metadata_type(key)
        values[key] = {"type": kind, "length": len(value)} if kind.startswith("ARRAY") else value
    return values


def _file_facts(file: dict[str, Any]) -> list[tuple[str, object]]:
    parts = f" in {file['parts']} parts" if file["parts"] > 1 else ""
    return [
        ("file", file["path"]),
        ("size", f"{size(file['size'])}{parts}, GGUF version {file['gguf_version']}"),
        ("name", shorten(file["name"] or "not given", 200)),
        ("license", shorten(file["license"] or "not given", 200)),
        ("architecture", file["architecture"] or "not given"),
        *_family(file["architecture"]),
        ("parameters", f"{count(file['parameters'])} in {file['tensors']} tensors"),
        ("quantization", f"{_mix(file['quantization'])}; {file['bits_per_weight']:.2f} bits per weight"),
        *((("cannot run", _unreadable(file["unreadable"])),) if file["unreadable"] else ()),
    ]


def _family(architecture: str | None) -> list[tuple[str, object]]:
    """The models that people know an architecture by."""
    from llmgen.model.archs import find

    known = find(architecture) if architecture else None
    return [("family", known.models)] if known else []


def _unreadable(names: dict[str, list[str]]) -> str:
    """The tensors of types that llmgen does not know, the first few of each by name."""
    parts = []
    for kind, tensors in names.items():
        more = f" and {len(tensors) - _NAMED} more" if len(tensors) > _NAMED else ""
        parts.append(f"{kind}: {', '.join(shorten(name, 80) for name in tensors[:_NAMED])}{more}")
    return "; ".join(parts)


def _mix(quantization: dict[str, dict[str, Any]]) -> str:
    total = sum(entry["bytes"] for entry in quantization.values()) or 1
    return ", ".join(
        f"{name} {entry['bytes'] / total:.0%} ({entry['tensors']})" for name, entry in quantization.items()
    )


def _engine_facts(engine: dict[str, Any]) -> list[tuple[str, object]]:
    if "error" in engine:
        return [("runs here", f"no: {engine['error']}")]
    per_token, whole = size(engine["kv_bytes_per_token"]), size(engine["kv_bytes_per_context"])
    fixed = size(engine["recurrent_bytes"])
    recurrent = (
        [("recurrent state", f"{fixed} of that, whatever the context")] if engine["recurrent_bytes"] else []
    )
    return [
        ("shape", ", ".join(f"{name} {value}" for name, value in engine["shape"].items())),
        ("context", f"{engine['n_ctx']} tokens ({_trained(engine)})"),
        ("KV cache", f"{per_token} per token, {whole} for the whole context ({engine['kv_type']})"),
        ("by its kind", f"{', '.join(_kind_sizes(engine['kv_kinds']))} per token"),
        *recurrent,
        ("threads", engine["threads"]),
        ("kernels", engine["kernel_level"]),
    ]


def _trained(engine: dict[str, Any]) -> str:
    """For how many tokens the model was made, and how far a scaling of positions stretches that."""
    made, reach = engine["context_length"], engine["reach"]
    return f"the model was made for {made}" + (f", stretched to {reach}" if reach != made else "")


def _kind_sizes(kinds: dict[str, dict[str, int]]) -> list[str]:
    return [f"{kind} {size(cost['bytes_per_token'])}" for kind, cost in kinds.items()]


def _tokenizer_facts(tokenizer: dict[str, Any]) -> list[tuple[str, object]]:
    if tokenizer["kind"] is None:
        return [("tokenizer", "none in the file")]
    if "error" in tokenizer:
        return [("tokenizer", f"{tokenizer['kind']}, unusable: {tokenizer['error']}")]
    pre = f" ({tokenizer['pre']})" if tokenizer["pre"] else ""
    added = [name for name in ("bos", "eos") if tokenizer[f"add_{name}"]]
    special = [f"{name} {_token(token)}" for name, token in tokenizer["special"].items()]
    return [
        ("tokenizer", f"{tokenizer['kind']}{pre}, {tokenizer['tokens']} tokens"),
        ("special tokens", ", ".join(special) or "none named"),
        ("added to text", " and ".join(added) or "nothing"),
        ("ends an answer", ", ".join(map(_token, tokenizer["end_of_generation"])) or "no token does"),
    ]


def _token(token: dict[str, Any]) -> str:
    text = "not in the vocabulary" if token["text"] is None else shorten(token["text"], 40)
    return f"{token['id']} {text}"


def _template(template: dict[str, Any]) -> str:
    other = f"; also {', '.join(template['other'])}" if template["other"] else ""
    if template["source"] is None:
        return f"none: prompts are completed as they stand{other}"
    return f"{template['source']} in the file, {template['characters']} characters{other}"


def _print_tensors(tensors: list[dict[str, Any]]) -> None:
    print()
    rows = [(t["name"], t["type"], " x ".join(map(str, t["shape"])), size(t["bytes"])) for t in tensors]
    table(("tensor", "type", "shape (fastest axis first)", "size"), rows, right=(3,))
