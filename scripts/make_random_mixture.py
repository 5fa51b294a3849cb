"""Write a mixture of experts of random weights, to time: any number of experts, of which any number are used.

    python scripts/make_random_mixture.py OUT.gguf --type Q4_0

It has the shape of a Qwen 3 with experts and no tokenizer; `llmgen bench` and llama.cpp load it.  By
default it has 64 experts, 8 of them used, and 3.2 billion weights, of which a token reads 0.6 billion.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf.quants import quantize

from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

N_EMBD, N_LAYERS, N_HEADS, N_KV_HEADS, N_VOCAB, HEAD_DIM = 1536, 20, 12, 4, 32000, 128
POOL = 512
"""Rows that are drawn; a matrix repeats them, each time from another one on."""
TYPES = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def main() -> None:
    """Write the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="Q4_0", help="of all matrices but the embedding")
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--used", type=int, default=8, help="experts that a token takes")
    parser.add_argument("--size", type=int, default=512, help="values inside an expert, a multiple of 32")
    options = parser.parse_args()
    writer = GGUFWriter(options.out, "qwen3moe")
    add_keys(writer, options.experts, options.used, options.size)
    tensors = list(shapes(options.experts, options.size, Type[options.type]))
    for name, shape, kind in tensors:
        first = row_pool(shape[-1], kind)[:1]
        nbytes = first.nbytes * int(np.prod(shape[:-1]))
        stored = (*shape[:-1], first.shape[-1]) if first.dtype == np.uint8 else shape
        writer.add_tensor_info(name, stored, first.dtype, nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (_, shape, kind) in enumerate(tensors):
        writer.write_tensor_data(rows(shape, kind, number))
    writer.close()


def add_keys(writer: GGUFWriter, n_experts: int, n_used: int, n_expert_ff: int) -> None:
    """The metadata of the model."""
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(32768)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(n_expert_ff * n_used)
    writer.add_expert_feed_forward_length(n_expert_ff)
    writer.add_expert_count(n_experts)
    writer.add_expert_used_count(n_used)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("no_vocab")


def shapes(n_experts: int, n_ff: int, kind: Type) -> Iterator[tuple[str, tuple[int, ...], Type]]:
    """Name, shape and type of each tensor."""
    yield "token_embd.weight", (N_VOCAB, N_EMBD), Type.Q8_0
    yield "output.weight", (N_VOCAB, N_EMBD), kind
    yield "output_norm.weight", (N_EMBD,), Type.F32
    n_q, n_kv = N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM
    matrices = {
        "attn_q": (n_q, N_EMBD),
        "attn_k": (n_kv, N_EMBD),
        "attn_v": (n_kv, N_EMBD),
        "attn_output": (N_EMBD, n_q),
        "ffn_gate_exps": (n_experts, n_ff, N_EMBD),
        "ffn_up_exps": (n_experts, n_ff, N_EMBD),
        "ffn_down_exps": (n_experts, N_EMBD, n_ff),
    }
    vectors = {"attn_norm": N_EMBD, "ffn_norm": N_EMBD, "attn_q_norm": HEAD_DIM, "attn_k_norm": HEAD_DIM}
    for layer in range(N_LAYERS):
        for name, n in vectors.items():
            yield f"blk.{layer}.{name}.weight", (n,), Type.F32
        yield f"blk.{layer}.ffn_gate_inp.weight", (n_experts, N_EMBD), Type.F32
        for name, shape in matrices.items():
            yield f"blk.{layer}.{name}.weight", shape, kind


def row_pool(n_cols: int, kind: Type) -> np.ndarray:
    """POOL random rows in a type, of standard deviation 1 / sqrt(columns), so that no layer drowns another."""
    values = np.random.default_rng(n_cols).standard_normal((POOL, n_cols)).astype(np.float32)
    return quantize(values / np.float32(np.sqrt(n_cols)), kind)


def rows(shape: tuple[int, ...], kind: Type, number: int) -> np.ndarray:
    """The data of a tensor: ones for a norm, else rows of the pool."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    pool, n_rows = row_pool(shape[-1], kind), int(np.prod(shape[:-1]))
    order = np.random.default_rng(number).integers(0, POOL, n_rows)
    return pool[order].reshape(*shape[:-1], -1)


if __name__ == "__main__":
    main()
