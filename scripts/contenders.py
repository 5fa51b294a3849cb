"""The programs that scripts/compare.py lets run in turn: llmgen, llama.cpp's library, llama-bench binaries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

HERE = Path(__file__).resolve().parent
FLASH = ("flash off", "flash on")
CHECK_PROMPT, CHECK_STEPS = 24, 7  # tokens whose logits are compared before anything is timed


@dataclass(frozen=True)
class Test:
    """``ids`` appended after ``prefix``: as a prompt ('prefill') or one at a time ('decode')."""

    kind: str
    prefix: list[int]
    ids: list[int]

    @property
    def name(self) -> str:
        return f"{self.kind} {len(self.ids)} at {len(self.prefix)}"


class Contender(Protocol):
    """A program with one or more settings (variants); the best of them counts, test by test."""

    name: str
    variants: tuple[str, ...]
    facts: dict[str, Any]

    def __enter__(self) -> Contender:
        """Start it.  Raises SystemExit with its reason if it cannot run."""

    def __exit__(self, *_: object) -> None:
        """Let it end."""

    def measure(self, variant: str, test: Test) -> float | None:
        """Tokens per second of one run; None if the program cannot run this test."""

    @property
    def idle_share(self) -> float:
        """Of a core, what the program took while others were measured."""


class Side:
    """A process that loads the model once and then measures what it is told; see side.py."""

    def __init__(
        self,
        name: str,
        variants: tuple[str, ...],
        command: list[str],
        options: dict[str, Any],
        settle_s: float,
    ) -> None:
        self.name = name
        self.variants = variants
        self.facts: dict[str, Any] = {}
        self._command = command
        self._options = options
        self._settle_s = settle_s
        self._idle_s = self._idle_cpu_s = 0.0

    def __enter__(self) -> Side:
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
        self._signal("SIGCONT")
        self._process.kill()
        self._process.wait()

    def measure(self, variant: str, test: Test) -> float:
        """Tokens per second of one run of a test."""
        command = {"do": test.kind, "variant": variant, "prefix": test.prefix, "ids": test.ids}
        return len(test.ids) / float(self._ask(command)["seconds"])

    def logits(self, ids: list[int], folder: str) -> np.ndarray:
        """Logits after the first CHECK_PROMPT ids and after each one behind them, float64 [n, n_vocab]."""
        file = str(Path(folder) / f"{self.name}.npy")
        prefix, rest = ids[:CHECK_PROMPT], ids[CHECK_PROMPT:]
        command = {"do": "logits", "variant": self.variants[0], "prefix": prefix, "ids": rest, "file": file}
        self._ask(command)
        return np.load(file).astype(np.float64)

    @property
    def idle_share(self) -> float:
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


def llmgen(settings: dict[str, Any], settle_s: float, level: str | None = None) -> Side:
    """Our own side, at a kernel level if one is given."""
    command = [sys.executable, str(HERE / "side_llmgen.py")]
    return Side(
        f"llmgen {level}" if level else "llmgen",
        ("default",),
        command,
        {**settings, "level": level},
        settle_s,
    )


def llama_cpp(python: str, settings: dict[str, Any], settle_s: float) -> Side:
    """llama.cpp's library, as the Python interpreter ``python`` has it."""
    return Side("llama.cpp", FLASH, [python, str(HERE / "side_llama_cpp.py")], settings, settle_s)


class LlamaBench:
    """A llama-bench binary of llama.cpp or of a fork of it, started anew for each run.

    It warms up by itself and leaves loading out of its figures.  Binaries that know no depth
    cannot time a prompt after other tokens; generation there is timed by ``-gp``.
    """

    idle_share = 0.0
    variants = FLASH

    def __init__(self, name: str, binary: str, model: str, threads: int) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        self._command = [binary, "-m", model, "-t", str(threads), "-r", "1", "-ngl", "0", "-o", "json"]

    def __enter__(self) -> LlamaBench:
        rows = self._run(["-p", "8", "-n", "0"])
        keys = ("build_commit", "cpu_info", "n_batch", "n_ubatch", "type_k")
        self.facts = {key: rows[-1].get(key) for key in keys}
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, variant: str, test: Test) -> float | None:
        n, depth = str(len(test.ids)), str(len(test.prefix))
        if test.kind == "prefill":
            what = ["-p", n, "-n", "0"] if not test.prefix else None
        else:
            what = ["-p", "0", "-n", "0", "-gp", f"{depth},{n}"] if test.prefix else ["-p", "0", "-n", n]
        if what is None:
            return None
        return float(self._run([*what, "-fa", str(FLASH.index(variant))])[-1]["avg_ts"])

    def _run(self, what: list[str]) -> list[dict[str, Any]]:
        try:
            done = subprocess.run([*self._command, *what], capture_output=True, text=True, check=True)
            rows: list[dict[str, Any]] = json.loads(done.stdout)
        except OSError as error:
            raise SystemExit(f"cannot start {self._command[0]}: {error}") from error
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines()[-1:]
            raise SystemExit(f"{self.name} failed: {' '.join(lines)}") from error
        except json.JSONDecodeError as error:
            raise SystemExit(f"{self.name} printed no JSON: {error}") from error
        if not rows:
            raise SystemExit(f"{self.name} measured nothing")
        return rows


def agreement(ours: Side, theirs: Side, ids: list[int]) -> dict[str, Any]:
    """Whether both compute the same: mean KL(theirs || ours), positions with the same best token."""
    with tempfile.TemporaryDirectory() as folder:
        a, b = (_log_softmax(side.logits(ids, folder)) for side in (theirs, ours))
    return {
        "mean_kl": float(np.mean(np.sum(np.exp(a) * (a - b), axis=1))),
        "same_best_token": int(np.sum(a.argmax(axis=1) == b.argmax(axis=1))),
        "positions": len(a),
    }


def _log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows - rows.max(axis=1, keepdims=True)
    result: np.ndarray = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return result


def context(longest: int) -> int:
    """Tokens of context for ``longest`` tokens; llama.cpp rounds up like this."""
    return -(-(longest + 1) // 256) * 256


def settings(model: str, threads: int, longest: int) -> dict[str, Any]:
    """What each :class:`Side` is told to load."""
    return {"model": os.path.abspath(model), "threads": threads, "n_ctx": context(longest)}
