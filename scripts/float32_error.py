"""How far logits in float32 are from a float64 forward pass in numpy, on every logit of a text.

    python scripts/float32_error.py models/smollm2.gguf models/gemma3-270m.gguf

All weights are dequantized into a temporary F32 file and the KV cache is f32, so what is
measured is the rounding of our own arithmetic. The oracle is that of the tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from engines import engine, in_chunks, one_by_one
from llmgen import Tokenizer
from naive import logits as numpy_logits
from naive.float32 import float32_copy


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("-n", type=int, default=160, help="tokens of the text, which is that of LICENSE")
    options = parser.parse_args()
    text = Path(__file__).resolve().parent.parent.joinpath("LICENSE").read_text(encoding="utf-8")
    for model in options.models:
        tokens = Tokenizer.from_gguf(model).encode(text, add_special=True)[: options.n]
        found = ", ".join(f"{name} {error:.1e}" for name, error in errors(model, tokens).items())
        print(f"{model.name}, {len(tokens)} tokens, largest error of any logit: {found}")


def errors(source: Path, tokens: list[int]) -> dict[str, float]:
    """The largest absolute error of any logit, by the way it was computed."""
    truth = numpy_logits(source, tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = float32_copy(source, Path(folder) / "f32.gguf")
        with engine(path, n_threads=2, kv_type="f32", n_ctx=len(tokens)) as model:
            seq = model.new_sequence()
            ours = {"as a prompt": in_chunks(model, seq, tokens, ())}
            seq.clear()
            ours["token by token"] = one_by_one(model, seq, tokens)
            seq.close()
    ours["numpy in float32"] = numpy_logits(source, tokens, dtype=np.float32)
    return {name: float(np.abs(logits - truth).max()) for name, logits in ours.items()}


if __name__ == "__main__":
    main()
