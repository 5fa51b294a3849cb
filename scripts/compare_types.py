"""A table of every quantization type: llmgen, its peers, and llmgen at a lower kernel level.

    python scripts/compare_types.py TABLE.md [--types Q4_K,IQ3_S] [--shape 480m] [-p 256] [-n 32] [-r 2] [-t 2]
                                    [--llama-python PATH] [--llama-bench NAME=PATH ...] [--level avx2]

Type by type: a model of random weights is written (``make_random_model.py``), our kernels are compiled,
``compare.py`` measures, the model is deleted, and a row is appended to TABLE.md.  Types that have a row there
are left out, so that a table can be continued; one that cannot be measured is passed over.
``--under COMMAND`` runs each measurement under another command, for example ``--under 'taskset -c 0,1'``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from comparison_report import TypeTable
from make_random_model import SHAPES, TYPES

from llmgen.backends.cpu.kernels.quants import TABLE

QUANTIZED = [name for name in TYPES if not TABLE[name.lower()].is_float]
HERE = Path(__file__).resolve().parent


def main() -> None:
    """Append the rows that are missing; progress goes to stderr."""
    options = _options()
    table = TypeTable(options.table, [name for name, _ in options.llama_bench], options.level)
    done = table.types()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.types:
            if name in done:
                continue
            model = Path(folder) / f"{name}.gguf"
            try:
                table.append(name, _report(name, model, options))
            except subprocess.CalledProcessError as error:
                print(f"no row for {name}: {error}", file=sys.stderr)
            finally:
                model.unlink(missing_ok=True)


def _report(name: str, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What compare.py finds out about a type."""
    _run([str(HERE / "make_random_model.py"), str(model), "--type", name, "--shape", options.shape])
    for level in (None, options.level):
        _run(["-m", "llmgen", "warmup", str(model)], level)
    return _measured(model, options)


def _run(arguments: list[str], level: str | None = None) -> None:
    """A Python program in a process of its own, whose output goes to stderr."""
    environment = {**os.environ, **({"LLMGEN_KERNEL_LEVEL": level} if level else {})}
    subprocess.run([sys.executable, *arguments], env=environment, stdout=sys.stderr, check=True)


def _measured(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The report of compare.py on one model."""
    command = [*options.under, sys.executable, str(HERE / "compare.py"), str(model), "--json", "-d", "0"]
    for flag in ("prompt", "generate", "rounds", "threads", "llama_python", "level"):
        command += [f"--{flag.replace('_', '-')}", str(getattr(options, flag))]
    for name, path in options.llama_bench:
        command += ["--llama-bench", f"{name}={path}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    (report,) = json.loads(done.stdout)
    found: dict[str, Any] = report
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path, metavar="TABLE.md", help="where the rows go")
    parser.add_argument("--types", default=",".join(QUANTIZED), help="which types, with commas between them")
    parser.add_argument("--shape", choices=SHAPES, default="480m")
    parser.add_argument("--folder", type=Path, help="where the models are written meanwhile")
    parser.add_argument("--under", type=shlex.split, default=[], metavar="COMMAND", help="runs compare.py")
    parser.add_argument("-p", "--prompt", type=int, default=256)
    parser.add_argument("-n", "--generate", type=int, default=32)
    parser.add_argument("-r", "--rounds", type=int, default=2)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--level", default="avx2", help="the lower kernel level")
    parser.add_argument("--llama-python", default=sys.executable, help="as for compare.py")
    parser.add_argument("--llama-bench", action="append", default=[], metavar="NAME=PATH")
    options = parser.parse_args()
    options.types = options.types.split(",")
    unknown = [name for name in options.types if name not in TYPES]
    if unknown:
        parser.error(f"--types: {unknown[0]} is none of {', '.join(TYPES)}")
    options.llama_bench = [tuple(one.partition("=")[::2]) for one in options.llama_bench]
    return options


if __name__ == "__main__":
    main()
