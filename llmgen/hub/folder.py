"""From the user's MODEL to a file: paths, names, the models folder."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from llmgen.errors import ModelFileError, UsageError, shown
from llmgen.hub.catalog import KNOWN_MODELS, KnownModel
from llmgen.hub.local import LocalModel
from llmgen.hub.references import Reference, names_on_the_hub, parse
from llmgen.hub.splits import split_of
from llmgen.hub.state import alias, aliases
from llmgen.hub.stores import LM_STUDIO, OLLAMA, find_in_stores

_URLS = "urls"


def models_folders() -> list[Path]:
    """The folders of models; they need not exist yet.  What is fetched goes into the first.

    Those of ``$LLMGEN_MODELS`` (several, as in PATH), else ``models/`` in a clone of llmgen's repository
    that is the current folder, else a per-user data folder.  Other projects may have a ``models/`` of
    their own, so the folder must be llmgen's.
    """
    chosen = os.environ.get("LLMGEN_MODELS")
    if chosen:
        names = [chosen] if os.path.isdir(chosen) else [part for part in chosen.split(os.pathsep) if part]
        return [Path(os.path.expanduser(name)) for name in names or [chosen]]
    here = Path("models")
    if here.is_dir() and _is_our_repository(Path()):
        return [here]
    import platformdirs

    return [platformdirs.user_data_path("llmgen", appauthor=False) / "models"]


def models_folder() -> Path:
    """The folder that models are fetched into."""
    return models_folders()[0]


def _is_our_repository(folder: Path) -> bool:
    """Whether a folder is a clone of llmgen's repository: its project file says so."""
    import tomllib

    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project")
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and project.get("name") == "llmgen"


def local_models() -> list[LocalModel]:
    """The models in the models folders, by name; where two have one name, the first folder's.

    Raises:
        ModelFileError: a folder exists but cannot be read.
    """
    found: dict[str, LocalModel] = {}
    for folder in models_folders():
        for model in [*_in_folder(folder), *_from_urls(folder)]:
            found.setdefault(model.name, model)
    return sorted(found.values(), key=lambda model: model.name)


def _in_folder(folder: Path) -> list[LocalModel]:
    """The models right in a folder; later parts of split ones are left out."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".gguf" and path.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ModelFileError(
            f"cannot read the models folder {folder}: {error.strerror}; set LLMGEN_MODELS to another one"
        ) from None
    models = []
    for path in paths:
        split = split_of(path.stem)
        if split and split.part != 1:
            continue
        files = tuple(other for other in paths if other.stem in split.names()) if split else (path,)
        with suppress(OSError):  # removed meanwhile
            size = sum(file.stat().st_size for file in files)
            models.append(LocalModel(split.stem if split else path.stem, files, size, "models folder"))
    return models


def _from_urls(folder: Path) -> list[LocalModel]:
    """The models that were fetched from URLs, each in a folder of its own."""
    try:
        folders = sorted(path for path in (folder / _URLS).iterdir() if path.is_dir())
    except OSError:
        return []
    return [model for one in folders for model in _in_folder(one)]


def find(model: str) -> Path | KnownModel | Reference:
    """Return the file that MODEL names, or the known model or the place elsewhere that has yet to be fetched.

    MODEL is the path of a file, an alias, the name of a file in a models folder with or
    without ``.gguf``, a known name, a model of Ollama or LM Studio, or a place on the hub or
    the web (``references.py``), in this order.

    Raises:
        UsageError: the name is empty.
        ModelFileError: nothing has that name; the message names the nearest ones.
    """
    if not model:
        raise UsageError(
            "the model's name is empty; give the path of a .gguf file or a name that `llmgen list` shows"
        )
    path = Path(os.path.expanduser(model))
    if _is_file(path):
        return path
    if (target := alias(model)) is not None:
        return _find_alias(model, target)
    looks_like_path = len(path.parts) != 1 or path.is_absolute()
    if not looks_like_path and (named := _named(model)) is not None:
        return named
    if model.startswith((OLLAMA, LM_STUDIO)) or (":" in model and not looks_like_path):
        if (stored := find_in_stores(model)) is not None:
            return stored
    elif looks_like_path and (reference := parse(model)) is not None:
        from llmgen.hub.remote import find_cached

        return find_cached(reference, models_folder()) or reference
    raise ModelFileError(_not_found(model, path, looks_like_path))


def _named(name: str) -> Path | KnownModel | None:
    """The model of that name in the models folders, or the known one."""
    for local in local_models():
        if name in (local.name, local.path.stem, local.path.name):
            return local.path
    return KNOWN_MODELS.get(name)


def _find_alias(name: str, target: str) -> Path | KnownModel | Reference:
    if alias(target) is not None and not _is_file(Path(target)):  # made by hand: it could lead in a circle
        raise ModelFileError(
            f"the alias {name} stands for the alias {shown(target)}; have it stand for a model"
        )
    try:
        return find(target)
    except ModelFileError as error:
        raise ModelFileError(f"the alias {name} stands for {shown(target)}: {error}") from None


def _is_file(path: Path) -> bool:
    """Whether path is a regular file; raises ModelFileError if it cannot be looked up."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:  # a NUL character
        raise ModelFileError(f"{str(path)!r} is not a path: {error}") from None
    except OSError as error:
        raise ModelFileError(f"cannot look up {path}: {error.strerror}; check the path") from None


def _not_found(model: str, path: Path, looks_like_path: bool) -> str:
    """One sentence for a MODEL that was not found: what is there instead, or similar names."""
    if model.startswith((OLLAMA, LM_STUDIO)):
        return f"there is no model {model!r}; `llmgen list --all` shows what Ollama and LM Studio have"
    if path.is_dir():
        return f"{model} is a folder; give the .gguf file inside it (of a split model, its first part)"
    if path.exists():
        return f"{model} is not a regular file, which a model must be; give the path of a .gguf file"
    if looks_like_path or path.suffix == ".gguf":
        place = f"hf.co/{model}"
        hint = f", or {place} for that of the hub" if looks_like_path and names_on_the_hub(place) else ""
        return f"there is no file {model}; check the path, or give a name that `llmgen list` shows{hint}"
    names = sorted({local.name for local in local_models()} | set(KNOWN_MODELS) | set(aliases()))
    import difflib

    near = difflib.get_close_matches(model.lower(), names, n=3, cutoff=0.5)
    more = " and others (`llmgen list`)" if len(names) > 5 else ""
    known = f"known names are {', '.join(names[:5])}{more}"
    hint = f"did you mean {' or '.join(near)}?" if near else known
    return f"there is no model {model!r} in {models_folder()}, nor a file of that name; {hint}"
