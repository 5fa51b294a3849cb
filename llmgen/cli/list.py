"""``llmgen list``: the models folder, and what could be fetched into it."""

from __future__ import annotations

from typing import Any

from llmgen import hub
from llmgen.cli.common.options import JsonOption
from llmgen.cli.terminal.output import note, print_json, size, table
from llmgen.errors import LLMGenError
from llmgen.visible import visible


def command(
    json: JsonOption = False,
) -> None:
    """List the local models by name, and the known ones that can be fetched."""
    folder = hub.models_folder()
    here = [_describe(model) for model in hub.local_models(folder)]
    names = {entry["name"] for entry in here}
    absent = [model for name, model in hub.KNOWN_MODELS.items() if name not in names]
    if json:
        known = [
            {"name": m.name, "summary": m.summary, "size": m.size, "download": m.download_bytes}
            for m in absent
        ]
        print_json({"folder": str(folder.absolute()), "models": here, "available": known})
        return
    rows = [_row(entry) for entry in here]
    rows += [
        (model.name, size(model.size), "-", "-", f"not here; llmgen pull {model.name}") for model in absent
    ]
    note(f"models folder: {visible(folder.absolute())}")
    table(("name", "size", "architecture", "quantization", "description"), rows, right=(1,))


def _describe(model: hub.LocalModel) -> dict[str, Any]:
    """The facts about one file; a damaged one has an error instead."""
    entry: dict[str, Any] = {
        "name": model.name,
        "path": str(model.path),
        "size": model.size,
        "parts": model.n_parts,
    }
    from llmgen.gguf import GGUFFile

    try:
        with GGUFFile.open(model.path) as file:
            from llmgen.cli.common.summary import quant_mix

            entry["architecture"] = file.architecture
            entry["quantization"] = quant_mix(file)
            entry["title"] = str(file.metadata.get("general.name", ""))
    except LLMGenError as error:
        entry["error"] = str(error)
    return entry


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    if "error" in entry:
        return entry["name"], size(entry["size"]), "?", "?", f"unusable: {entry['error']}"
    mix = ", ".join(list(entry["quantization"])[:3])
    return entry["name"], size(entry["size"]), entry["architecture"] or "?", mix, entry["title"]
