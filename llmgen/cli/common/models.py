"""From MODEL on the command line to a file, which is fetched first where it is not here."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from llmgen import hub
from llmgen.cli.common.interrupts import leaving_nothing
from llmgen.cli.terminal.output import note, size
from llmgen.cli.terminal.progress import Bar
from llmgen.cli.terminal.settings import can_draw
from llmgen.errors import LLMGenError, UsageError, shown
from llmgen.hub import state
from llmgen.hub.contents import DEFAULT_TYPE, type_in
from llmgen.hub.references import parse
from llmgen.visible import visible


def complete_model(incomplete: str) -> list[str]:
    """Names for the shell's completion; the shell completes paths itself."""
    names = set()
    with suppress(LLMGenError):  # a folder that cannot be read
        names = {model.name for model in hub.inventory(everything=":" in incomplete)}
    names |= set(hub.KNOWN_MODELS) | set(state.aliases())
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())


def complete_alias(incomplete: str) -> list[str]:
    """Aliases for the shell's completion."""
    return [name for name in state.aliases() if name.startswith(incomplete)]


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Path of a .gguf file (of a split model, its first part), a name that `llmgen list` shows, "
        "hf.co/OWNER/REPO[:TYPE], or a URL.",
        autocompletion=complete_model,
        show_default=False,
    ),
]


def set_alias(name: str, model: str) -> None:
    """Have a name stand for a model, which need not be here yet.  Raises LLMGenError."""
    if name in hub.KNOWN_MODELS or any(name == local.name for local in hub.local_models()):
        raise UsageError(f"{shown(name)} is the name of a model; take another one for the alias")
    if (target := state.alias(model)) is None:
        target = model
        hub.find(model)  # refuse what names nothing
        if Path(model).is_file():
            target = str(Path(model).absolute())
    before = state.alias(name)
    state.set_alias(name, target)
    note(
        f"{name} stands for {visible(target)}"
        + (f", no longer for {visible(before)}" if before not in (None, target) else "")
    )


def model_path(model: str) -> Path:
    """Return the file that MODEL names, fetched first if it is known, or on the hub or the web, and not here yet."""
    found = hub.find(model)
    from llmgen.gguf.faults import explain_lost_pages

    explain_lost_pages(exit_code=1)
    if not isinstance(found, Path):
        return fetch(found)
    _say_which(state.alias(model) or model, found)
    return found


def _say_which(model: str, path: Path) -> None:
    """Say which file of a repository is taken where no type was named, unless it is of the preferred type."""
    reference = parse(model) if "/" in model and not Path(model).exists() else None
    if isinstance(reference, hub.HubReference) and reference.tag is None and reference.file is None:
        if type_in(path.name) != DEFAULT_TYPE:
            note(f"{visible(reference)}: {visible(path.name)}, which is here")


def fetch(model: hub.KnownModel | hub.Reference) -> Path:
    """Fetch a model, with progress on stderr."""
    with leaving_nothing():
        return _fetch_known(model) if isinstance(model, hub.KnownModel) else _fetch_reference(model)


def _fetch_reference(reference: hub.Reference) -> Path:
    """Fetch a model of the hub or the web."""
    from llmgen.backends.cpu.memory import available_bytes
    from llmgen.gguf import check_model
    from llmgen.hub.remote import Watch
    from llmgen.model import archs

    name = visible(reference)
    bars = {
        "check": Bar("checking what is here", number=size),
        "download": Bar(f"fetching {name}", number=size),
    }
    asked = False

    def progress(step: str, done: int, total: int) -> None:
        nonlocal asked
        if step == "wait":
            note(f"another program is fetching {name}; waiting for it")
            return
        if step == "download" and not asked:
            asked = True
            if not can_draw():
                note(f"fetching {name}" + (f": {size(total)}" if total else ""))
        bars[step].total = total
        bars[step].update(done)

    try:
        with bars["check"], bars["download"]:
            watch = Watch(progress, note, check_model, archs.runs)
            path = hub.fetch_reference(reference, available_bytes(), watch)
    except KeyboardInterrupt:
        if asked:
            note(f"{name}: what has arrived is kept; the same command goes on from there")
        raise
    if asked:
        note(f"{name} is in {visible(path)}")
    return path


def _fetch_known(model: hub.KnownModel) -> Path:
    """Fetch a known model into the models folder, unless it is there."""
    path = hub.models_folder() / f"{model.name}.gguf"
    if path.exists():
        return path
    steps = {
        "download": Bar(f"fetching {model.name}", model.download_bytes, number=size),
        "unpack": Bar("unpacking, checking sha256", model.size, number=size),
    }

    def progress(step: str, done: int, total: int) -> None:
        if step == "wait":
            note(f"another llmgen is fetching {model.name}; waiting for it")
        else:
            steps[step].update(done)

    if not can_draw():
        note(f"fetching {model.name}: {model.summary}, {size(model.download_bytes)}")
    with steps["download"], steps["unpack"]:
        path = hub.fetch(model, hub.models_folder(), progress)
    note(f"{model.name} is in {visible(path)} ({size(model.size)}, sha256 checked)")
    return path
