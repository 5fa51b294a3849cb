"""Tokens per second of one sequence and of several in one forward pass.

    python scripts/bench_sequences.py MODEL.gguf [-s 1,8] [-n 96] [-r 5] [-t 2]

Whole calls of ``LLM.generate`` are timed, prompts and sampling included; the numbers of
sequences take turns, and the medians over the rounds count.  Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from llmgen import LLM, SamplingParams

PROMPTS = [
    "Once upon a time there was",
    "The sea is",
    "A list of",
    "In the year",
    "My favourite",
    "How to",
    "The cat",
    "When I",
]


def tokens_per_second(llm: LLM, n: int, params: SamplingParams) -> float:
    """Of all n answers together."""
    started = time.perf_counter()
    results = llm.generate(PROMPTS[:n], params)
    return sum(len(result.token_ids) for result in results) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("-s", "--sequences", default="1,8", help="numbers of sequences (default: 1,8)")
    parser.add_argument("-n", "--tokens", type=int, default=96, help="tokens of an answer (default: 96)")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--temp", type=float, default=0.0)
    args = parser.parse_args()
    counts = [int(count) for count in args.sequences.split(",")]
    if not all(1 <= count <= len(PROMPTS) for count in counts):
        parser.error(f"--sequences takes numbers from 1 to {len(PROMPTS)}, not {args.sequences}")
    params = SamplingParams(max_tokens=args.tokens, temp=args.temp, seed=1, ignore_eos=True)
    rates: dict[int, list[float]] = {count: [] for count in counts}
    with LLM(args.model, n_ctx=1024, n_threads=args.threads) as llm:
        for round_ in range(args.rounds + 1):
            for count in counts:
                rate = tokens_per_second(llm, count, params)
                if round_:  # the first one warms up
                    rates[count].append(rate)
    for count in counts:
        ratios = [a / b for a, b in zip(rates[count], rates[counts[0]], strict=True)]
        print(
            f"{count} sequences: {median(rates[count]):7.1f} tokens/s, {median(ratios):.2f} times "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
