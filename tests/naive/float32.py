"""A model file with every weight dequantized: what a forward pass in float32 is measured on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf.quants import dequantize

from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf_writing import write_out


def float32_copy(source: Path, target: Path) -> Path:
    """Write ``source`` to ``target`` with all tensors in F32, its metadata as it is."""
    reader = GGUFReader(source)
    writer = GGUFWriter(str(target), reader.fields["general.architecture"].contents())
    for name, entry in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            element = entry.types[-1] if entry.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, entry.contents(), entry.types[0], sub_type=element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    write_out(writer)
    return target
