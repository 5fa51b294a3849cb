"""Which of a repository's models a name means: the file, the type, or without either, Q4_K_M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgen.errors import DownloadError, shown
from llmgen.hub.contents import DEFAULT_TYPE, Candidate, companion
from llmgen.hub.references import HubReference

_BITS = {"B": 16, "F": 16, "M": 4, "N": 4}  # BF16, F16, MXFP4, NVFP4
_MOST_SHOWN = 12
_ROOM = 10
"""One part in so many of the free memory is left for the KV cache and all else that is no weight."""


@dataclass(frozen=True)
class Choice:
    """A model, and why it was taken where the name left that open."""

    model: Candidate
    why: str = ""


def choose(models: Sequence[Candidate], reference: HubReference, memory: int | None = None) -> Choice:
    """The model of a repository that ``reference`` names.

    ``memory`` in bytes: what a model that is chosen for its type alone must fit into.

    Raises:
        DownloadError: nothing or more than one model has that name; the message lists them.
    """
    if reference.file is not None:
        return Choice(_complete(_by_file(models, reference)))
    if not models:
        raise DownloadError(
            f"{reference.repo_id} has no GGUF model in it; look for a repository with GGUF files of this model"
        )
    if reference.tag is not None:
        return _by_type(models, reference, reference.tag)
    return _by_default(models, reference, memory)


def _by_file(models: Sequence[Candidate], reference: HubReference) -> Candidate:
    assert reference.file is not None
    for model in models:
        if any(file.path == reference.file for file in model.files) or reference.file in model.missing:
            return model
    if what := companion(reference.file):
        raise DownloadError(f"{shown(reference.file)} is {what}, not a model; {_have(models, reference)}")
    raise DownloadError(
        f"{reference.repo_id} has no file {shown(reference.file)}; {_have(models, reference)}"
    )


def _by_type(models: Sequence[Candidate], reference: HubReference, tag: str) -> Choice:
    wanted = tag.upper()
    same = [model for model in models if model.type == wanted]
    if len(same) == 1:
        return Choice(_complete(same[0]))
    # Q4 for Q4_K_M, or Q4_K_XL for UD-Q4_K_XL
    parts = [m for m in models if f"_{wanted}_" in f"_{m.type.removeprefix('UD-')}_"]
    near = same or [m for m in parts if m.type.removeprefix("UD-").startswith(wanted)] or parts
    if len(near) == 1:
        return Choice(_complete(near[0]), f"{near[0].type} is what {reference.repo_id} has of {tag}")
    if near:
        raise DownloadError(f"{reference} fits several files: {_names(near, reference)}; name one of them")
    raise DownloadError(f"{reference.repo_id} has no file of the type {tag}; {_have(models, reference)}")


def _by_default(models: Sequence[Candidate], reference: HubReference, memory: int | None) -> Choice:
    """Q4_K_M, else the nearest type that runs and fits."""
    able = [model for model in models if model.runs and not model.missing]
    if not able:
        _complete(models[0])
        raise DownloadError(
            f"the types of {reference.repo_id} ({_names(models, reference)}) are ones that ggml has removed and "
            "llmgen does not read; look for a newer repository of this model"
        )
    most = None if memory is None else memory - memory // _ROOM
    fitting = [model for model in able if most is None or (model.size or 0) <= most]
    if not fitting:
        least = min(able, key=lambda model: model.size or 0)
        raise DownloadError(
            f"no file of {reference.repo_id} fits into {_free(memory)}: the "
            f"smallest, {_name(least, reference)}, has {_gigabytes(least.size)}; name it if you want it nevertheless"
        )
    best = min(fitting, key=_distance)
    equal = [model for model in fitting if model.type == best.type]
    if len(equal) > 1:
        raise DownloadError(
            f"{reference.repo_id} has several models: {_names(equal, reference)}; name one of them"
        )
    if best.type == DEFAULT_TYPE or len(models) == 1:
        return Choice(best)
    if any(model.type == DEFAULT_TYPE for model in able):
        why = f"{DEFAULT_TYPE} does not fit into {_free(memory)}"
    else:
        why = f"{reference.repo_id} has no {DEFAULT_TYPE}"
    return Choice(best, f"{why}; {best.type or best.path} is the nearest")


def _distance(model: Candidate) -> tuple[float, bool, int]:
    """How far a type is from Q4_K_M: a bit too few counts over four times as much as a bit too many."""
    if model.type == DEFAULT_TYPE:
        return 0, False, 0
    bits = bits_of(model.type)
    far = 100.0 if bits is None else bits - 4 if bits >= 4 else 4.5 * (4 - bits)
    return far, not model.type.endswith("_K_M"), -(model.size or 0)


def bits_of(label: str) -> int | None:
    """The bits of a weight that a type's name tells, such as 4 for ``IQ4_XS``."""
    plain = label.removeprefix("UD-")
    digits = plain.lstrip("ITQ").partition("_")[0]
    if digits.isdecimal():
        return int(digits)
    if plain == "F32":
        return 32
    return _BITS.get(plain[:1])


def _complete(model: Candidate) -> Candidate:
    if model.missing:
        raise DownloadError(
            f"{shown(model.path)} is one of {len(model.files) + len(model.missing)} parts, of which the repository "
            f"lacks {shown(model.missing[0])}{' and others' if len(model.missing) > 1 else ''}; "
            "nothing was fetched, take another file"
        )
    return model


def _have(models: Sequence[Candidate], reference: HubReference) -> str:
    return f"it has {_names(models, reference)}" if models else "it has no GGUF model"


def _names(models: Sequence[Candidate], reference: HubReference) -> str:
    """The models as what may be typed, or as what distinguishes them."""
    types = [model.type for model in models]
    plain = all(types) and len(set(types)) == len(types)
    shown_names = [model.type if plain else shown(model.path, quote=False) for model in models[:_MOST_SHOWN]]
    more = f" and {len(models) - _MOST_SHOWN} more" if len(models) > _MOST_SHOWN else ""
    return ", ".join(shown_names) + more


def _name(model: Candidate, reference: HubReference) -> str:
    return f"hf.co/{reference.repo_id}/{shown(model.path, quote=False)}"


def _free(memory: int | None) -> str:
    return f"the {_gigabytes(memory)} of memory that are free, less a tenth for the KV cache"


def _gigabytes(n_bytes: int | None) -> str:
    return f"{(n_bytes or 0) / 1e9:.1f} GB"
