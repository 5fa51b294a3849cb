"""What each kind of KV cache costs on a model: quality against f32, bytes, and time by depth.

    python scripts/kv_kinds.py MODEL.gguf [--tokens 4096] [--steps 64] [--text FILE] [--kinds f16,q8_0] [--local 256]
    python scripts/kv_kinds.py MODEL.gguf --tokens 0 --depths 512,4096,16384,32768 [--llama-bench PATH]

Prints Markdown tables.  The text is this project's documentation unless one is given; its last tokens (--steps) are
computed one by one as if they had been generated.  --local: what local windows of so many keys
(--decode-local-window) cost these.

--depths: milliseconds of a generated token at each depth, the median of 16.  The cache is not computed but filled
with zeros, since a step takes as long whatever it holds; --llama-bench measures llama.cpp's kinds beside it, with flash
attention, after a prompt of that depth.  Times mean something only on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from llmgen.backends.cpu.model import Model
from llmgen.engine.kv_measure import Quality, compare, step_seconds
from llmgen.gguf import GGUFFile
from llmgen.model.decode_config import DecodeConfig
from llmgen.model.kv_config import KV_KINDS
from llmgen.tokenizer import Tokenizer

DOCS = Path(__file__).parents[1] / "docs"
STEPS = 16
THEIRS = ("f16", "q8_0", "q4_0")
"""Kinds that llama.cpp has under the same names."""


def main() -> None:
    options = arguments()
    depths = [int(depth) for depth in options.depths.split(",") if depth]
    text = options.text.read_text() if options.text else documentation()
    with GGUFFile.open(options.model) as file:
        ids = Tokenizer.from_gguf(file).encode_prompt(text)[: options.tokens]
        if ids:
            print(f"{options.model.name}, {len(ids)} tokens\n")
            if options.kinds:
                measure_quality(file, ids, options)
            if options.local:
                measure_local(file, ids, options)
        if depths:
            print("\nms of a generated token after a cache of so many tokens (filled with zeros)\n")
            measure_speed(file, depths, options)
    if depths and options.llama_bench:
        print("\nthe same with llama.cpp, flash attention, after a prompt of so many tokens\n")
        measure_llama(depths, options)


def measure_quality(file: GGUFFile, ids: list[int], options: argparse.Namespace) -> None:
    """Print each kind's quality against f32."""
    print_row(head := ["kind", "bytes a token", "NLL", "change", "ppl ratio", "mean KL", "same best token"])
    print_row(["---"] * len(head))
    sizes = {"n_ctx": len(ids), "n_threads": options.threads}
    reference = Model.load(file, kv_type="f32", **sizes)
    for kind in options.kinds.split(","):
        model = Model.load(file, kv_type=kind, **sizes)
        quality = compare(reference, model, ids, min(options.steps, len(ids) // 2))
        print_row(row(kind, model.kv_bytes_per_token, quality))
        model.close()
    reference.close()


def measure_local(file: GGUFFile, ids: list[int], options: argparse.Namespace) -> None:
    """Print what local windows cost the tokens that are computed one by one; those before them are the same."""
    steps = min(options.steps, len(ids) // 2)
    print(f"\nlocal windows against all keys, the last {steps} tokens\n")
    print_row(head := ["window", "change of NLL", "mean KL", "same best token"])
    print_row(["---"] * len(head))
    sizes = {"n_ctx": len(ids), "n_threads": options.threads}
    reference = Model.load(file, **sizes)
    for window in map(int, options.local.split(",")):
        model = Model.load(file, decode_plan=DecodeConfig("fixed", local_window=window), **sizes)
        quality = compare(reference, model, ids, steps)
        share = quality.tokens / steps
        figures = quality.delta_nll * share, quality.mean_kl * share, 1 - (1 - quality.same_top) * share
        print_row([str(window), f"{figures[0]:+.4f}", f"{figures[1]:.4f}", f"{figures[2]:.1%}"])
        model.close()
    reference.close()


def measure_speed(file: GGUFFile, depths: list[int], options: argparse.Namespace) -> None:
    """Print the milliseconds of a generated token by kind and depth."""
    print_row(["kind", *map(str, depths)])
    print_row(["---"] * (1 + len(depths)))
    for kind in options.kinds.split(","):
        model = Model.load(file, n_ctx=max(depths), n_threads=options.threads, kv_type=kind)
        print_row([kind, *(f"{1000 * step_seconds(model, depth, STEPS):.2f}" for depth in depths)])
        model.close()


def measure_llama(depths: list[int], options: argparse.Namespace) -> None:
    """Print the same for llama.cpp's kinds."""
    print_row(["kind", *map(str, depths)])
    print_row(["---"] * (1 + len(depths)))
    threads = ["-t", str(options.threads)] if options.threads else []
    for kind in (kind for kind in options.kinds.split(",") if kind in THEIRS):
        cells = []
        for depth in depths:
            command = [options.llama_bench, "-m", str(options.model), "-p", "0", "-n", str(STEPS), *threads]
            command += ["-d", str(depth), "-ctk", kind, "-ctv", kind, "-fa", "1", "-r", "1", "-o", "json"]
            [result] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            cells.append(f"{1000 / result['avg_ts']:.2f}")
        print_row([kind, *cells])


def row(name: str, nbytes: int, quality: Quality) -> list[str]:
    return [
        *(name, f"{nbytes:,}", f"{quality.nll:.4f}", f"{quality.delta_nll:+.5f}", f"{quality.ppl_ratio:.5f}"),
        *(f"{quality.mean_kl:.2e}", f"{quality.same_top:.2%}"),
    ]


def print_row(cells: list[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def documentation() -> str:
    return "\n".join((DOCS / f"{name}.md").read_text() for name in ("architecture", "generation", "python"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--local", default="")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--kinds", default=",".join(KV_KINDS))
    parser.add_argument("--depths", default="")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--llama-bench", help="the path of llama.cpp's llama-bench")
    return parser.parse_args()


if __name__ == "__main__":
    main()
