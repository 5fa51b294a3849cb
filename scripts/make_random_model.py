"""Write a Llama of random weights, to time: any type of tensor, several sizes.

    python scripts/make_random_model.py OUT.gguf --type IQ3_S [--shape 480m]

It has no tokenizer; `llmgen bench`, llama.cpp and its forks load it.  The embedding is Q8_0, all other
matrices have the type.  A matrix repeats a pool of random blocks.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gguf import GGUFWriter
from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.gguf import GGMLType
from llmgen.gguf.dequantize import dequantize

POOL = 256
"""Blocks that are drawn, at least; a prime number of them is repeated, so that no two rows are alike."""
SMALLEST, LARGEST = 0.01, 0.08
"""Between these lies the largest weight of every block: products stay near 1, whatever the layer."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; all are multiples of 256, as the rows of superblocks have to be."""

    embd: int
    ff: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int = 32000


SHAPES = {
    "135m": Shape(768, 2048, 20, 12, 4, 16384),
    "480m": Shape(2048, 5632, 9, 32, 4),
    "1b": Shape(2048, 5632, 22, 32, 4),
    "8b": Shape(4096, 14336, 32, 32, 8, 128256),
}
TYPES = [one.name for one in GGMLType if one.name.lower() in TABLE]


def main() -> None:
    """Write the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="Q4_0", help="of all matrices but the embedding")
    parser.add_argument("--shape", choices=SHAPES, default="480m")
    options = parser.parse_args()
    write(options.out, SHAPES[options.shape], GGMLType[options.type])


def write(out: Path, shape: Shape, kind: GGMLType) -> None:
    """The whole file."""
    writer = GGUFWriter(out, "llama")
    add_keys(writer, shape)
    pools = {kind: blocks(kind), GGMLType.Q8_0: blocks(GGMLType.Q8_0)}
    listed = tensors(shape, kind)
    for name, (rows, cols), one in listed:
        nbytes = rows * one.bytes_for(cols)
        # the writer looks at the type of the array only where it is bytes, to find the shape
        writer.add_tensor_info(name, (rows, cols), np.dtype(np.float32), nbytes, one.value)
    norms = [
        "output_norm",
        *(f"blk.{i}.{name}" for i in range(shape.layers) for name in ("attn_norm", "ffn_norm")),
    ]
    for name in norms:
        writer.add_tensor_info(f"{name}.weight", (shape.embd,), np.dtype(np.float32), 4 * shape.embd)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, (rows, cols), one in listed:
        writer.write_tensor_data(np.resize(pools[one], (rows, one.bytes_for(cols))))
    for _ in norms:
        writer.write_tensor_data(np.ones(shape.embd, np.float32))
    writer.close()


def add_keys(writer: GGUFWriter, shape: Shape) -> None:
    """The metadata of the model."""
    writer.add_block_count(shape.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.embd)
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.embd // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5e5)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("no_vocab")


def tensors(shape: Shape, kind: GGMLType) -> list[tuple[str, tuple[int, int], GGMLType]]:
    """Name, rows and columns, and type of each matrix."""
    n_kv = shape.embd // shape.heads * shape.kv_heads
    listed = [
        ("token_embd.weight", (shape.vocab, shape.embd), GGMLType.Q8_0),
        ("output.weight", (shape.vocab, shape.embd), kind),
    ]
    matrices = {
        "attn_q": (shape.embd, shape.embd),
        "attn_k": (n_kv, shape.embd),
        "attn_v": (n_kv, shape.embd),
        "attn_output": (shape.embd, shape.embd),
        "ffn_gate": (shape.ff, shape.embd),
        "ffn_up": (shape.ff, shape.embd),
        "ffn_down": (shape.embd, shape.ff),
    }
    for layer in range(shape.layers):
        listed += [(f"blk.{layer}.{name}.weight", size, kind) for name, size in matrices.items()]
    return listed


def blocks(kind: GGMLType) -> np.ndarray:
    """Random blocks uint8 [a prime number, bytes], of which the scales are sane: others are dropped."""
    rng = np.random.default_rng(kind.value)
    found = np.empty((0, kind.block_bytes), np.uint8)
    while len(found) < POOL:
        drawn = rng.integers(0, 256, (1 << 15, kind.block_bytes), dtype=np.uint8)
        if kind is GGMLType.NVFP4:  # of whose four scales, a byte each, hardly ever all are sane
            drawn[:, :4] &= 7
        with np.errstate(invalid="ignore", over="ignore"):
            largest = np.abs(dequantize(drawn, kind)).max(axis=1)
        found = np.concatenate([found, drawn[(largest >= SMALLEST) & (largest <= LARGEST)]])
    return found[: largest_prime(len(found))]


def largest_prime(n: int) -> int:
    """Not above n."""
    return next(p for p in range(n, 1, -1) if all(p % d for d in range(2, int(p**0.5) + 1)))


if __name__ == "__main__":
    main()
