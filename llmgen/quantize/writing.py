"""The new file, written tensor by tensor, whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from llmgen.backends.cpu.runtime.library import Progress
from llmgen.backends.cpu.runtime.threads import default_threads
from llmgen.backends.cpu.sizes import check_sizes
from llmgen.errors import LLMGenError, UsageError, shown
from llmgen.files import path_of, replacing
from llmgen.gguf import GGUFFile
from llmgen.gguf.head import NewTensor, head, padding, u32_pair
from llmgen.quantize.mixes import Mix, mix_named
from llmgen.quantize.plan import Plan, TensorPlan, plan
from llmgen.quantize.tensors import Converter, Done, Loss

_SPLIT = ("split.no", "split.count", "split.tensors.count")
_DEFAULT_ALIGNMENT = 32
_FILE_MODE = 0o666
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION in ggml/include/ggml.h


@dataclass
class Written:
    """What was written, and what it cost each tensor that changed."""

    path: Path
    plan: Plan
    nbytes: int = 0
    losses: dict[str, Loss] = field(default_factory=dict)

    def count(self, planned: TensorPlan, loss: Loss) -> None:
        """Take in what a tensor has lost; all of it is in the new file."""
        self.losses[planned.tensor.name] = loss

    @property
    def error(self) -> float:
        """The error of all tensors that changed, relative to their size (root mean square)."""
        return sum(self.losses.values(), Loss()).relative

    @property
    def errors(self) -> dict[str, float]:
        """The error of each tensor."""
        return {name: loss.relative for name, loss in self.losses.items()}

    @property
    def lost(self) -> dict[str, float]:
        """The shares of weights that are too small for their new type: they are zero now, or no better."""
        n_elements = {t.tensor.name: t.tensor.n_elements for t in self.plan}
        return {name: loss.n_lost / n_elements[name] for name, loss in self.losses.items() if loss.n_lost}


def quantize(
    file: GGUFFile,
    mix: Mix | str,
    out: str | os.PathLike[str],
    *,
    n_threads: int | None = None,
    overwrite: bool = False,
    done: Done | None = None,
    compiling: Progress | None = None,
) -> Written:
    """Write ``file`` in the types of ``mix`` (or of its name) to ``out``; after any error nothing has changed there.

    Never writes over the file itself, by whatever name.  Raises LLMGenError: UsageError where ``out``
    exists (unless ``overwrite``) or is the model, UnsupportedModelError for tensors that cannot be
    converted, ModelFileError when the model is written to meanwhile.
    """
    check_sizes(None, n_threads)
    out = path_of(out, "the new file")
    check_target(file, out, overwrite)
    planned = plan(file, mix_named(mix) if isinstance(mix, str) else mix)
    front = _head(file, planned)
    alignment = _alignment(file)
    _check_room(out, len(front) + sum(t.nbytes + padding(t.nbytes, alignment) for t in planned))
    converter = Converter()
    converter.prepare(planned, compiling)
    written = Written(out, planned)
    with _named(out), replacing(out, _FILE_MODE) as new:
        new.write(front)
        _write_tensors(new, planned, converter, written, alignment, n_threads or default_threads(), done)
        file.check_unchanged()
        check_target(file, out, overwrite)  # another program may have written a file of that name meanwhile
        written.nbytes = new.tell()
    return written


def check_target(file: GGUFFile, out: Path, overwrite: bool) -> None:
    """Raise UsageError if ``out`` must not be written: the model under any name, or a file that is there."""
    if not _is_there(out):
        if not out.parent.is_dir():
            if out.parent.exists():
                raise UsageError(
                    f"{_path(out.parent)} is not a folder; choose another place for the new file"
                )
            raise UsageError(
                f"the folder {_path(out.parent)} does not exist; make it, or choose another place"
            )
        return
    if any(out.exists() and os.path.samefile(out, path) for path in file.paths):
        raise UsageError(f"{_path(out)} is the model itself; choose another name for the new file")
    if out.is_dir():
        raise UsageError(f"{_path(out)} is a folder, expected the name of the new file")
    if out.exists() and not out.is_file():
        raise UsageError(f"{_path(out)} is a pipe or a device, expected the name of the new file")
    if not overwrite:
        raise UsageError(f"{_path(out)} exists already; choose another name, or replace it with --force")


def _is_there(out: Path) -> bool:
    """Whether something has that name.  Raises LLMGenError for one that cannot be looked up, such as a long one."""
    with _named(out):
        try:
            out.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def _head(file: GGUFFile, planned: Plan) -> bytes:
    """The head of the new file: all metadata as they are, but those on parts and on the quantization."""
    new = {"general.quantization_version": _QUANTIZATION_VERSION, "general.file_type": planned.mix.file_type}
    pairs = [
        u32_pair(key, new.pop(key)) if key in new else file.pair(key)
        for key in file.metadata
        if key not in _SPLIT
    ]
    pairs += [u32_pair(key, value) for key, value in new.items()]
    tensors = [NewTensor(t.tensor.name, t.tensor.shape, t.type) for t in planned]
    return head(pairs, tensors, _alignment(file))


def _alignment(file: GGUFFile) -> int:
    return int(file.metadata.get("general.alignment", _DEFAULT_ALIGNMENT))


def _write_tensors(
    new: BinaryIO,
    planned: Plan,
    converter: Converter,
    written: Written,
    alignment: int,
    n_threads: int,
    done: Done | None,
) -> None:
    total, finished = sum(t.tensor.n_elements for t in planned), 0
    with ThreadPoolExecutor(n_threads) as pool:
        for tensor in planned:
            loss = Loss()
            for piece in converter.pieces(tensor, pool, n_threads):
                new.write(piece.data.data)
                loss += piece.loss
                finished += piece.n_values
                if done is not None:
                    done(finished, total)
            new.write(bytes(padding(tensor.nbytes, alignment)))
            if tensor.changes:
                written.count(tensor, loss)


def _check_room(out: Path, nbytes: int) -> None:
    free = shutil.disk_usage(out.parent).free
    if free < nbytes:
        raise LLMGenError(
            f"{_path(out)} will have {nbytes:,} bytes, and the disk has {free:,} bytes free; "
            "make room, or choose another place"
        )


@contextmanager
def _named(out: Path) -> Iterator[None]:
    """Say which file could not be written."""
    try:
        yield
    except OSError as error:
        what_to_do = "make room, or choose another place" if error.errno in _FULL else "choose another place"
        reason = error.strerror or str(error)
        raise LLMGenError(f"{_path(out)} could not be written: {reason}; {what_to_do}") from error


def _path(path: Path) -> str:
    return shown(str(path), 500, quote=False)
