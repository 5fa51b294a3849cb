"""GGUF files that the gguf package writes."""

from __future__ import annotations

import gguf


def write_out(writer: gguf.GGUFWriter) -> None:
    """Write everything that the writer was given, and close its file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
