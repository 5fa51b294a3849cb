"""Write the models that docs/benchmarks.md compares and nobody offers for download.

    python scripts/make_test_models.py models/smollm2.gguf models/

- smollm2-q4_0.gguf, smollm2-q8_0.gguf: SmolLM2 with its Q4_1 matrices in another type
  (dequantized and quantized again: for speed and for comparing engines, not for use);
- random-480m-q4_k.gguf: a llama-shaped model of random Q4_K weights, larger than caches,
  with SmolLM2's tokenizer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf.quants import dequantize, quantize

from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType

Q4_K_VALUES, Q4_K_BYTES = 256, 144  # of one block
# A random block as below has values of this standard deviation, in units of its d.
Q4_K_SPREAD = 223.0

RANDOM = {
    "block_count": 24,
    "context_length": 8192,
    "embedding_length": 1280,
    "feed_forward_length": 3584,
    "attention.head_count": 20,
    "attention.head_count_kv": 4,
    "rope.dimension_count": 64,
}
LOGIT_SPREAD = 3.0  # of the random model's logits: with 1, no token would ever stand out


def main() -> None:
    """Write all three; what exists is written anew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "smollm2", type=Path, help="SmolLM2 135M Instruct in Q4_1, as `llmgen pull smollm2` fetches it"
    )
    parser.add_argument("folder", type=Path, help="where the models go")
    options = parser.parse_args()
    source = GGUFReader(options.smollm2)
    for type, file_type in ((Type.Q4_0, LlamaFileType.MOSTLY_Q4_0), (Type.Q8_0, LlamaFileType.MOSTLY_Q8_0)):
        requantized(source, options.folder / f"smollm2-{type.name.lower()}.gguf", type, file_type)
    random_model(source, options.folder / "random-480m-q4_k.gguf")


def requantized(source: GGUFReader, target: Path, type: Type, file_type: LlamaFileType) -> None:
    """The same model with every Q4_1 matrix in ``type``; the embedding stays Q8_0."""
    writer = _writer(source, target, {"general.file_type": int(file_type)})
    for tensor in source.tensors:
        if tensor.tensor_type == Type.Q4_1:
            data = quantize(dequantize(tensor.data, tensor.tensor_type), type)
            writer.add_tensor(tensor.name, data, raw_dtype=type)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _finish(writer, target)


def random_model(source: GGUFReader, target: Path) -> None:
    """Random weights of standard deviation 1 / sqrt(columns), so that no layer drowns another."""
    rng = np.random.default_rng(0)
    changes: dict[str, Any] = {f"llama.{key}": value for key, value in RANDOM.items()}
    changes |= {
        "general.name": "Random 480M",
        "general.size_label": "480M",
        "general.file_type": int(LlamaFileType.MOSTLY_Q4_K_S),
    }
    writer = _writer(source, target, changes)
    n_embd, n_ff = RANDOM["embedding_length"], RANDOM["feed_forward_length"]
    n_kv = n_embd // RANDOM["attention.head_count"] * RANDOM["attention.head_count_kv"]
    n_vocab = len(source.fields["tokenizer.ggml.tokens"].data)
    matrices = {  # name: (rows, columns)
        "attn_q": (n_embd, n_embd),
        "attn_k": (n_kv, n_embd),
        "attn_v": (n_kv, n_embd),
        "attn_output": (n_embd, n_embd),
        "ffn_gate": (n_ff, n_embd),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }

    def add(name: str, rows: int, columns: int, spread: float = 1.0) -> None:
        data = random_q4_k(rng, rows, columns, spread / columns**0.5)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=Type.Q4_K)

    ones = np.ones(n_embd, np.float32)
    add("token_embd", n_vocab, n_embd, LOGIT_SPREAD)  # it is the output matrix, too
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(RANDOM["block_count"]):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", ones)
        for name, (rows, columns) in matrices.items():
            add(f"blk.{layer}.{name}", rows, columns)
    _finish(writer, target)


def random_q4_k(rng: np.random.Generator, rows: int, columns: int, spread: float) -> np.ndarray:
    """Random Q4_K blocks whose values have mean 0 and standard deviation ``spread``: uint8 [rows, row bytes].

    A block is d and dmin (f16), eight 6-bit scales and eight 6-bit minimums in 12 bytes,
    and 256 nibbles q; a value is d * scale * q - dmin * min.  Scale and min of a group are
    the same here and dmin is 7.5 d, the middle of the nibbles, so that every group has
    about mean 0.  Format: block_q4_K and get_scale_min_k4 of
    https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-quants.c
    """
    n_blocks = rows * (columns // Q4_K_VALUES)
    blocks = np.empty((n_blocks, Q4_K_BYTES), np.uint8)
    d = np.float16(spread / Q4_K_SPREAD)
    blocks[:, :4] = np.array([d, np.float16(7.5) * d], np.float16).view(np.uint8)
    scales = rng.integers(32, 64, (n_blocks, 8), dtype=np.uint8)
    blocks[:, 4:16] = _packed(scales, scales)
    blocks[:, 16:] = rng.integers(0, 256, (n_blocks, 128), dtype=np.uint8)
    return blocks.reshape(rows, -1)


def _packed(scales: np.ndarray, minimums: np.ndarray) -> np.ndarray:
    """Eight scales and eight minimums of 6 bits as Q4_K keeps them: uint8 [n, 8] twice -> [n, 12].

    The first four of each have a byte; its two upper bits, and a nibble of the last four
    bytes, are the other four.
    """
    low = [half[:, :4] | (half[:, 4:] >> 4 << 6) for half in (scales, minimums)]
    return np.hstack([*low, (scales[:, 4:] & 15) | (minimums[:, 4:] << 4)])


def _writer(source: GGUFReader, target: Path, changes: dict[str, Any]) -> GGUFWriter:
    """A new file with the metadata of ``source``, some of its values changed."""
    writer = GGUFWriter(target, "llama")
    for name, entry in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        element = entry.types[-1] if entry.types[0] == GGUFValueType.ARRAY else None
        value = changes.get(name, entry.contents())
        writer.add_key_value(name, value, entry.types[0], sub_type=element)
    return writer


def _finish(writer: GGUFWriter, target: Path) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{target}: {target.stat().st_size / 1e6:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
