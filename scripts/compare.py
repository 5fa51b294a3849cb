"""Tokens per second of llmgen and of its peers on the same files, with the same threads and tokens.

    python scripts/compare.py MODEL.gguf ... [-p 512] [-n 64] [-d 0,4096] [-r 5] [-t 2] [--json]
                              [--llama-python PATH] [--llama-bench NAME=PATH ...] [--level avx2]

The peers are llama.cpp's library in llama-cpp-python (``pip install 'llmgen[compare]'``, which
may live in another environment: ``--llama-python PATH``; ``none`` leaves it out) and any
number of llama-bench binaries, of llama.cpp or of a fork.

All load the model once (a llama-bench binary at each run), then measure in turn: one works
while the others wait (stopped, where the system can do that, so that no thread of theirs
looks around for work), and who begins changes with every round, so that whatever else the
machine does meets all.  Peers run with flash attention off and on; the better of the two
counts, test by test.  Ratios are taken per round, with the peer that is best in that test.
A peer that cannot load a model is left out there.  `make_random_model.py` writes models of every type.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import signal
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comparison_report import as_markdown, print_table
from contenders import (
    CHECK_PROMPT,
    CHECK_STEPS,
    Contender,
    LlamaBench,
    Side,
    Test,
    agreement,
    llama_cpp,
    llmgen,
    settings,
)
from dot_peak import dot_peak
from neighbours import Neighbours

from llmgen.backends.cpu.runtime.threads import usable_cores
from llmgen.cli.bench.measure import read_bandwidth, share_read, weight_bytes_per_token
from llmgen.gguf import GGUFFile

DISTURBED = 0.03  # of a core, taken by a side that should be waiting: worth a warning
CROWDED = 0.1  # of a core, taken by other processes: likewise


@dataclass(frozen=True)
class Model:
    """What one file asks of the machine."""

    path: str
    n_vocab: int
    weight_bytes: int
    """Bytes of weights that a generated token reads."""
    products: int
    """Multiplications with weights for each token of a prompt."""

    @staticmethod
    def read(path: str) -> Model:
        with GGUFFile.open(path) as file:
            matrices = {
                name: int(tensor.n_elements * share_read(file, tensor))
                for name, tensor in file.tensors.items()
                if len(tensor.shape) > 1 and name not in ("token_embd.weight", "output.weight")
            }
            _, n_vocab = file.tensors["token_embd.weight"].shape
            return Model(path, n_vocab, weight_bytes_per_token(file), sum(matrices.values()))


@dataclass
class Outcome:
    """One test's tokens per second, a figure per round for each contender and variant."""

    test: Test
    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def best(self, name: str) -> list[float]:
        """The rounds of a contender's better variant; empty if it cannot run the test."""
        found = [rates for (who, _), rates in self.rates.items() if who == name]
        return max(found, key=statistics.median, default=[])

    def as_dict(self, peers: list[str], limit: float) -> dict[str, Any]:
        """The figures for the report; limit: tokens per second that the machine allows at most."""
        ours = self.best("llmgen")
        by_peer = {name: self.best(name) for name in peers}
        able = [name for name in peers if by_peer[name]]
        row: dict[str, Any] = {
            "test": self.test.kind,
            "tokens": len(self.test.ids),
            "depth": len(self.test.prefix),
            "llmgen": _summary(ours),
            "peers": {name: _summary(by_peer[name]) for name in able},
            "variants": {f"{who}, {variant}": rates for (who, variant), rates in self.rates.items()},
            "share_of_limit": statistics.median(ours) / limit,
        }
        rivals = [name for name in able if not name.startswith("llmgen ")]
        if rivals:
            best = max(rivals, key=lambda name: statistics.median(by_peer[name]))
            row["best_peer"] = best
            row["ratio"] = _summary([a / b for a, b in zip(ours, by_peer[best], strict=True)])
        return row


def _summary(figures: list[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(figures),
        "min": min(figures),
        "max": max(figures),
        "rounds": figures,
    }


def main() -> None:
    """Measure, and print a table, Markdown or JSON on stdout; progress goes to stderr."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a stopped side would outlive us
    machine = _machine(options.threads)
    reports = [_compare(Model.read(path), options, machine) for path in options.models]
    if options.json:
        print(json.dumps(reports, indent=1))
    elif options.markdown:
        print(as_markdown(reports))
    else:
        for report in reports:
            print_table(report)


def _compare(model: Model, options: argparse.Namespace, machine: dict[str, Any]) -> dict[str, Any]:
    """All tests with one model."""
    neighbours = Neighbours()
    with ExitStack() as running:
        _progress(f"loading {model.path}")
        ours, *others = _contenders(model, options)
        running.enter_context(ours)
        peers = [one for one in others if _started(one, running)]
        contenders = [ours, *peers]
        report: dict[str, Any] = {
            "machine": machine,
            "model": {
                "file": Path(model.path).name,
                "bytes": Path(model.path).stat().st_size,
                "weight_bytes_per_token": model.weight_bytes,
            },
            "threads": options.threads,
        }
        if isinstance(ours, Side) and peers and isinstance(peers[0], Side) and peers[0].name == "llama.cpp":
            ids = _tokens(model.n_vocab, CHECK_PROMPT + CHECK_STEPS)
            report["agreement"] = agreement(ours, peers[0], ids)
        outcomes = [_run(test, contenders, options.rounds) for test in _tests(options, model.n_vocab)]
    names = [peer.name for peer in peers]
    report["contenders"] = {one.name: {**one.facts, "idle_share": one.idle_share} for one in contenders}
    report["taken_by_others"] = neighbours.share()
    report["tests"] = [one.as_dict(names, _limit(one.test, model, machine)) for one in outcomes]
    _warn(contenders, report["taken_by_others"])
    return report


def _started(one: Contender, running: ExitStack) -> bool:
    """Start a contender; whoever cannot run this model is left out, and its column stays empty."""
    try:
        running.enter_context(one)
    except SystemExit as error:
        _progress(f"without {one.name}: {error}")
        return False
    return True


def _contenders(model: Model, options: argparse.Namespace) -> list[Contender]:
    """Everyone who takes part, llmgen first; not yet started."""
    longest = max(options.depths) + max(options.prompt, options.generate, CHECK_PROMPT + CHECK_STEPS)
    what = settings(model.path, options.threads, longest)
    contenders: list[Contender] = [llmgen(what, options.settle)]
    if options.llama_python != "none":
        contenders.append(llama_cpp(options.llama_python, what, options.settle))
    for name, binary in options.llama_bench:
        contenders.append(LlamaBench(name, binary, model.path, options.threads))
    if options.level:
        contenders.append(llmgen(what, options.settle, options.level))
    return contenders


def _limit(test: Test, model: Model, machine: dict[str, Any]) -> float:
    """Tokens per second if only reading the weights, or only multiplying with them, took time."""
    if test.kind == "decode":
        return float(machine["read_gb_per_s"]) * 1e9 / model.weight_bytes
    return float(machine["dot_gmac_per_s"]) * 1e9 / model.products


def _warn(contenders: list[Contender], others: float | None) -> None:
    """Say what makes the figures doubtful."""
    for one in contenders if len(contenders) > 1 else []:
        if one.idle_share > DISTURBED:
            _progress(f"warning: {one.name} took {one.idle_share:.0%} of a core in the others' turns")
    if others is not None and others > CROWDED:
        _progress(
            f"warning: other processes took {others:.0%} of a core; threads that wait for one another suffer"
            " from that out of proportion, and not alike, so these ratios say little"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="llmgen and its peers: alternated runs on the same files",
        epilog="Several --llama-bench may be given, for example --llama-bench ik=/opt/ik/llama-bench",
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="GGUF files, one after the other")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="tokens of a prompt; 0 leaves it out")
    parser.add_argument("-n", "--generate", type=int, default=64, help="tokens generated; 0 leaves it out")
    parser.add_argument("-d", "--depths", default="0,4096", help="tokens already in the context, e.g. 0,512")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=usable_cores())
    parser.add_argument(
        "--settle", type=float, default=0.3, help="seconds before it is the other side's turn"
    )
    parser.add_argument(
        "--llama-python", default=sys.executable, help="the Python that has llama-cpp-python, or none"
    )
    parser.add_argument(
        "--llama-bench", action="append", default=[], metavar="NAME=PATH", help="a llama-bench binary"
    )
    parser.add_argument(
        "--level", help="llmgen at a lower kernel level too, a column of its own, such as avx2"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything as JSON instead of a table")
    form.add_argument("--markdown", action="store_true", help="one Markdown table for all models")
    options = parser.parse_args()
    try:
        options.depths = [int(depth) for depth in options.depths.split(",")]
    except ValueError:
        parser.error(f"-d {options.depths}: expected numbers with commas between them")
    smallest = min(options.prompt, options.generate, *options.depths)
    if options.rounds < 1 or options.threads < 1 or smallest < 0:
        parser.error("expected at least one round and thread, and no negative numbers of tokens")
    options.llama_bench = [tuple(one.partition("=")[::2]) for one in options.llama_bench]
    if not all(name and path for name, path in options.llama_bench):
        parser.error("--llama-bench: expected NAME=PATH, for example ik=/opt/ik/llama-bench")
    return options


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


def _run(test: Test, contenders: list[Contender], rounds: int) -> Outcome:
    """All rounds of one test; every other one in the opposite order."""
    outcome = Outcome(test)
    turns = [(one, variant) for one in contenders for variant in one.variants]
    for number in range(rounds):
        for one, variant in turns if number % 2 == 0 else reversed(turns):
            rate = one.measure(variant, test)
            if rate is not None:
                outcome.rates.setdefault((one.name, variant), []).append(rate)
        figures = ", ".join(f"{who} {rates[-1]:.1f}" for (who, _), rates in sorted(outcome.rates.items()))
        _progress(f"{test.name}, round {number + 1}/{rounds}: {figures}")
    return outcome


def _machine(threads: int) -> dict[str, Any]:
    """The processor as the system names it, its cores, and what ``threads`` threads read and multiply."""
    _progress("the machine's limits")
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
        "dot_gmac_per_s": dot_peak(threads) / 1e9,
    }


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
