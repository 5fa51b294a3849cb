"""What each kind of KV cache costs on a model: quality against f32, bytes, and time by depth.

    python scripts/kv_kinds.py MODEL.gguf [--tokens 4096] [--text FILE] [--kinds f16,q8_0] [--depths 512,4096]

Prints a Markdown table.  The text is this project's documentation unless one is given; its last 64 tokens are computed
one by one as if they had been generated.  Times (a generated token at each depth, median of 16)
are measured only with --depths, and mean something only on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from llmgen.backends.cpu.model import Model
from llmgen.engine.kv_measure import Quality, compare, step_seconds
from llmgen.gguf import GGUFFile
from llmgen.model.kv_config import KV_KINDS
from llmgen.tokenizer import Tokenizer

DOCS = Path(__file__).parents[1] / "docs"
ONE_BY_ONE = 64
STEPS = 16


def main() -> None:
    options = arguments()
    depths = [int(depth) for depth in options.depths.split(",") if depth]
    text = options.text.read_text() if options.text else documentation()
    with GGUFFile.open(options.model) as file:
        tokenizer = Tokenizer.from_gguf(file)
        ids = tokenizer.encode_prompt(text)[: options.tokens]
        n_ctx = max(len(ids), *depths, 1)
        print(f"{options.model.name}, {len(ids)} tokens\n")
        head = ["kind", "bytes a token", "NLL", "change", "ppl ratio", "mean KL", "same best token"]
        print_row(head + [f"ms at {depth}" for depth in depths])
        print_row(["---"] * (len(head) + len(depths)))
        reference = Model.load(file, n_ctx=n_ctx, n_threads=options.threads, kv_type="f32")
        for kind in options.kinds.split(","):
            model = Model.load(file, n_ctx=n_ctx, n_threads=options.threads, kv_type=kind)
            quality = compare(reference, model, ids, min(ONE_BY_ONE, len(ids) // 2))
            seconds = [step_seconds(model, depth, STEPS) for depth in depths]
            print_row(row(kind, model.kv_bytes_per_token, quality, seconds))
            model.close()
        reference.close()


def row(kind: str, nbytes: int, quality: Quality, seconds: list[float]) -> list[str]:
    return [
        *(kind, f"{nbytes:,}", f"{quality.nll:.4f}", f"{quality.delta_nll:+.5f}", f"{quality.ppl_ratio:.5f}"),
        *(f"{quality.mean_kl:.2e}", f"{quality.same_top:.2%}", *(f"{1000 * s:.2f}" for s in seconds)),
    ]


def print_row(cells: list[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def documentation() -> str:
    return "\n".join((DOCS / f"{name}.md").read_text() for name in ("architecture", "generation", "python"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--kinds", default=",".join(KV_KINDS))
    parser.add_argument("--depths", default="")
    parser.add_argument("--threads", type=int, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
