"""What choosing a token costs under various settings, as a share of the step that computes its logits.

    python scripts/bench_sampling.py MODEL.gguf [-t 2]

The logits are the model's own, of a text that it makes up; every setting meets all of them.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np

from llmgen.backends.cpu.model import Model
from llmgen.engine import Sampler, SamplingParams
from llmgen.errors import LLMGenError
from llmgen.gguf import GGUFFile
from llmgen.tokenizer import Tokenizer

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "greedy": {"temp": 0},
    "temperature alone": OFF | {"temp": 1.0},
    "top-k 1000": {"top_k": 1000},
    "top-k 100000": {"top_k": 100_000},
    "top-p alone": OFF | {"top_p": 0.95},
    "min-p alone": OFF | {"min_p": 0.05},
    "typical alone": OFF | {"typical_p": 0.9},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "XTC": {"xtc_probability": 1.0},
    "XTC alone, threshold 0.001": OFF | {"xtc_probability": 1.0, "xtc_threshold": 0.001},
    "dynamic temperature": {"dynatemp_range": 0.5},
    "dynamic temperature alone": OFF | {"dynatemp_range": 0.5},
    "Mirostat 1": {"mirostat": 1},
    "Mirostat 2": {"mirostat": 2},
    "penalties": {"repeat_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1},
    "DRY": {"dry_multiplier": 0.8},
    "logit bias": {"logit_bias": ((5, 1.0), (9, -1.0))},
    "ignore-eos": {"ignore_eos": True},
    "log-probabilities": {"logprobs": 5},
    "log-probabilities, processed": {"logprobs": 5, "logprobs_mode": "processed"},
    "log-probabilities alone, processed": OFF | {"logprobs": 5, "logprobs_mode": "processed"},
}
SETTINGS["everything"] = {
    "typical_p": 0.95,
    "top_n_sigma": 2.0,
    "xtc_probability": 0.5,
    **{name: value for key in ("penalties", "DRY", "ignore-eos") for name, value in SETTINGS[key].items()},
    **SETTINGS["dynamic temperature"],
    **SETTINGS["log-probabilities"],
}
TEXT = "Once upon a time there was a little girl who"


def made_up(model: Model, ids: list[int], n: int) -> tuple[list[np.ndarray], float]:
    """The logits of n tokens after ``ids``, float32 [n_vocab] each, and the median seconds of a step."""
    seq, rng = model.new_sequence(), np.random.default_rng(0)
    row, seconds, rows = model.prefill(seq, ids), [], []
    assert row is not None
    for _ in range(n):
        rows.append(row.copy())
        token = int(np.argsort(row)[-1 - rng.integers(5)])
        started = time.perf_counter()
        row = model.decode([seq], [token])[0]
        seconds.append(time.perf_counter() - started)
    seq.close()
    return rows, median(seconds)


def measure(path: str, n_threads: int | None) -> None:
    """Print a line for each setting."""
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
        model = Model.load(file, n_ctx=1024, n_threads=n_threads)
        ids = tokenizer.encode(TEXT)
        rows, step = made_up(model, ids, 64)
        print(f"a step takes {step * 1e3:.2f} ms; the vocabulary has {model.config.vocab_size} tokens")
        for name, options in SETTINGS.items():
            sampler = Sampler(
                SamplingParams(seed=1, **options),
                model.config.vocab_size,
                prompt_ids=ids,
                eog_ids=tokenizer.eog_ids,
                tokenizer=tokenizer,
                n_ctx=model.n_ctx,
            )
            seconds = []
            for row in rows:
                started = time.perf_counter()
                sampler.sample(row)
                seconds.append(time.perf_counter() - started)
            took = median(seconds)
            print(f"{name:36} {took * 1e3:6.3f} ms  {took / step:6.1%}", flush=True)
        model.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="path of a .gguf file")
    parser.add_argument("-t", "--threads", type=int)
    args = parser.parse_args()
    try:
        measure(args.model, args.threads)
    except LLMGenError as error:
        parser.exit(error.exit_code, f"error: {error}\n")


if __name__ == "__main__":
    main()
