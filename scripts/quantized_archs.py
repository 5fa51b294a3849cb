"""What quantized weights cost each architecture, beside what they cost in llama.cpp.

    python scripts/quantized_archs.py [SPEC ...] [--types q8_0,q4_0] [--seeds 4] [--llama-python PATH]

For every spec of the tests (``tests/archs.py``) and every seed it writes a tiny random model in float32
and in each type, and computes the logits of a text.  An error is the normalized mean squared difference
to the logits of the float32 file, computed in float64 by the numpy backend; the table has ours divided by
llama.cpp's.  Such models are noisy, so the geometric mean over the seeds counts.  Ends with 1 if it is
above ``--limit`` for any of them.

llama.cpp comes from llama-cpp-python (``pip install 'llmgen[compare]'``), which may live
in another environment: ``--llama-python PATH``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from arch_files import build_file
from archs import SPECS, UNORDERED, read_spec
from engines import engine
from naive import logits as numpy_logits
from naive import nmse

N_TOKENS = 100
# the logits after every token of a text, with an f32 cache and without flash attention, as MODEL.npy
_THEIRS = """
import ctypes, sys, llama_cpp as api, numpy as np
silent = api.llama_log_callback(lambda level, text, data: None)
api.llama_log_set(silent, ctypes.c_void_p(0))
tokens = [int(token) for token in sys.argv[1].split(",")]
for path in sys.argv[2:]:
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    if not model:
        sys.exit("llama.cpp does not load " + path)
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(256, len(tokens))
    params.type_k = params.type_v = params.flash_attn_type = 0
    params.swa_full = True
    context = api.llama_init_from_model(model, params)
    batch = api.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    if api.llama_decode(context, batch):
        sys.exit("llama.cpp does not run " + path)
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    np.save(path + ".npy", np.ctypeslib.as_array(api.llama_get_logits(context), shape=(len(tokens), n_vocab)))
    api.llama_free(context)
    api.llama_model_free(model)
"""


def main() -> None:
    """Print a line for each spec and type."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("specs", nargs="*", default=[name for name in SPECS if name not in UNORDERED])
    parser.add_argument("--types", type=lambda text: text.split(","), default=["q8_0", "q4_0"])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--limit", type=float, default=1.03)
    parser.add_argument("--llama-python", default=sys.executable)
    options = parser.parse_args()
    worse = []
    for spec in options.specs:
        for kind in options.types:
            try:
                ratios = ratios_of(spec, kind, range(1, 1 + options.seeds), options.llama_python)
            except RuntimeError as error:
                print(f"{spec:24} {kind:5} {error}")
                continue
            mean = float(np.exp(np.mean(np.log(ratios))))
            print(f"{spec:24} {kind:5} {mean:.3f}  ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
            worse += [f"{spec} {kind}"] if mean > options.limit else []
    if worse:
        sys.exit(f"worse than llama.cpp: {', '.join(worse)}")


def ratios_of(spec: str, kind: str, seeds: Sequence[int], python: str) -> list[float]:
    """Our error divided by llama.cpp's for each seed."""
    tokens = np.random.default_rng(5).integers(0, 128, N_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        paths = {seed: Path(folder) / f"{seed}.gguf" for seed in seeds}
        for seed, path in paths.items():
            build_file(read_spec(spec), path, kind, seed)
        command = [python, "-c", _THEIRS, ",".join(map(str, tokens)), *map(str, paths.values())]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or f"llama.cpp crashed ({done.returncode})")[-100:])
        ratios = []
        for seed, path in paths.items():
            exact = Path(folder) / "exact.gguf"
            build_file(read_spec(spec), exact, "f32", seed)
            truth = numpy_logits(exact, tokens)
            ratios.append(nmse(ours(path, tokens), truth) / nmse(np.load(f"{path}.npy"), truth))
    return ratios


def ours(path: Path, tokens: np.ndarray) -> np.ndarray:
    """The logits after every token, float32 [n, vocab]."""
    with engine(path, kv_type="f32") as model:
        return model.prefill(model.new_sequence(), [int(t) for t in tokens], logits="all").copy()


if __name__ == "__main__":
    main()
