"""Models whose matrices are of many tensor types at once, the embedding and the output matrix among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernels.matrices import QUANTIZED, ggml_type, random_matrix

import gguf
import tiny
from engines import engine, one_by_one
from gguf_writing import write_out
from llmgen.gguf import GGMLType, GGUFFile
from llmgen.gguf.head import NewTensor, head, padding
from naive import logits, nmse

WIDTH, LAYERS = 256, 1
KEYS = [key for key in QUANTIZED if key != "q2_0"]  # which the gguf package cannot write yet
NAMES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def small_blocks(key: str, rng: np.random.Generator) -> np.ndarray:
    """A square matrix with weights of about 0.06, as its blocks."""
    m = random_matrix(key, WIDTH, WIDTH, rng)
    if key == "nvfp4":
        m.data.reshape(WIDTH, -1, 36)[..., :4] = rng.integers(8, 24, (WIDTH, WIDTH // 64, 4))
    else:
        size = 0.06 / m.floats().std()
        m = random_matrix(key, WIDTH, WIDTH, rng, size)
    return m.data


N_EXPERTS, N_USED = 6, 2


def write(path: Path, embedding: str, output: str, others: tuple[str, ...], experts: bool = False) -> None:
    """experts: the feed-forward's matrices are those of a mixture."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(str(path), "llama")
    wide = {"block_count": LAYERS, "embedding_length": WIDTH, "feed_forward_length": WIDTH}
    wide |= {"attention.head_count": 4, "attention.head_count_kv": 4, "rope.dimension_count": 64}
    if experts:
        writer.add_uint32("llama.expert_count", N_EXPERTS)
        writer.add_uint32("llama.expert_used_count", N_USED)
        router = rng.normal(0, 0.2, (N_EXPERTS, WIDTH)).astype(np.float32)
        writer.add_tensor("blk.0.ffn_gate_inp.weight", router)
    for key, (kind, value) in tiny.KEYS.items():
        getattr(writer, f"add_{kind}")(f"llama.{key}", wide.get(key, value))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tiny.TOKENS[:WIDTH])
    writer.add_token_scores([-float(i) for i in range(WIDTH)])
    writer.add_token_types(tiny.TYPES[:WIDTH])
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    matrices = {"token_embd": embedding, "output": output}
    matrices |= {f"blk.0.{name}": others[i % len(others)] for i, name in enumerate(NAMES)}
    for name, key in matrices.items():
        if experts and ".ffn_" in name:
            stack = np.stack([small_blocks(key, rng) for _ in range(N_EXPERTS)])
            writer.add_tensor(f"{name}_exps.weight", stack, raw_dtype=ggml_type(key))
        elif key == "f16":
            writer.add_tensor(f"{name}.weight", rng.normal(0, 0.06, (WIDTH, WIDTH)).astype(np.float16))
        else:
            writer.add_tensor(f"{name}.weight", small_blocks(key, rng), raw_dtype=ggml_type(key))
    write_out(writer)


@pytest.mark.parametrize("first", range(0, len(KEYS), 7))
def test_any_mix_of_types(first: int, tmp_path: Path) -> None:
    """Seven types for the layer, one each for the embedding and the output: the numpy backend's logits."""
    chosen = [KEYS[(first + i) % len(KEYS)] for i in range(9)]
    path = tmp_path / "mixed.gguf"
    write(path, chosen[7], chosen[8], tuple(chosen[:7]))
    check(path)


@pytest.mark.parametrize("first", range(0, len(KEYS), 3))
def test_experts_of_any_type(first: int, tmp_path: Path) -> None:
    """Three types for an expert's matrices; the last expert's last row ends the file."""
    chosen = [KEYS[(first + i) % len(KEYS)] for i in range(3)]
    path = tmp_path / "experts.gguf"
    write(path, "q4_0", "q4_0", ("q4_0",) * 4 + tuple(chosen), experts=True)
    check(path)


def test_a_type_that_the_gguf_package_cannot_write(tmp_path: Path) -> None:
    """Q2_0 in all matrices, those of experts among them."""
    write(tmp_path / "q1_0.gguf", "q1_0", "q1_0", ("q1_0",), experts=True)
    with GGUFFile.open(tmp_path / "q1_0.gguf") as file:
        write_in(tmp_path / "q2_0.gguf", file, "q2_0")
    check(tmp_path / "q2_0.gguf")


def write_in(path: Path, file: GGUFFile, key: str) -> None:
    """A file like another, but for its quantized matrices, which are new ones in a type."""
    rng, kind = np.random.default_rng(3), GGMLType[key.upper()]
    tensors, data = [], []
    for tensor in file.tensors.values():
        stays = tensor.type is GGMLType.F32
        n_matrices = 1 if stays else tensor.n_elements // WIDTH**2
        parts = [tensor.data] if stays else [small_blocks(key, rng) for _ in range(n_matrices)]
        nbytes = sum(part.nbytes for part in parts)
        tensors.append(NewTensor(tensor.name, tensor.shape, tensor.type if stays else kind))
        data += [*(part.tobytes() for part in parts), bytes(padding(nbytes, 32))]
    pairs = [file.pair(key) for key in file.metadata]
    path.write_bytes(b"".join([head(pairs, tensors, 32), *data]))


def check(path: Path) -> None:
    """As near to the exact logits as the numpy backend with rounded activations."""
    tokens = np.random.default_rng(2).integers(0, WIDTH, 20)
    exact, rounded = logits(path, tokens), logits(path, tokens, int8_activations=True)
    with engine(path) as model:
        prompt = model.prefill(model.new_sequence(), tokens.tolist(), logits="all")
        generated = one_by_one(model, model.new_sequence(), tokens)
    for ours in (prompt, generated):
        assert nmse(ours, rounded) < nmse(rounded, exact)
        assert nmse(ours, exact) < 1.5 * nmse(rounded, exact)
