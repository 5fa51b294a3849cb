"""The file: a bounds-checked GGUF reader over a memory map.

Knows ids and sizes of tensor types only; what the numbers mean comes later in the
tree.  Raises :class:`llmgen.errors.ModelFileError`.
"""

from __future__ import annotations

from llmgen.gguf.file import GGUFFile
from llmgen.gguf.strings import StringArray
from llmgen.gguf.tensors import TensorInfo
from llmgen.gguf.types import GGMLType

__all__ = ["GGMLType", "GGUFFile", "StringArray", "TensorInfo"]
