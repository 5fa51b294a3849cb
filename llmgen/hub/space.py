"""The disk that models are fetched onto: is there room, and what its errors mean."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgen.errors import DownloadError

_MB = 1_000_000


def check_space(need: int, folder: Path, what: str, elsewhere: str = "LLMGEN_MODELS") -> None:
    """Raise DownloadError where the folder's disk has not ``need`` bytes free.

    ``elsewhere``: the variable that moves the folder.
    """
    free = shutil.disk_usage(folder).free
    if free < need:
        raise DownloadError(
            f"fetching {what} needs {-(-need // _MB)} MB in {folder}, which has {free // _MB} MB free; "
            f"free some space, or set {elsewhere} to a folder on another disk"
        )


@contextmanager
def disk_errors(what: str, folder: Path, elsewhere: str = "LLMGEN_MODELS") -> Iterator[None]:
    """Turn errors of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DownloadError(
            f"cannot write {what} into {folder}: {error.strerror or error}; "
            + ("free some space, or " if full else "")
            + f"set {elsewhere} to a folder that can be written"
        ) from None
