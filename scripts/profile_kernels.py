"""Where the processor time of a run goes, kernel by kernel, on one thread.

    python scripts/profile_kernels.py MODEL.gguf [-p 512] [-n 16] [-d 0]

Runs the recorded programs of a prompt of p tokens and of generated tokens after a depth of d,
calling the steps one by one from Python, and adds up the time by kernel.  Waiting for other
threads is not part of it: there are none.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections import defaultdict

import numpy as np

from llmgen.backends.cpu.kernels.layout import STEP_BYTES, STEP_HEADER
from llmgen.backends.cpu.model import Model
from llmgen.gguf import GGUFFile

_STEP = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Profile:
    """Stands in for a model's thread team: runs each step of a table and keeps its time."""

    def __init__(self, model: Model) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._model = model

    def run(self, table: int, nbytes: int, steps: int, n_threads: int) -> bool:
        program = next(p for p in self._model._programs.values() if p._tables[1].ctypes.data == table)
        for i, step in enumerate(program.plan.steps):
            address = table + STEP_BYTES * i
            function = _STEP(ctypes.c_int64.from_address(address).value)
            started = time.thread_time()
            function(address + STEP_HEADER, 0, 1)
            self.seconds[step.kernel] += time.thread_time() - started
        return True

    def long_waits(self) -> int:
        return 0

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


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
        n_vocab = model.config.vocab_size
        ids = np.random.default_rng(0).integers(0, n_vocab, n_ctx)
        seq = model.new_sequence()
        model.prefill(seq, ids[: options.depth + 4], "none")
        model.decode([seq], [1])
        team = model._team
        for title, tokens in (("prompt", options.prompt), ("generated", options.generate)):
            profile = Profile(model)
            model._team = profile  # type: ignore[assignment]
            seq.truncate(options.depth) if options.depth else seq.clear()
            started = time.thread_time()
            if title == "prompt":
                model.prefill(seq, ids[options.depth : options.depth + tokens], "last")
            else:
                for token in ids[:tokens]:
                    model.decode([seq], [token])
            _report(title, tokens, profile, time.thread_time() - started)
            model._team = team
        model.close()


def _report(title: str, tokens: int, profile: Profile, whole: float) -> None:
    total = sum(profile.seconds.values())
    print(f"{title}: {tokens / whole:.1f} tokens/s, {1e3 * total / tokens:.3f} ms a token in kernels")
    for kernel, seconds in sorted(profile.seconds.items(), key=lambda item: -item[1]):
        print(f"  {seconds / total:6.1%}  {1e3 * seconds / tokens:9.4f} ms  {kernel}")


if __name__ == "__main__":
    main()
