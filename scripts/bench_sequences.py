"""Tokens per second of one sequence and of several in one forward pass.

    python scripts/bench_sequences.py MODEL.gguf [-s 1,8] [-n 96] [-r 5] [-t 2]

Whole calls of ``LLM.generate`` are timed, prompts and sampling included; the numbers of
sequences take turns, and the medians over the rounds count.  Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from llmgen import LLM, LLMGenError, SamplingParams

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


def measure(llm: LLM, counts: list[int], params: SamplingParams, rounds: int) -> dict[int, list[float]]:
    """Tokens per second of each number of sequences, round by round."""
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for round_ in range(rounds + 1):
        for count in rates:
            rate = tokens_per_second(llm, count, params)
            if round_:  # the first one warms up
                rates[count].append(rate)
    return rates


def numbers(text: str) -> list[int]:
    """Numbers of sequences, as typed."""
    counts = [int(count) for count in text.split(",")]
    if not all(1 <= count <= len(PROMPTS) for count in counts):
        raise argparse.ArgumentTypeError(f"numbers from 1 to {len(PROMPTS)} are expected, not {text}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="path of a .gguf file")
    parser.add_argument(
        "-s", "--sequences", type=numbers, default="1,8", help="numbers of sequences (default: 1,8)"
    )
    parser.add_argument("-n", "--tokens", type=int, default=96, help="tokens of an answer (default: 96)")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--temp", type=float, default=0.0)
    args = parser.parse_args()
    if args.tokens < 1 or args.rounds < 1:
        parser.error("--tokens and --rounds take numbers from 1 up")
    try:
        params = SamplingParams(max_tokens=args.tokens, temp=args.temp, seed=1, ignore_eos=True)
        with LLM(args.model, n_ctx=1024, n_threads=args.threads) as llm:
            rates = measure(llm, args.sequences, params, args.rounds)
    except LLMGenError as error:
        parser.exit(error.exit_code, f"error: {error}\n")
    for count in args.sequences:
        ratios = [a / b for a, b in zip(rates[count], rates[args.sequences[0]], strict=True)]
        print(
            f"{count} sequences: {median(rates[count]):7.1f} tokens/s, {median(ratios):.2f} times "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
