"""The models among the files of a folder or a repository, and which of them a name means.

Files are told apart by their names, which is all there is before they are fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from llmgen.hub.references import safe_path
from llmgen.hub.splits import split_of

DEFAULT_TYPE = "Q4_K_M"
"""What is taken where a name says no type."""
_TYPE = re.compile(
    r"(?:^|[-._/])(?P<type>(?:UD-)?I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|FP?16|FP?32|(?:MX|NV)FP4(?:_[A-Z0-9]+)*)(?=$|[-._])",
    re.IGNORECASE,
)
_SPELLED = {"FP16": "F16", "FP32": "F32"}
# types that ggml has removed (REMOVED_TYPES of gguf/types.py)
_REPACKED = re.compile(r"(?:UD-)?I?Q4_(?:0|NL)_[48]_[48]$|Q4_[23]\Z")
_COMPANIONS = {
    "mmproj": "the part that reads images or sound (mmproj)",
    "imatrix": "an importance matrix, which quantizers read",
    "lora": "a LoRA adapter",
    "adapter": "an adapter",
    "ggml-vocab": "a vocabulary",
}
_COMPANION = re.compile(rf"(?:^|[-._ ])({'|'.join(_COMPANIONS)})(?:$|[-._ \d])", re.IGNORECASE)


@dataclass(frozen=True)
class File:
    """A file of a folder or a repository; what is not known of it is None."""

    path: str
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A model: one file, or the parts of a split one in order, of which ``missing`` are not there."""

    files: tuple[File, ...]
    missing: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The path of its first file."""
        return self.files[0].path

    @cached_property
    def type(self) -> str:
        """The quantization type that its name tells, such as ``Q4_K_M``; empty where there is none."""
        return type_in(self.path)

    @property
    def size(self) -> int | None:
        """Bytes of all its files."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if len(sizes) == len(self.files) else None

    @property
    def runs(self) -> bool:
        """Whether llmgen reads files of this type."""
        return not _REPACKED.match(self.type)


def type_in(path: str) -> str:
    """The quantization type that a path ends in; else the one that its folder is called."""
    folder, _, name = path.rpartition("/")
    stem = re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)
    split = split_of(stem)
    for text in (split.stem if split else stem, folder):
        if found := _TYPE.findall(text):
            spelled = str(found[-1]).upper()
            return _SPELLED.get(spelled, spelled)
    return ""


def companion(path: str) -> str | None:
    """What a .gguf file that is no model is for; None for a model."""
    found = _COMPANION.search(re.sub(r"\.gguf$", "", path.rpartition("/")[2], flags=re.IGNORECASE))
    return _COMPANIONS[found[1].lower()] if found else None


def candidates(files: Iterable[File]) -> list[Candidate]:
    """The models among the files, by path; names that lead out of the folder are left out."""
    known = {file.path: file for file in files if _is_gguf(file.path) and safe_path(file.path)}
    found = []
    for path in sorted(known):
        split = split_of(path)
        if companion(path):
            continue
        if split is None:
            found.append(Candidate((known[path],)))
            continue
        names = split.names()
        here = [name for name in names if name in known]
        if here[0] == path:  # the first that is there stands for all
            missing = tuple(name for name in names if name not in known)
            found.append(Candidate(tuple(known[name] for name in here), missing))
    return found


def _is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")
