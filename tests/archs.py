"""Tiny random models of every architecture that the engine runs, built once per test run."""

from __future__ import annotations

import atexit
import copy
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from arch_files import build_file
from llmgen.model.archs import find, names
from llmgen.model.decoder import Decoder
from shared import DATA, shared, shared_folder


@cache
def _stored() -> dict[str, Any]:
    specs: dict[str, Any] = json.loads((DATA / "archs.json").read_text(encoding="utf-8"))
    return specs


def _has_spec(name: str) -> bool:
    return name in _stored() or (shared_folder() / f"archs/specs/{name}.json").exists()


def _specs_of(arch: str) -> list[str]:
    """The specs of an architecture that llmgen runs, as far as they are at hand."""
    cls = find(arch)
    kinds = ("dense", "moe") if cls and cls.mixture else ("dense",)
    return [name for name in (f"{arch}-{kind}" for kind in kinds) if _has_spec(name)]


def _class_of(spec: str) -> type[Decoder]:
    cls = find(read_spec(spec)["arch"])
    assert cls is not None
    return cls


def read_spec(name: str) -> dict[str, Any]:
    """A fresh copy of the spec of ``name``: arch, metadata [(key, type, value)], tensors [(name, shape)]."""
    if name in _stored():
        return copy.deepcopy(_stored()[name])
    return json.loads(shared(f"archs/specs/{name}.json").read_text(encoding="utf-8"))


SPECS = tuple(name for arch in names() for name in _specs_of(arch))
"""The specs of all architectures that llmgen runs, as far as they are at hand."""
UNORDERED = tuple(name for name in SPECS if not _class_of(name).causal)
"""Those without causal order, whose texts are computed in one run."""
KINDS = ("layers", "yarn", "scale", "experts", "norm")
"""How a spec may be changed, see ``variant``."""
CHANGED = tuple(
    (name, kind)
    for name in SPECS
    for kind in KINDS
    if (shared_folder() / f"archs/refs/{name}+{kind}.npz").exists()
)
"""Specs and changes for which llama.cpp's logits are at hand."""


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="llmgen-archs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def build_arch(name: str, type: str = "f32") -> Path:
    """The GGUF file of the spec ``name`` with its matrices in ``type`` (f32, f16, q8_0 ...)."""
    return _build(read_spec(name), f"{name}-{type}", type)


def changed(name: str, kind: str) -> dict[str, Any]:
    """The spec ``name`` changed: six layers, rotations scaled by YaRN, scaled logits, or more experts.

    "experts": three of eight; "norm": their weights normalized and scaled besides.
    """
    spec = read_spec(name)
    prefix = spec["arch"]
    if kind == "layers":
        new: dict[str, tuple[str, Any]] = {"block_count": ("UINT32", 6)}
        first = [(tensor[6:], shape) for tensor, shape in spec["tensors"] if tensor.startswith("blk.0.")]
        spec["tensors"] += [(f"blk.{i}.{rest}", shape) for i in range(2, 6) for rest, shape in first]
        for entry in spec["metadata"]:
            if entry[0].startswith(f"{prefix}.") and isinstance(entry[2], list) and len(entry[2]) == 2:
                entry[2] = entry[2] * 3
    elif kind == "yarn":
        new = {
            "rope.scaling.type": ("STRING", "yarn"),
            "rope.scaling.factor": ("FLOAT32", 4.0),
            "rope.scaling.original_context_length": ("UINT32", 64),
        }
    elif kind in ("experts", "norm"):
        new = {"expert_count": ("UINT32", 8), "expert_used_count": ("UINT32", 3)}
        if kind == "norm":
            new |= {"expert_weights_norm": ("BOOL", True), "expert_weights_scale": ("FLOAT32", 2.5)}
        for tensor, shape in spec["tensors"]:
            if any(part in tensor for part in ("_exps.", ".ffn_gate_inp.", "exp_probs_b")) and shape[-1] == 2:
                shape[-1] = 8
    else:
        new = {"logit_scale": ("FLOAT32", 0.25)}
    dropped = {f"{prefix}.{key}" for key in new}
    spec["metadata"] = [entry for entry in spec["metadata"] if entry[0] not in dropped]
    spec["metadata"] += [[f"{prefix}.{key}", *kind_value] for key, kind_value in new.items()]
    return spec


@cache
def build_changed(name: str, kind: str, type: str = "f32") -> Path:
    """The GGUF file of ``changed`` with its matrices in ``type``."""
    return _build(changed(name, kind), f"{name}+{kind}-{type}", type)


@contextmanager
def changed_file(name: str, kind: str) -> Iterator[Path]:
    """The GGUF file of ``changed`` as long as the block lasts: all of them together would take gigabytes."""
    path = _build(changed(name, kind), f"{name}+{kind}-once", "f32")
    try:
        yield path
    finally:
        path.unlink()


def build_variant(
    name: str,
    label: str,
    *,
    set_keys: dict[str, tuple[Any, Any]] | None = None,
    drop_keys: tuple[str, ...] = (),
    drop_tensors: tuple[str, ...] = (),
    reshape: dict[str, list[int]] | None = None,
    type: str = "f32",
) -> Path:
    """The same model with other metadata or tensors; ``label`` names the file.

    Keys are relative to the architecture ("rope.scaling.type"); set_keys maps them to
    (type, value). drop_tensors takes names, in every block or outside ("ffn_norm.weight").
    reshape maps tensor names to new or changed shapes in GGUF order.
    """
    path = _folder() / f"{name}-{label}-{type}.gguf"
    if path.exists():
        return path
    spec = read_spec(name)
    endings = tuple(f".{name}" for name in drop_tensors)
    prefix, changed = spec["arch"], {**(set_keys or {}), **dict.fromkeys(drop_keys)}
    dropped = {f"{prefix}.{key}" for key in changed}
    spec["metadata"] = [entry for entry in spec["metadata"] if entry[0] not in dropped]
    spec["metadata"] += [[f"{prefix}.{key}", *kind_value] for key, kind_value in (set_keys or {}).items()]
    shapes = {n: shape for n, shape in spec["tensors"] if not f".{n}".endswith(endings)}
    spec["tensors"] = list({**shapes, **(reshape or {})}.items())
    return _build(spec, f"{name}-{label}-{type}", type)


def _build(spec: dict[str, Any], stem: str, type: str) -> Path:
    path = _folder() / f"{stem}.gguf"
    build_file(spec, path, type)
    return path


@cache
def reference(name: str) -> tuple[np.ndarray, np.ndarray]:
    """llama.cpp's results for the f32 file of ``name``: tokens int32 [n], logits float32 [n, vocab]."""
    if name not in _stored():
        with np.load(shared(f"archs/refs/{name}.npz")) as stored:
            return stored["tokens"], stored["logits"]
    with np.load(DATA / "archs.npz") as stored:
        return stored["tokens"], stored[name]
