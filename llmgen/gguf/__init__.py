"""The model file: a bounds-checked GGUF reader over a memory map.

Of the tensor types it knows only ids and sizes; what the bytes mean, ``dequantize`` tells for the few
that Python reads.  Raises :class:`llmgen.errors.ModelFileError`.
"""

from __future__ import annotations

from llmgen.gguf.file import GGUFFile, check_model
from llmgen.gguf.strings import StringArray
from llmgen.gguf.tensors import TensorInfo
from llmgen.gguf.types import GGMLType

__all__ = ["GGMLType", "GGUFFile", "StringArray", "TensorInfo", "check_model"]
