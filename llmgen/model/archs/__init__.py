"""The architectures: one class each, in a file with its close relatives.

A class registers itself under its ``general.architecture``; adding one touches its own
file and nothing else.  ``read_model`` finds the class for a file.
"""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from llmgen.errors import UnsupportedModelError, shown
from llmgen.gguf import GGUFFile
from llmgen.model.decoder import Decoder
from llmgen.model.keys import Keys
from llmgen.model.weights import Weights

_registered: dict[str, type[Decoder]] = {}
_NAMED = 6
"""How many tensors a message names."""

D = TypeVar("D", bound=type[Decoder])


def architecture(*names: str) -> Callable[[D], D]:
    """Register a class for files whose ``general.architecture`` is one of ``names``."""

    def register(cls: D) -> D:
        for name in names:
            if name in _registered:
                raise ValueError(f"two classes for the architecture {name!r}")
            _registered[name] = cls
        return cls

    return register


def find(name: str) -> type[Decoder] | None:
    """The class of an architecture, or None.

    The files whose name the architecture's begins with are looked into first, so that a
    start does not import all of them.
    """
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    likely = [module for module in modules if name.replace("-", "_").startswith(module)]
    for module in (*sorted(likely, key=len, reverse=True), *modules):
        if name in _registered:
            break
        import_module(f"{__name__}.{module}")
    return _registered.get(name)


def runs(name: str) -> bool:
    """Whether there is a class for an architecture."""
    return find(name) is not None


def names() -> list[str]:
    """All architectures that can be run."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return sorted(_registered)


def read_model(file: GGUFFile) -> Decoder:
    """The architecture of a file with its hyperparameters.

    The architecture is checked before any other key is read, since their meaning depends on it.
    Raises UnsupportedModelError for an architecture that llmgen does not run, and for
    hyperparameters that no model can have.
    """
    name = file.architecture
    if name is None:
        raise UnsupportedModelError(
            f"{file.path} has no general.architecture, so it is no model; choose another file"
        )
    cls = find(name)
    if cls and not cls.mixture and (experts := _experts(file)):
        raise UnsupportedModelError(
            f"the model is a mixture of experts ({shown(name, quote=False)} with {experts}), and llmgen runs "
            "models of this architecture only without experts; use one of those"
        )
    if cls is None:
        raise UnsupportedModelError(
            f"the model's architecture {shown(name)} is not supported; use a model of another one{_nearest(name)}"
        )
    return cls.read(Keys(file))


def _nearest(name: str) -> str:
    """In words, the architectures whose names are most like ``name``."""
    known = names()
    near = difflib.get_close_matches(name, known, 3, 0.5)
    listed = f": {', '.join(near)} are nearest in name" if len(near) > 1 else ""
    listed = f": {near[0]} is nearest in name" if len(near) == 1 else listed
    return f"{listed} (docs/architectures.md lists all {len(known)})"


def _experts(file: GGUFFile) -> str:
    """What makes the file a mixture of experts, in words; empty for a dense model."""
    for key in ("expert_count", "expert_used_count"):
        value = file.metadata.get(f"{file.architecture}.{key}")
        if value is not None and value is not False and not (isinstance(value, int) and value == 0):
            return f"{key} {shown(value)}"
    tensor = next((name for name in file.tensors if "_exps." in name), None)
    return f"the tensor {shown(tensor, quote=False)}" if tensor else ""


def check_all_read(file: GGUFFile, weights: Weights, model: Decoder) -> None:
    """Refuse a file with tensors that the forward pass of its architecture has not read.

    What they do to the model is not computed, so its text would be fluent and wrong.
    llama.cpp refuses such files too (``done_getting_tensors`` in src/llama-model-loader.cpp).
    Raises UnsupportedModelError with the names.
    """
    unread = weights.unread()
    if not unread:
        return
    listed = ", ".join(shown(name, quote=False) for name in unread[:_NAMED])
    more = f" and {len(unread) - _NAMED:,} more" if len(unread) > _NAMED else ""
    if any(name.startswith(f"blk.{model.n_layers}.") for name in unread):
        reason = f"{model.architecture}.block_count is {model.n_layers}, but the file has more blocks"
    else:
        reason = f"llmgen's {model.architecture} does not read {_tensors(len(unread))} of {file.path.name}"
    raise UnsupportedModelError(
        f"{reason} ({listed}{more}), so its answers would be wrong; get another conversion of the model, "
        "or a newer llmgen"
    )


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count:,} tensors"
