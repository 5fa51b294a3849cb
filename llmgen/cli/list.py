"""``llmgen list``: the models that are here, and what could be fetched."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from llmgen import hub
from llmgen.cli.common.options import JsonOption
from llmgen.cli.terminal.output import note, print_json, size, table
from llmgen.cli.terminal.progress import Bar
from llmgen.errors import LLMGenError
from llmgen.hub import state
from llmgen.hub.remote import partial_fetches
from llmgen.visible import visible

COLUMNS = ("name", "size", "type", "architecture", "runs", "last used", "where")


def command(
    all: Annotated[
        bool,
        typer.Option("--all", "-a", help="Also the models of Ollama and LM Studio, read where they are."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the models that are here, by the names that can be given as MODEL, and those that can be fetched.

    They are in the models folders and in the cache of the Hugging Face hub.
    """
    models = hub.inventory(everything=all)
    with Bar("reading models", len(models)) as bar:
        here = []
        for number, model in enumerate(models):
            bar.update(number)
            here.append(_describe(model))
    partial = partial_fetches(hub.models_folders())
    names = {entry["name"] for entry in here}
    absent = [model for name, model in hub.KNOWN_MODELS.items() if name not in names]
    if json:
        _print_json(here, partial, absent)
        return
    rows = [_row(entry) for entry in here]
    rows += [(name, size(n), *"----", "partly fetched; llmgen pull goes on") for name, n in partial]
    rows += [(m.name, size(m.size), *"----", f"not here; llmgen pull {m.name}") for m in absent]
    note(f"models folder: {', '.join(visible(folder.absolute()) for folder in hub.models_folders())}")
    table(COLUMNS, rows, right=(1,))
    for entry in here:
        if "error" in entry:
            note(f"{visible(entry['name'])} does not run: {visible(entry['error'])}")


def _print_json(
    here: list[dict[str, Any]], partial: list[tuple[str, int]], absent: list[hub.KnownModel]
) -> None:
    known = [
        {"name": m.name, "summary": m.summary, "size": m.size, "download": m.download_bytes} for m in absent
    ]
    folders = [str(folder.absolute()) for folder in hub.models_folders()]
    aliases = state.aliases()
    print_json(
        {
            "folder": folders[0],
            "folders": folders,
            "models": here,
            "partial": [{"name": name, "size": n_bytes} for name, n_bytes in partial],
            "aliases": aliases,
            "available": known,
        }
    )


def _describe(model: hub.LocalModel) -> dict[str, Any]:
    """The facts about one model; ``error`` says why it does not run."""
    entry: dict[str, Any] = {
        "name": model.name,
        "path": str(model.path),
        "place": model.place,
        "size": model.size,
        "parts": model.n_parts,
        "last_used": state.last_use(model.path),
        "fetched_from": state.fetched_from(model.path),
        "runs": False,
    }
    from llmgen.backends.cpu.dry_run import dry_run
    from llmgen.cli.common.summary import quant_mix, quantization_name
    from llmgen.gguf import GGUFFile

    try:
        with GGUFFile.open(model.path) as file:
            entry["architecture"] = file.architecture
            entry["type"] = quantization_name(file)
            entry["quantization"] = quant_mix(file)
            entry["title"] = str(file.metadata.get("general.name", ""))
            dry_run(file, n_threads=1)
            entry["runs"] = True
    except LLMGenError as error:
        entry["error"] = str(error)
    return entry


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    used = entry["last_used"]
    return (
        entry["name"],
        size(entry["size"]),
        entry.get("type") or "?",
        entry.get("architecture") or "?",
        "yes" if entry["runs"] else "no",
        time.strftime("%Y-%m-%d", time.localtime(used)) if used else "-",
        _where(entry),
    )


def _where(entry: dict[str, Any]) -> str:
    """The place; of several models folders, which one."""
    if entry["place"] == "models folder" and len(hub.models_folders()) > 1:
        return str(Path(entry["path"]).parent)
    return str(entry["place"])
