"""Where the processor time of a run goes, kernel by kernel, on one thread.

    python scripts/profile_kernels.py MODEL.gguf [-p 512] [-n 16] [-d 0]

Runs the recorded programs of a prompt of p tokens and of generated tokens after a depth of d,
calling the steps one by one from Python, and adds up the time by kernel.  Waiting for other
threads is not part of it: there are none.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from llmgen.backends.cpu.model import Model
from llmgen.gguf import GGUFFile
from llmgen.model.runs import Part


def main() -> None:
    """Print two tables: a prompt, and a generated token."""
    parser = argparse.ArgumentParser(description="time by kernel on one thread")
    parser.add_argument("model")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--generate", type=int, default=16)
    parser.add_argument("-d", "--depth", type=int, default=0)
    options = parser.parse_args()
    n_ctx = options.depth + options.prompt + options.generate + 8
    with GGUFFile.open(options.model) as file:
        model = Model.load(file, n_ctx=n_ctx, n_threads=1)
        model.move_weights()
        n_vocab = model.config.vocab_size
        ids = np.random.default_rng(0).integers(0, n_vocab, n_ctx)
        seq = model.new_sequence()
        model.prefill(seq, ids[: options.depth + 4], "none")
        model.decode([seq], [1])
        for title, tokens in (("prompt", options.prompt), ("generated", options.generate)):
            seconds: Counter[str] = Counter()
            seq.truncate(options.depth) if options.depth else seq.clear()
            size = model.max_prompt_tokens if title == "prompt" else 1
            started = time.thread_time()
            for first in range(0, tokens, size):
                part = ids[options.depth :][first : min(first + size, tokens)]
                last = title == "generated" or first + size >= tokens
                seconds.update(model.profile([Part(seq, part, int(last))], title))  # type: ignore[arg-type]
            _report(title, tokens, seconds, time.thread_time() - started)
        model.close()


def _report(title: str, tokens: int, seconds: Counter[str], whole: float) -> None:
    total = sum(seconds.values())
    print(f"{title}: {tokens / whole:.1f} tokens/s, {1e3 * total / tokens:.3f} ms a token in kernels")
    for kernel, taken in seconds.most_common():
        print(f"  {taken / total:6.1%}  {1e3 * taken / tokens:9.4f} ms  {kernel}")


if __name__ == "__main__":
    main()
