"""Tokens per second of llmgen and of llama.cpp on the same file, with the same threads and tokens.

    python scripts/compare_llama_cpp.py MODEL.gguf [-p 512] [-n 64] [-d 0,4096] [-r 5] [-t 2] [--json]

Two processes load the model once, then measure in turn: one works while the other
waits (stopped, where the system can do that, so that no thread of it looks around for
work), and who begins changes with every round, so that whatever else the machine does
meets both.  Ratios are taken per round.  llama.cpp runs with flash attention off and on;
the better of the two, test by test, is what we compare with.

llama.cpp comes from llama-cpp-python (``pip install 'llmgen[compare]'``), which may live
in another environment: ``--llama-python PATH``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from neighbours import Neighbours
from rich.console import Console
from rich.table import Table

from llmgen.backends.cpu.runtime.threads import usable_cores
from llmgen.cli.bench.measure import read_bandwidth, weight_bytes_per_token
from llmgen.gguf import GGUFFile

HERE = Path(__file__).resolve().parent
FLASH = ("off", "on")
DISTURBED = 0.03  # of a core, taken by the side that should be waiting: worth a warning
CROWDED = 0.1  # of a core, taken by other processes: likewise
CHECK_PROMPT, CHECK_STEPS = 24, 7  # tokens whose logits are compared before anything is timed


class Side:
    """One of the two processes."""

    def __init__(self, name: str, python: str, script: str, options: dict[str, Any], settle_s: float) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        self._command = [python, str(HERE / script)]
        self._options = options
        self._settle_s = settle_s
        self._idle_s = self._idle_cpu_s = 0.0

    def __enter__(self) -> Side:
        """Start it and let it load the model.  Raises SystemExit with its reason if it cannot."""
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise SystemExit(f"cannot start {self._command[0]}: {error}") from error
        try:
            self.facts = self._ask(self._options)
        except BaseException:
            self.__exit__()
            raise
        self._idle_s = self._idle_cpu_s = 0.0  # counted from here: loading was nobody's turn
        return self

    def __exit__(self, *_: object) -> None:
        """Let it end."""
        self._signal("SIGCONT")
        self._process.kill()
        self._process.wait()

    def measure(self, variant: str, test: Test) -> float:
        """Tokens per second of one run of a test."""
        command = {"do": test.kind, "variant": variant, "prefix": test.prefix, "ids": test.ids}
        return len(test.ids) / float(self._ask(command)["seconds"])

    def logits(self, variant: str, ids: list[int], folder: str) -> np.ndarray:
        """Logits after the first CHECK_PROMPT ids and after each one behind them, float64 [n, n_vocab]."""
        file = str(Path(folder) / f"{self.name}-{variant}.npy")
        prefix, rest = ids[:CHECK_PROMPT], ids[CHECK_PROMPT:]
        self._ask({"do": "logits", "variant": variant, "prefix": prefix, "ids": rest, "file": file})
        return np.load(file).astype(np.float64)

    @property
    def idle_share(self) -> float:
        """Of a core, what this side took while the other one was working."""
        return self._idle_cpu_s / self._idle_s if self._idle_s else 0.0

    def _signal(self, name: str) -> None:
        """Stop the process or let it go on, on systems with such signals."""
        if hasattr(signal, name):
            self._process.send_signal(getattr(signal, name))

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run a command; the process gets the processor for just that time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal("SIGCONT")
        try:
            print(json.dumps({**command, "settle_s": self._settle_s}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SystemExit(
                f"the process of {self.name} ended; see above (is llama-cpp-python installed there?"
                " pip install 'llmgen[compare]', or --llama-python PATH)"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"{self.name}: {answer['error']}")
        self._idle_s += answer.pop("idle_s")
        self._idle_cpu_s += answer.pop("idle_cpu_s")
        self._signal("SIGSTOP")
        return answer


@dataclass(frozen=True)
class Test:
    """``ids`` appended after ``prefix``: as a prompt ('prefill') or one at a time ('decode')."""

    kind: str
    prefix: list[int]
    ids: list[int]


@dataclass
class Outcome:
    """One test's tokens per second, a figure per round and variant."""

    test: Test
    ours: list[float] = field(default_factory=list)
    theirs: dict[str, list[float]] = field(default_factory=lambda: {flash: [] for flash in FLASH})

    @property
    def flash(self) -> str:
        """The better of llama.cpp's settings."""
        return max(FLASH, key=lambda flash: statistics.median(self.theirs[flash]))

    @property
    def ratios(self) -> list[float]:
        """Ours / theirs, round by round."""
        return [a / b for a, b in zip(self.ours, self.theirs[self.flash], strict=True)]

    def as_dict(self, weight_bytes: int) -> dict[str, Any]:
        row = {
            "test": self.test.kind,
            "tokens": len(self.test.ids),
            "depth": len(self.test.prefix),
            "ours": _summary(self.ours),
            "llama_cpp": {f"flash_attention_{k}": _summary(v) for k, v in self.theirs.items()},
            "llama_cpp_best": f"flash_attention_{self.flash}",
            "ratio": _summary(self.ratios),
        }
        if self.test.kind == "decode":
            row["weights_gb_per_s"] = statistics.median(self.ours) * weight_bytes / 1e9
        return row


def _summary(figures: list[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(figures),
        "min": min(figures),
        "max": max(figures),
        "rounds": figures,
    }


def main() -> None:
    """Measure, and print the table or JSON on stdout; progress goes to stderr."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a stopped side would outlive us
    with GGUFFile.open(options.model) as file:
        weight_bytes = weight_bytes_per_token(file)
        n_vocab = len(file.metadata["tokenizer.ggml.tokens"])
        description = {"file": Path(options.model).name, "bytes": file.file_size}
    _progress("memory bandwidth")
    machine = _machine(options.threads)
    neighbours = Neighbours()
    with ExitStack() as running:
        _progress("loading")
        ours, theirs = (running.enter_context(side) for side in _sides(options))
        agreement = _agreement(ours, theirs, _tokens(n_vocab, CHECK_PROMPT + CHECK_STEPS))
        outcomes = [_run(test, ours, theirs, options.rounds) for test in _tests(options, n_vocab)]
    machine["taken_by_others"] = neighbours.share()
    report = {
        "machine": machine,
        "model": {**description, "weight_bytes_per_token": weight_bytes},
        "threads": options.threads,
        "llmgen": {**ours.facts, "idle_share": ours.idle_share},
        "llama_cpp": {**theirs.facts, "idle_share": theirs.idle_share},
        "agreement": agreement,
        "tests": [outcome.as_dict(weight_bytes) for outcome in outcomes],
    }
    _warn(ours, theirs, machine["taken_by_others"])
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        _print(report)


def _warn(ours: Side, theirs: Side, others: float | None) -> None:
    """Say what makes the figures doubtful."""
    for side in (ours, theirs):
        if side.idle_share > DISTURBED:
            _progress(f"warning: {side.name} took {side.idle_share:.0%} of a core in the other's turns")
    if others is not None and others > CROWDED:
        _progress(
            f"warning: other processes took {others:.0%} of a core; threads that wait for one another suffer"
            " from that out of proportion, and not alike, so these ratios say little"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="llmgen against llama.cpp: alternated runs on the same file")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="tokens of a prompt; 0 leaves it out")
    parser.add_argument("-n", "--generate", type=int, default=64, help="tokens generated; 0 leaves it out")
    parser.add_argument("-d", "--depths", default="0,4096", help="tokens already in the context, e.g. 0,512")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=usable_cores())
    parser.add_argument(
        "--settle", type=float, default=0.3, help="seconds before it is the other side's turn"
    )
    parser.add_argument("--llama-python", default=sys.executable, help="the Python that has llama-cpp-python")
    parser.add_argument("--json", action="store_true", help="everything as JSON instead of a table")
    options = parser.parse_args()
    try:
        options.depths = [int(depth) for depth in options.depths.split(",")]
    except ValueError:
        parser.error(f"-d {options.depths}: expected numbers with commas between them")
    if (
        options.rounds < 1
        or options.threads < 1
        or min(options.prompt, options.generate, *options.depths) < 0
    ):
        parser.error("expected at least one round and thread, and no negative numbers of tokens")
    return options


def _sides(options: argparse.Namespace) -> tuple[Side, Side]:
    """Both sides, not yet started."""
    longest = max(options.depths) + max(options.prompt, options.generate, CHECK_PROMPT + CHECK_STEPS)
    settings = {
        "model": os.path.abspath(options.model),
        "threads": options.threads,
        "n_ctx": -(-(longest + 1) // 256) * 256,  # llama.cpp rounds up like this
    }
    return (
        Side("llmgen", sys.executable, "side_llmgen.py", settings, options.settle),
        Side("llama.cpp", options.llama_python, "side_llama_cpp.py", settings, options.settle),
    )


def _tokens(n_vocab: int, n: int) -> list[int]:
    """n random token ids, the same ones in every run."""
    generator = random.Random(0)
    return [generator.randrange(n_vocab) for _ in range(n)]


def _tests(options: argparse.Namespace, n_vocab: int) -> list[Test]:
    tests = []
    for depth in options.depths:
        for kind, n in (("prefill", options.prompt), ("decode", options.generate)):
            tokens = _tokens(n_vocab, depth + n)
            if n:
                tests.append(Test(kind, tokens[:depth], tokens[depth:]))
    return tests


def _run(test: Test, ours: Side, theirs: Side, rounds: int) -> Outcome:
    """All rounds of one test; every other one in the opposite order."""
    outcome = Outcome(test)
    turns = [(ours, "default", outcome.ours), *((theirs, flash, outcome.theirs[flash]) for flash in FLASH)]
    for number in range(rounds):
        for side, variant, rates in turns if number % 2 == 0 else reversed(turns):
            rates.append(side.measure(variant, test))
        figures = ", ".join(f"{side.name} {rates[-1]:.1f}" for side, _, rates in turns)
        _progress(
            f"{test.kind} {len(test.ids)} at {len(test.prefix)}, round {number + 1}/{rounds}: {figures}"
        )
    return outcome


def _agreement(ours: Side, theirs: Side, ids: list[int]) -> dict[str, Any]:
    """Whether both compute the same: mean KL(llama.cpp || ours), positions with the same best token."""
    with tempfile.TemporaryDirectory() as folder:
        a, b = (
            _log_softmax(theirs.logits("off", ids, folder)),
            _log_softmax(ours.logits("default", ids, folder)),
        )
    return {
        "mean_kl": float(np.mean(np.sum(np.exp(a) * (a - b), axis=1))),
        "same_best_token": int(np.sum(a.argmax(axis=1) == b.argmax(axis=1))),
        "positions": len(a),
    }


def _log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows - rows.max(axis=1, keepdims=True)
    result: np.ndarray = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return result


def _machine(threads: int) -> dict[str, Any]:
    """The processor as the system names it, its cores, and what ``threads`` threads read per second."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return {
        "processor": name,
        "cores": usable_cores(),
        "system": platform.system(),
        "read_gb_per_s": read_bandwidth(threads) / 1e9,
    }


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(report: dict[str, Any]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=130)
    machine, theirs, agreement = report["machine"], report["llama_cpp"], report["agreement"]
    table = Table(
        title=f"{report['model']['file']}, {report['threads']} threads, tokens/s: median (lowest to highest)"
    )
    for heading in ("test", "depth", "llmgen", "llama.cpp", "flash", "ratio", "weights GB/s"):
        table.add_column(heading, justify="left" if heading == "test" else "right", no_wrap=True)
    for row in report["tests"]:
        best = row["llama_cpp_best"]
        table.add_row(
            f"{row['test']} {row['tokens']}",
            str(row["depth"]),
            _cell(row["ours"], 1),
            _cell(row["llama_cpp"][best], 1),
            best.removeprefix("flash_attention_"),
            _cell(row["ratio"], 2),
            f"{row['weights_gb_per_s']:.1f}" if "weights_gb_per_s" in row else "",
        )
    console.print(table)
    llmgen = report["llmgen"]
    for line in (
        f"{machine['processor']}, {machine['cores']} cores, plain read {machine['read_gb_per_s']:.1f} GB/s",
        f"llmgen {llmgen['version']}, {llmgen['kernel_level']} kernels, Python {llmgen['python']}, "
        f"numba {llmgen['numba']}",
        f"llama-cpp-python {theirs['llama_cpp_python']}, threads {theirs['n_threads']}, "
        f"for batches {theirs['n_threads_batch']}; {theirs['system_info']}",
        f"f16 cache on both sides; KL(llama.cpp || llmgen) {agreement['mean_kl']:.2g}, the same best token "
        f"at {agreement['same_best_token']} of {agreement['positions']} positions",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _cell(summary: dict[str, Any], digits: int) -> str:
    low, middle, high = (f"{summary[key]:.{digits}f}" for key in ("min", "median", "max"))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()
