"""From MODEL on the command line to a file, fetched first where that is what its name means."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from llmgen import hub
from llmgen.cli.output import note, size, visible


def complete_model(incomplete: str) -> list[str]:
    """Names for the shell's completion; paths are the shell's own business."""
    names = {model.name for model in hub.local_models()} | set(hub.KNOWN_MODELS)
    return sorted(name for name in names if name.startswith(incomplete))


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Path of a .gguf file (of a split model, its first part), or a name that `llmgen list` shows.",
        autocompletion=complete_model,
        show_default=False,
    ),
]


def model_path(model: str) -> Path:
    """Return the file that MODEL means, about to be mapped; a known model that is not here yet is fetched first."""
    found = hub.find(model)
    from llmgen.gguf.faults import explain_lost_pages

    explain_lost_pages(exit_code=1)
    return found if isinstance(found, Path) else fetch(found)


def fetch(model: hub.KnownModel) -> Path:
    """Fetch a known model into the models folder, with progress on stderr."""
    folder = hub.models_folder()
    if sys.stderr.isatty():
        with _progress_bar(model) as progress:
            path = hub.fetch(model, folder, progress)
    else:
        note(f"fetching {model.name}: {model.summary}, {size(model.download_bytes)}")
        path = hub.fetch(model, folder, _note_waiting(model))
    note(f"{model.name} is in {visible(path)} ({size(model.size)}, sha256 checked)")
    return path


def _note_waiting(model: hub.KnownModel) -> hub.Progress:
    def progress(step: str, done: int, total: int) -> None:
        if step == "wait":
            note(f"another llmgen is fetching {model.name}; waiting for it")

    return progress


@contextmanager
def _progress_bar(model: hub.KnownModel) -> Iterator[hub.Progress]:
    """Two bars, one for what goes over the network and one for the file it becomes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        SpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {
            "download": bars.add_task(f"fetching {model.name}", total=model.download_bytes),
            "unpack": bars.add_task("unpacking, checking sha256", total=model.size, start=False),
        }

        def progress(step: str, done: int, total: int) -> None:
            if step == "wait":
                console.print(f"another llmgen is fetching {model.name}; waiting for it", markup=False)
                return
            bars.start_task(tasks[step])
            bars.update(tasks[step], completed=done)

        yield progress
