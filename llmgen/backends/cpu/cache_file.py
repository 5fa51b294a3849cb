"""A sequence's KV cache in a file, so that a long prompt is computed once.

The format, all numbers little-endian:

    8 bytes   b"LLMGENKV"
    uint32    version of the format (VERSION)
    uint32    bytes of the header
    header    JSON: model (fingerprint), kv_type, n_ctx, rotations (Binding.rotations), rope_scaling (what
              they follow from, in words; may be missing), local_window
              (DecodePlan.local_window; 0 where it is not there), n_tokens,
              n_prompt (leading tokens that were computed as prompt), reached (Sequence.written),
              key_block, and layers: for each state its signature; for keys and values that is
              [kv heads, bytes of a head's keys per block, of its values, blocks kept]; and
              checkpoints: their lengths, ascending
    int32 [n_tokens]   token ids
    states    what ``Sequence.filled`` gives: for keys and values, the filled key blocks of the
              layer's heads, then the filled value blocks
    copies    of each checkpoint what ``Sequence.checkpointed`` gave
    32 bytes  SHA-256 of everything before

The checksum detects damage, not malice: a file made by someone else can make the model
say anything, as a changed model file could.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from llmgen.backends.cpu.kernels.layout import KEY_BLOCK
from llmgen.backends.cpu.sequence import Sequence as Cache
from llmgen.backends.cpu.states import StateLayout
from llmgen.errors import LLMGenError, shown
from llmgen.files import replacing

MAGIC = b"LLMGENKV"
VERSION = 3
_START = struct.Struct("<8sII")
_MOST_HEADER_BYTES = 1 << 20
_DIGEST_BYTES = 32
_CHECKPOINTS = 2
"""How many are written: usually those before the last prompt and before its last token."""


@dataclass(frozen=True)
class Owner:
    """What the states were computed by.

    A model; how it rotates positions, which may depend on the context; and of how many keys generated tokens
    saw the last only (``DecodePlan.local_window``).  rope_scaling: what the rotations follow from, for messages.
    """

    fingerprint: str
    rotations: str
    rope_scaling: str
    local_window: int = 0


@dataclass(frozen=True)
class Stored:
    """What a file has besides the states: the token ids, and how many of them were computed as prompt."""

    tokens: list[int]
    n_prompt: int


def save(path: Path, owner: Owner, seq: Cache, tokens: Sequence[int], n_prompt: int) -> None:
    """Write a sequence, whose tokens are ``tokens``, to ``path``: the whole file or nothing.

    n_prompt: leading tokens that were computed as prompt.  Raises LLMGenError if it cannot be written.
    """
    if len(tokens) != seq.length:
        raise ValueError(f"{len(tokens)} token ids for a cache of {seq.length}")
    checkpoints = seq.checkpoints.latest(_CHECKPOINTS)
    header = json.dumps(
        {
            "model": owner.fingerprint,
            "kv_type": seq.layout.kv_type,
            "n_ctx": seq.n_ctx,
            "rotations": owner.rotations,
            "rope_scaling": owner.rope_scaling,
            "local_window": owner.local_window,
            "n_tokens": seq.length,
            "n_prompt": n_prompt,
            "reached": seq.written,
            "key_block": KEY_BLOCK,
            "layers": [state.signature() for state in seq.layout.states],
            "checkpoints": list(checkpoints),
        }
    ).encode()
    with _replacing(path) as file:
        digest = hashlib.sha256()
        parts: list[bytes | memoryview] = [_START.pack(MAGIC, VERSION, len(header)), header]
        parts.append(np.asarray(tokens, dtype="<i4").tobytes())
        parts.extend(part.data for part in seq.filled())
        parts.extend(copy for copies in checkpoints.values() for copy in copies)
        for part in parts:
            digest.update(part)
            file.write(part)
        file.write(digest.digest())


def load(path: Path, owner: Owner, vocab_size: int, seq: Cache) -> Stored:
    """Fill an empty sequence of the owner's from a file.

    Raises LLMGenError and leaves the sequence empty if the file has another format or
    version, is damaged, or belongs to another model, KV type or rotation.
    """
    if reason := _no_file(path):  # opening a pipe would wait for its writer
        raise LLMGenError(f"cannot read the prompt cache {path}: {reason}; give a file")
    try:
        with open(path, "rb") as file:
            return _load(path, file, owner, vocab_size, seq)
    except BaseException as error:
        seq.clear()
        if isinstance(error, OSError):
            raise LLMGenError(f"cannot read the prompt cache {path}: {error.strerror or error}") from error
        raise


def _load(path: Path, file: BinaryIO, owner: Owner, vocab_size: int, seq: Cache) -> Stored:
    digest = hashlib.sha256()
    header = _read_header(path, file, digest)
    _check(path, header, owner, seq.layout)
    n_tokens, reached = header["n_tokens"], header["reached"]
    seq.restore(n_tokens, reached)
    filled, copied = list(seq.filled()), [len(part) for part in seq.checkpointed()]
    n_bytes = sum(len(part) for part in filled) + len(header["checkpoints"]) * sum(copied)
    expected = file.tell() + 4 * n_tokens + n_bytes + _DIGEST_BYTES
    found = os.fstat(file.fileno()).st_size
    if found != expected:
        raise _damaged(path, f"it has {found} bytes, expected {expected}")
    ids = _read(path, file, 4 * n_tokens, digest)
    for part in filled:
        if file.readinto(part.data) != len(part):  # type: ignore[attr-defined]
            raise _damaged(path, "it ends early")
        digest.update(part.data)
    for length in header["checkpoints"]:
        seq.checkpoints.add(length, [_read(path, file, n, digest) for n in copied])
    if file.read(_DIGEST_BYTES) != digest.digest():
        raise _damaged(path, "its checksum is wrong")
    tokens = np.frombuffer(ids, dtype="<i4").tolist()
    if any(not 0 <= token < vocab_size for token in tokens):
        raise _damaged(path, "it has a token id that is not in the vocabulary")
    return Stored(tokens, header["n_prompt"])


def _read(path: Path, file: BinaryIO, n: int, digest: Any) -> bytes:
    data = file.read(n)
    if len(data) != n:
        raise _damaged(path, "it ends early")
    digest.update(data)
    return data


def _read_header(path: Path, file: BinaryIO, digest: Any) -> dict[str, Any]:
    start = file.read(_START.size)
    if not start.startswith(MAGIC) and not MAGIC.startswith(start):
        raise LLMGenError(f"{path} is not a prompt cache of llmgen; give another name")
    if len(start) < _START.size:
        raise _damaged(path, "it ends early")
    digest.update(start)
    _, version, n_bytes = _START.unpack(start)
    if version != VERSION:
        raise _refused(path, f"its format has version {version}, and this llmgen reads version {VERSION}")
    if n_bytes > _MOST_HEADER_BYTES:
        raise _damaged(path, f"its header claims {n_bytes} bytes")
    try:
        header = json.loads(_read(path, file, n_bytes, digest))
        numbers = [header[key] for key in ("n_ctx", "n_tokens", "n_prompt", "reached", "key_block")]
        texts = [header[key] for key in ("model", "kv_type", "rotations")]
        numbers += header["checkpoints"]
        known = isinstance(header["layers"], list)
    except (ValueError, KeyError, TypeError, RecursionError):
        known, numbers, texts = False, [], []
    if not known or any(type(n) is not int for n in numbers) or any(type(t) is not str for t in texts):
        raise _damaged(path, "its header cannot be read")
    return dict(header)


def _local(window: object) -> str:
    return f"the last {shown(window)} keys and the first few" if window else "all keys"


def _rotated_otherwise(header: dict[str, Any], owner: Owner, n_ctx: int) -> str:
    """In which way the keys of a file were rotated otherwise than those of this run."""
    scaling, its_ctx = header.get("rope_scaling", owner.rope_scaling), header["n_ctx"]
    if scaling != owner.rope_scaling:
        return (
            f"its keys were rotated with the scaling {shown(scaling, quote=False)}, and those of this run are with "
            f"{owner.rope_scaling} (--rope-scaling)"
        )
    if its_ctx != n_ctx:
        return (
            f"its keys were rotated for a context of {shown(its_ctx)} tokens, and this run rotates them otherwise, "
            f"for one of {n_ctx} (-c)"
        )
    return "its keys were rotated by other angles than those of this run, as by another version of llmgen"


def _check(path: Path, header: dict[str, Any], owner: Owner, layout: StateLayout) -> None:
    """Refuse a file that does not fit this model and the options it was opened with."""
    if header["model"] != owner.fingerprint:
        raise _refused(path, "it was made with another model")
    if header["kv_type"] != layout.kv_type:
        raise _refused(
            path, f"its KV type is {header['kv_type'][:20]}, and this run's {layout.kv_type} (--kv-type)"
        )
    if header["rotations"] != owner.rotations:
        raise _refused(path, _rotated_otherwise(header, owner, layout.n_ctx))
    local = header.get("local_window", 0)
    if local != owner.local_window:
        raise _refused(
            path,
            f"its generated tokens saw {_local(local)}, and those of this run see {_local(owner.local_window)} "
            "(--decode-local-window)",
        )
    n, reached = header["n_tokens"], header["reached"]
    if not 0 <= n <= reached <= 1 << 40 or not 0 <= header["n_prompt"] <= n:
        raise _damaged(path, "its header has impossible token counts")
    lengths = header["checkpoints"]
    if lengths != sorted(set(lengths)) or not all(0 < length <= n for length in lengths):
        raise _damaged(path, "its header has impossible checkpoints")
    if max(n, reached) > layout.n_ctx:
        raise _refused(path, f"it has {max(n, reached)} tokens, and the context holds {layout.n_ctx} (-c)")
    same = header["key_block"] == KEY_BLOCK and len(header["layers"]) == len(layout.states)
    for its, state in zip(header["layers"], layout.states, strict=False):
        same = same and isinstance(its, list) and all(type(v) is int for v in its)
        same = same and state.accepts(its, reached)
    if not same:
        raise _refused(path, "its layout differs from this run's, as with another context length (-c)")


def _refused(path: Path, reason: str) -> LLMGenError:
    return LLMGenError(
        f"the prompt cache {path} cannot be used: {reason}; remove the file or give another name"
    )


def _damaged(path: Path, reason: str) -> LLMGenError:
    return LLMGenError(f"the prompt cache {path} is damaged: {reason}; remove the file")


def _no_file(path: Path) -> str:
    """Why ``path`` cannot be a prompt cache; empty if it can be, or if nothing is there."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:  # a loop of links, an impossible name, a forbidden folder
        return getattr(error, "strerror", None) or str(error)
    if stat.S_ISDIR(mode):
        return "it is a folder"
    return "" if stat.S_ISREG(mode) else "it is a pipe or a device"


def is_there(path: Path) -> bool:
    """Whether there is a file to load; an empty one, as mktemp makes, does not count."""
    return not _no_file(path) and os.path.exists(path) and os.path.getsize(path) > 0


def check_target(path: Path) -> None:
    """Refuse a path that cannot be written, before a long prompt is computed for it.

    Raises LLMGenError for a folder, a device or a pipe, and for a folder that cannot be written.
    """
    reason = _no_file(path)  # a device would be replaced by a file
    if not reason:
        folder = path.resolve().parent  # links stay; the file they lead to is replaced
        if not folder.is_dir():
            reason = "there is no such folder"
        elif not os.access(folder, os.W_OK):
            reason = "its folder cannot be written"
    if reason:
        raise LLMGenError(f"cannot write the prompt cache {path}: {reason}; give another name")


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` when it is complete; a link stays a link."""
    check_target(path)
    try:
        with replacing(path.resolve()) as file:
            yield file
    except OSError as error:
        raise LLMGenError(f"cannot write the prompt cache {path}: {error.strerror or error}") from error
