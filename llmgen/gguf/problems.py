"""The wording of errors about a file.

Every message is one sentence: the path, what was found, what was expected, what
to do.  Names from the file or the user are cut and escaped by ``errors.shown``.
"""

from __future__ import annotations

import os
from typing import Final

from llmgen.errors import ModelFileError
from llmgen.visible import visible

DOWNLOAD_AGAIN: Final = "the file is damaged, download it again"
CUT_SHORT: Final = "the file is cut short, download it again"
CONVERT_AGAIN: Final = "convert the model again with a current converter"


def show_path(path: str | os.PathLike[str]) -> str:
    """A path for a message; odd characters are escaped."""
    return visible(os.fspath(path))


def problem(path: str | os.PathLike[str], found: str, what_to_do: str) -> ModelFileError:
    """The error for the file at ``path``: ``found`` says what is there and what was expected."""
    return ModelFileError(f"{show_path(path)}: {found}; {what_to_do}")
