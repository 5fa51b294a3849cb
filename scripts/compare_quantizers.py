"""`llmgen quantize` beside llama.cpp's: types of tensors, errors, perplexity.

    python scripts/compare_quantizers.py MODEL.gguf [TYPE ...] [--text FILE] [--chunks N] [--llama-python PATH]

For each type both make a file from MODEL.  The table has, for each of them, the size, the error of the
weights against MODEL (root mean square, relative), and with --text the perplexity, both computed by
llmgen.  Tensors that have different types in the two files are listed below it.  Ends with 1 if a
tensor's type differs, or an error of ours is larger.

llama.cpp comes from llama-cpp-python (``pip install 'llmgen[compare]'``), which may live
in another environment: ``--llama-python PATH``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from llmgen import LLM
from llmgen.engine.perplexity import measure, windows
from llmgen.gguf import GGUFFile, TensorInfo
from llmgen.gguf.dequantize import dequantize
from llmgen.quantize import MIXES, mix_named, quantize

_THEIRS = """
import ctypes, sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.allow_requantize = int(sys.argv[3]), True
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params)))
"""
_ROWS = 1 << 20  # values of a tensor that are compared at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("types", nargs="*", default=list(MIXES))
    parser.add_argument("--text", type=Path)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--llama-python", default=sys.executable)
    options = parser.parse_args()
    table = Table("type", "size", "error", "llama.cpp", "perplexity", "llama.cpp")
    text = options.text.read_text() if options.text else None
    failed = []
    with tempfile.TemporaryDirectory() as folder, GGUFFile.open(options.model) as source:
        for mix in map(mix_named, options.types):
            files = {"ours": Path(folder) / "ours.gguf", "theirs": Path(folder) / "theirs.gguf"}
            quantize(source, mix, files["ours"], overwrite=True)
            command = [
                options.llama_python,
                "-c",
                _THEIRS,
                options.model,
                files["theirs"],
                str(mix.file_type),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{mix.name}: llama.cpp made no file ({done.stderr.strip()[-200:]})")
                continue
            with GGUFFile.open(files["ours"]) as ours, GGUFFile.open(files["theirs"]) as theirs:
                failed += list(_other_types(mix.name, ours, theirs))
                errors = [_error(source, made) for made in (ours, theirs)]
            if errors[0] > errors[1] * (1 + 1e-9):
                failed.append(f"{mix.name}: error {errors[0]:.6f}, llama.cpp {errors[1]:.6f}")
            scores = [_score(path, text, options.chunks) if text else "" for path in files.values()]
            size = f"{files['ours'].stat().st_size / 1e6:.1f} MB"
            table.add_row(mix.name, size, *(f"{100 * e:.3f}%" for e in errors), *scores)
            print(mix.name, *(f"{100 * e:.3f}%" for e in errors), *scores, flush=True)
    Console().print(table)
    print(*failed, sep="\n")
    raise SystemExit(bool(failed))


def _other_types(name: str, ours: GGUFFile, theirs: GGUFFile) -> Iterator[str]:
    for tensor in theirs.tensors.values():
        mine = ours.tensors[tensor.name]
        if mine.type != tensor.type:
            yield f"{name}: {tensor.name} is {mine.type.name}, llama.cpp has {tensor.type.name}"


def _error(source: GGUFFile, made: GGUFFile) -> float:
    """The error of the tensors that changed, relative to their size (root mean square)."""
    error = size = 0.0
    for tensor in source.tensors.values():
        other = made.tensors[tensor.name]
        if other.type != tensor.type:
            for before, after in zip(_values(tensor), _values(other), strict=True):
                error += float(np.square(after - before, dtype=np.float64).sum())
                size += float(np.square(before, dtype=np.float64).sum())
    return (error / size) ** 0.5 if size else 0.0


def _values(tensor: TensorInfo) -> Iterator[np.ndarray]:
    n_rows = max(1, _ROWS // tensor.shape[0])
    rows = tensor.data.reshape(-1, tensor.row_bytes)
    return (dequantize(rows[i : i + n_rows], tensor.type) for i in range(0, len(rows), n_rows))


def _score(path: Path, text: str, chunks: int) -> str:
    with LLM(path, n_ctx=512) as llm:
        ids = llm.tokenize(text)
        bos = llm.tokenizer.bos_id if llm.tokenizer.add_bos else None
        for found in measure(llm.model, ids, windows(len(ids), 512, None)[:chunks], bos):
            figures = found
    return f"{figures.perplexity:.4f}"


if __name__ == "__main__":
    main()
