"""From the user's MODEL to a file: paths, names, the models folder."""

from __future__ import annotations

import difflib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from llmgen.errors import ModelFileError
from llmgen.hub.catalog import KNOWN_MODELS, KnownModel
from llmgen.hub.references import Reference, parse
from llmgen.hub.splits import split_of


@dataclass(frozen=True)
class LocalModel:
    """A model file in the models folder: its first part where it is split."""

    name: str
    path: Path
    size: int
    n_parts: int


def models_folder() -> Path:
    """Return the folder of models; it need not exist yet.

    ``$LLMGEN_MODELS``, else ``models/`` in a clone of llmgen's repository that is the
    current folder, else a per-user data folder.  Other projects may have a ``models/`` of
    their own, so the folder must be llmgen's.
    """
    chosen = os.environ.get("LLMGEN_MODELS")
    if chosen:
        return Path(os.path.expanduser(chosen))
    here = Path("models")
    if here.is_dir() and _is_our_repository(Path()):
        return here
    import platformdirs

    return platformdirs.user_data_path("llmgen", appauthor=False) / "models"


def _is_our_repository(folder: Path) -> bool:
    """Whether a folder is a clone of llmgen's repository: its project file says so."""
    import tomllib

    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project")
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and project.get("name") == "llmgen"


def local_models(folder: Path | None = None) -> list[LocalModel]:
    """List the model files of the models folder by name; later parts of split files are left out.

    Raises:
        ModelFileError: the folder exists but cannot be read.
    """
    folder = folder or models_folder()
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
        parts = [path]
        if split:
            parts = [other for other in paths if other.stem in split.names()]
        size = sum(part.stat().st_size for part in parts)
        models.append(LocalModel(split.stem if split else path.stem, path, size, len(parts)))
    return models


def find(model: str) -> Path | KnownModel | Reference:
    """Return the file that MODEL names, or the known model or the place elsewhere that has yet to be fetched.

    MODEL is the path of a file, the name of a file in the models folder with or
    without ``.gguf``, a known name, or a place on the hub or the web (``references.py``).

    Raises:
        ModelFileError: nothing has that name; the message names the nearest ones.
    """
    path = Path(os.path.expanduser(model))
    if model and _is_file(path):
        return path
    looks_like_path = len(path.parts) != 1 or path.is_absolute()
    if not looks_like_path:
        for local in local_models():
            if model in (local.name, local.path.stem, local.path.name):
                return local.path
        if model in KNOWN_MODELS:
            return KNOWN_MODELS[model]
    elif (reference := parse(model)) is not None:
        from llmgen.hub.remote import find_cached

        return find_cached(reference, models_folder()) or reference
    raise ModelFileError(_not_found(model, path, looks_like_path))


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
    if not model:
        return "the model's name is empty; give the path of a .gguf file or a name that `llmgen list` shows"
    if path.is_dir():
        return f"{model} is a folder; give the .gguf file inside it (of a split model, its first part)"
    if path.exists():
        return f"{model} is not a regular file, which a model must be; give the path of a .gguf file"
    if looks_like_path or path.suffix == ".gguf":
        return f"there is no file {model}; check the path, or give a name that `llmgen list` shows"
    names = sorted({local.name for local in local_models()} | set(KNOWN_MODELS))
    near = difflib.get_close_matches(model.lower(), names, n=3, cutoff=0.5) or names
    return (
        f"there is no model {model!r} in {models_folder()}, nor a file of that name; "
        f"did you mean {' or '.join(near[:5])}?"
    )
