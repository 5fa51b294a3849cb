"""A GGUF model: its metadata and its tensors, from one file or several."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from llmgen.errors import shown
from llmgen.files import path_of
from llmgen.gguf.large_pages import LargePages
from llmgen.gguf.part import Part, read_part
from llmgen.gguf.problems import problem
from llmgen.gguf.splits import check_belongs, check_is_first, check_together, other_paths
from llmgen.gguf.tensors import TensorInfo

_log = logging.getLogger(__name__)


class GGUFFile:
    """An open model file.  Use :meth:`open`; a context manager.

    ``metadata`` has numbers, truth values and strings as Python values, arrays of
    numbers as read-only numpy arrays, arrays of strings as
    :class:`~llmgen.gguf.strings.StringArray` and arrays of arrays as lists.  It is
    that of the first part, and stays valid after :meth:`close`.  ``tensors`` is in
    file order, part by part.
    """

    def __init__(self, parts: list[Part]) -> None:
        """Join the parts of one model, the first part first."""
        self._files = [part.file for part in parts]
        self._entries = parts[0].entries
        self.path: Path = parts[0].file.path
        self.paths: list[Path] = [file.path for file in self._files]
        self.version: int = parts[0].version
        self.file_size: int = sum(file.size for file in self._files)
        self.metadata: Mapping[str, Any] = MappingProxyType({k: e.value for k, e in self._entries.items()})
        self.tensors: dict[str, TensorInfo] = {t.name: t for part in parts for t in part.tensors}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Open the model at ``path``; of a split model, its first part.

        ``~`` is not expanded.  Everything that the file says about itself is checked
        against its size.  Raises ModelFileError.
        """
        if path == "":
            raise problem("''", "the path is empty, expected a .gguf file", "name the model's file")
        parts = [read_part(path_of(path, "the model"))]
        try:
            check_is_first(parts[0])
            paths = other_paths(parts[0])
            for index, other in enumerate(paths, 1):
                parts.append(read_part(other))
                check_belongs(parts[-1], index, len(paths) + 1)
            check_together(parts)
            model = cls(parts)
            _log.debug(
                "opened %s: %d bytes in %d part(s), %d tensors",
                model.path,
                model.file_size,
                len(parts),
                len(model.tensors),
            )
            return model
        except BaseException:
            for part in parts:
                part.file.close()
            raise

    @property
    def architecture(self) -> str | None:
        """``general.architecture``, or None."""
        return self.metadata.get("general.architecture")

    def metadata_type(self, key: str) -> str:
        """The type of a metadata value as the file has it: ``UINT32``, ``ARRAY[STRING]`` ...

        Raises KeyError for a key that is not there.
        """
        return self._entries[key].type_name

    def pair(self, key: str) -> bytes:
        """A key and its value as they stand in the file.  Raises KeyError for a key that is not there."""
        entry = self._entries[key]
        return bytes(self._files[0].bytes[entry.start : entry.stop])

    def check_whole(self) -> None:
        """Raise ModelFileError if a file was cut short since it was opened."""
        for file in self._files:
            if file.is_cut_short():
                found = f"the file was cut short while it was in use, expected the {file.size:,} bytes it had"
                raise problem(file.path, found, "restore it, and load the model again")

    def check_unchanged(self) -> None:
        """Raise ModelFileError if a file was written to since it was opened, which changes its tensors."""
        self.check_whole()  # cutting is writing, too, and the clearer word for it
        for file in self._files:
            file.check_unchanged()

    @cached_property
    def large_pages(self) -> LargePages:
        """What can be moved into memory in large pages, without a change of any address."""
        return LargePages(self._files)

    def close(self) -> None:
        """Close the mapping.  Tensors and their addresses must not be used afterwards.

        Arrays taken from ``TensorInfo.data`` before keep the mapping alive and stay valid;
        metadata always stays valid.  Closing twice is allowed.
        """
        for file in self._files:
            file.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUFFile {str(self.path)!r}: {shown(self.architecture, quote=False)}, {len(self.tensors)} tensors>"


def check_model(path: Path) -> None:
    """Raise ModelFileError for a file that is no whole GGUF model."""
    GGUFFile.open(path).close()
