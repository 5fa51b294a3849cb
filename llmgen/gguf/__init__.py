"""The model file: a bounds-checked GGUF reader over a memory map.

Of the tensor types it knows only ids and sizes; what the bytes mean, ``dequantize`` tells for the few
that Python reads.  Raises :class:`llmgen.errors.ModelFileError`.

file.py         a model, from one file or several
part.py         the head of one file, read by cursor.py: metadata.py, then the table of tensors, tensors.py
mapping.py      the file as memory; large_pages.py: moving it into large pages while it is in use
types.py        the tensor types: ids and block sizes
dequantize.py   blocks as float32
"""

from __future__ import annotations

from llmgen.gguf.file import GGUFFile, check_model
from llmgen.gguf.strings import StringArray
from llmgen.gguf.tensors import TensorInfo
from llmgen.gguf.types import GGMLType

__all__ = ["GGMLType", "GGUFFile", "StringArray", "TensorInfo", "check_model"]
