"""What each kind of KV cache costs on a model: quality against f32, bytes, and time by depth.

    python scripts/kv_kinds.py MODEL.gguf [--tokens 4096] [--steps 64] [--text FILE] [--kinds f16 k=q8_0,v=q4_0]
        [--local 256]
    python scripts/kv_kinds.py MODEL.gguf --tokens 0 --depths 512 4096 16384 32768
    python scripts/kv_kinds.py MODEL.gguf --tokens 0 --plans 512 4096 16384 32768

Prints Markdown tables.  The text is this project's documentation unless one is given; its last tokens (--steps) are
computed one by one as if they had been generated.  --local: what local windows of so many keys
(--decode-local-window) cost these.

--depths: milliseconds of a generated token at each depth, the median of 16.  The cache is not computed but filled
with zeros, since a step takes as long whatever it holds.  --plans: the same with --decode-plan fixed and auto, in turn.
Times mean something only on a machine that does nothing else.  Prompts, memory and llama.cpp: long_context.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from llmgen.api_decode import settle_readings
from llmgen.backends.cpu.model import Model
from llmgen.engine.kv_measure import Quality, compare, step_seconds
from llmgen.gguf import GGUFFile
from llmgen.model.decode_config import DecodeConfig
from llmgen.model.kv_config import KV_KINDS
from llmgen.model.runs import Part
from llmgen.tokenizer import Tokenizer

DOCS = Path(__file__).parents[1] / "docs"
STEPS = 16
WARMING = 2
PLANS = ("fixed", "auto")


def main() -> None:
    options = arguments()
    text = options.text.read_text() if options.text else documentation()
    with GGUFFile.open(options.model) as file:
        ids = Tokenizer.from_gguf(file).encode_prompt(text)[: options.tokens]
        if ids:
            print(f"{options.model.name}, {len(ids)} tokens\n")
            if options.kinds:
                measure_quality(file, ids, options)
            if options.local:
                measure_local(file, ids, options)
        if options.depths:
            print("\nms of a generated token after a cache of so many tokens (filled with zeros)\n")
            measure_speed(file, options)
        if options.plans:
            print(
                "\nms of a generated token, best and median, after a cache of so many tokens (filled with zeros)\n"
            )
            measure_plans(file, options)


def measure_quality(file: GGUFFile, ids: list[int], options: argparse.Namespace) -> None:
    """Print each kind's quality against f32."""
    print_row(head := ["kind", "bytes a token", "NLL", "change", "ppl ratio", "mean KL", "same best token"])
    print_row(["---"] * len(head))
    sizes = {"n_ctx": len(ids), "n_threads": options.threads}
    reference = Model.load(file, kv_type="f32", **sizes)
    for kind in options.kinds:
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
    for window in options.local:
        model = Model.load(file, decode_plan=DecodeConfig("fixed", local_window=window), **sizes)
        quality = compare(reference, model, ids, steps)
        share = quality.tokens / steps
        figures = quality.delta_nll * share, quality.mean_kl * share, 1 - (1 - quality.same_top) * share
        print_row([str(window), f"{figures[0]:+.4f}", f"{figures[1]:.4f}", f"{figures[2]:.1%}"])
        model.close()
    reference.close()


def measure_speed(file: GGUFFile, options: argparse.Namespace) -> None:
    """Print the milliseconds of a generated token by kind and depth."""
    print_row(["kind", *map(str, options.depths)])
    print_row(["---"] * (1 + len(options.depths)))
    for kind in options.kinds:
        model = Model.load(file, n_ctx=max(options.depths), n_threads=options.threads, kv_type=kind)
        model.move_weights()
        settle_readings(model, options.depths, again=True)
        print_row([kind, *(f"{1000 * step_seconds(model, depth, STEPS):.2f}" for depth in options.depths)])
        model.close()


def measure_plans(file: GGUFFile, options: argparse.Namespace) -> None:
    """Print the same for two decode plans, whose steps take turns."""
    print_row(["kind", "depth", *PLANS, "ratio", "streams"])
    print_row(["---"] * (4 + len(PLANS)))
    sizes = {"n_ctx": max(options.plans), "n_threads": options.threads}
    for kind in options.kinds:
        models = [Model.load(file, kv_type=kind, decode_plan=plan, **sizes) for plan in PLANS]
        models[1].move_weights()
        settle_readings(models[1], options.plans, again=True)
        for depth in options.plans:
            taken = steps_in_turn(models, depth)
            best, median = ([1000 * f(times) for times in taken] for f in (min, statistics.median))
            cells = [f"{b:.2f} ({m:.2f})" for b, m in zip(best, median, strict=True)]
            streams = models[1].readings.choose(depth, 1).streams
            print_row([kind, str(depth), *cells, f"{best[0] / best[1]:.2f}", str(streams)])
        for model in models:
            model.close()


def steps_in_turn(models: list[Model], depth: int) -> list[list[float]]:
    """Seconds of generated tokens of each model at a depth."""
    seqs = [model.new_sequence() for model in models]
    taken: list[list[float]] = [[] for _ in models]
    for seq in seqs:
        seq.stand_in(depth - STEPS - WARMING)
    for number in range(STEPS + WARMING):
        for model, seq, times in zip(models, seqs, taken, strict=True):
            started = time.perf_counter()
            model.forward([Part(seq, [0])], "generated", lambda rows: None)
            if number >= WARMING:
                times.append(time.perf_counter() - started)
    for seq in seqs:
        seq.close()
    return taken


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
    parser.add_argument("--local", type=int, nargs="*", default=[])
    parser.add_argument("--text", type=Path)
    parser.add_argument("--kinds", nargs="*", default=list(KV_KINDS))
    for name in ("--depths", "--plans"):
        parser.add_argument(name, type=int, nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
