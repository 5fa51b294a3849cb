"""Generated tokens per second alone and beside busy processes, for llmgen and its peers.

    python scripts/busy_neighbour.py MODEL.gguf ... [-n 64] [-r 5] [-t 2] [--busy 1]
                                     [--llama-python PATH] [--llama-bench NAME=PATH ...]

Each round measures everyone alone, then everyone while ``--busy`` other processes compute without a pause; every
other round in the opposite order.  Of two runs in a row the second counts, since a program may first have to notice
that something has changed.  What a program keeps is the ratio of the two in the same round, of
which the table shows the median and the range.  On a machine with two cores, one busy process and fair turns leave
two threads three quarters of the processor's time, or half of their speed if each waits for the other.
Peers run with flash attention on.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contenders import Contender, LlamaBench, Test, llama_cpp, llmgen, settings

from llmgen.backends.cpu.runtime.threads import usable_cores
from llmgen.gguf import GGUFFile

BUSY = "while True: pass"


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Processes of this one's that compute without a pause."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def contenders(path: str, options: argparse.Namespace) -> list[Contender]:
    """Everyone who takes part, llmgen first; not yet started."""
    what = settings(path, options.threads, options.generate)
    found: list[Contender] = [llmgen(what, options.settle)]
    if options.llama_python != "none":
        found.append(llama_cpp(options.llama_python, what, options.settle))
    for one in options.llama_bench:
        name, _, binary = one.partition("=")
        found.append(LlamaBench(name, binary, path, options.threads))
    return found


def measure(path: str, options: argparse.Namespace) -> None:
    """Print a row for each program."""
    with GGUFFile.open(path) as file:
        _, n_vocab = file.tensors["token_embd.weight"].shape
    draw = random.Random(0)
    test = Test("decode", [], [draw.randrange(n_vocab) for _ in range(options.generate)])
    with ExitStack() as running:
        everyone = [running.enter_context(one) for one in contenders(path, options)]
        rates: dict[tuple[str, int], list[float]] = {}
        for number in range(options.rounds):
            for n in (0, options.busy) if number % 2 == 0 else (options.busy, 0):
                for one in everyone:
                    with busy(n):
                        one.measure(one.variants[-1], test)
                        rate = one.measure(one.variants[-1], test)
                    assert rate is not None
                    rates.setdefault((one.name, n), []).append(rate)
                    what = f"round {number + 1}/{options.rounds}, {n} busy: {one.name} {rate:.1f}"
                    print(what, file=sys.stderr, flush=True)
    for one in everyone:
        alone, beside = rates[one.name, 0], rates[one.name, options.busy]
        kept = [b / a for a, b in zip(alone, beside, strict=True)]
        middle = [statistics.median(figures) for figures in (alone, beside, kept)]
        print(
            f"| {Path(path).name} | {one.name} | {middle[0]:.1f} | {middle[1]:.1f} "
            f"| {middle[2]:.2f} ({min(kept):.2f} to {max(kept):.2f}) |",
            flush=True,
        )


def main() -> None:
    """Print one Markdown table for all models."""
    parser = argparse.ArgumentParser(description="generated tokens beside busy processes")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("-n", "--generate", type=int, default=64)
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=usable_cores())
    parser.add_argument("--busy", type=int, default=1, help="how many processes")
    parser.add_argument("--settle", type=float, default=0.3, help="seconds before it is another one's turn")
    parser.add_argument(
        "--llama-python", default=sys.executable, help="the Python that has llama-cpp-python, or none"
    )
    parser.add_argument("--llama-bench", action="append", default=[], metavar="NAME=PATH")
    options = parser.parse_args()
    if min(options.generate, options.rounds, options.threads, options.busy) < 1:
        parser.error("expected at least one token, round, thread and busy process")
    if any(not all(one.partition("=")[::2]) for one in options.llama_bench):
        parser.error("--llama-bench: expected NAME=PATH, for example ik=/opt/ik/llama-bench")
    print("| model | | alone | beside | kept |\n|---|---|---|---|---|", flush=True)
    for path in options.models:
        measure(path, options)


if __name__ == "__main__":
    main()
