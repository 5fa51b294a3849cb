"""How much faster text comes with guesses, by the share of them that is right: the table of docs/speculation.md.

    python scripts/bench_speculation.py MODEL [--draft DRAFT] [--tokens 256] [--repetitions 3]

1. What a run of 1 to 8 generated tokens costs, and a guess of the draft, each in plain steps.
2. A text is written plainly, then again with an oracle that knows it: each of its guesses is
   made wrong with a given probability.  So the speed at any acceptance is measured with all that a
   step does, on any model, also one of random weights; a draft's time is added from 1.
3. Three texts, with the guesses of the draft, or of a lookup (what ``llmgen bench --draft`` tells).

Every figure is the best of the repetitions.  Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from llmgen.backends.cpu.model import Model
from llmgen.cli.bench import guessing
from llmgen.engine import Session, SpeculativeConfig
from llmgen.engine.speculation.speculator import Speculation, Speculator
from llmgen.gguf import GGUFFile
from llmgen.model.runs import Part
from llmgen.sampling.params import SamplingParams
from llmgen.sampling.rejection import Guess

ACCEPTANCE = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
COUNTS = (1, 2, 3, 4, 5, 7)


class Oracle(Speculator):
    """Knows the text; each guess is wrong with the probability 1 - ``acceptance``."""

    def __init__(self, speculation: Speculation, text: Sequence[int], acceptance: float) -> None:
        super().__init__(speculation)
        self._text, self._acceptance, self._random = text, acceptance, random.Random(0)

    def look_up(self, tokens: Sequence[int], most: int, n_sequences: int) -> list[Guess]:
        """The next tokens of the text, some of them spoilt."""
        self._kind, self._n_sequences = 1, n_sequences
        n = self._pace.choose(most, self._kind, n_sequences)
        following = self._text[len(tokens) : len(tokens) + n]
        return [
            Guess(token if self._random.random() < self._acceptance else token ^ 1) for token in following
        ]


def step_costs(model: Model, prompt: Sequence[int], repetitions: int) -> list[float]:
    """Seconds of a run of 1 to 8 generated tokens after the prompt: medians, the best of the repetitions."""
    found = []
    with closing(model.new_sequence()) as seq:
        model.prefill(seq, prompt, logits="none")
        for n in range(1, 9):
            medians = []
            for _ in range(repetitions):
                times = []
                for _ in range(15):
                    began = time.perf_counter()
                    model.forward([Part(seq, list(prompt[:n]), n)], "generated", lambda rows: None)
                    times.append(time.perf_counter() - began)
                    seq.truncate(len(prompt))
                medians.append(float(np.median(times)))
            found.append(min(medians))
    return found


def written(
    model: Model,
    prompt: Sequence[int],
    args: argparse.Namespace,
    oracle: tuple[Sequence[int], float, int] | None,
) -> tuple[float, list[int]]:
    """Seconds of the decoding, and all tokens; ``oracle``: the text, the acceptance, how many guesses a step."""
    params = SamplingParams(temp=0.0, max_tokens=args.tokens)
    best, tokens = float("inf"), list[int]()
    for _ in range(args.repetitions):
        speculation = None
        if oracle is not None:
            config = SpeculativeConfig(lookup=True, adaptive=not oracle[2], k=oracle[2] or 4)
            speculation = Speculation(config)
        with Session(model, reuse="none", speculation=speculation) as session:
            if speculation is not None and oracle is not None:
                session._speculator = Oracle(speculation, *oracle[:2])
            result = session.generate(prompt, params)
        best = min(best, result.timings.decode_s)
        tokens = [*prompt, *result.token_ids]
    return best, tokens


def table(model: Model, prompt: Sequence[int], draft_s: float, args: argparse.Namespace) -> None:
    """Speed-up by acceptance and number of guesses, as Markdown."""
    plain, text = written(model, prompt, args, None)
    print(f"\nplain: {(args.tokens - 1) / plain:.1f} tokens/s; times as fast with guesses:\n")
    print("| right | " + " | ".join(f"{k} guesses" for k in COUNTS) + " | adaptive |")
    print("|---:" * (len(COUNTS) + 2) + "|")
    for acceptance in ACCEPTANCE:
        cells = []
        for k in (*COUNTS, 0):
            seconds, again = written(model, prompt, args, (text, acceptance, k))
            assert again == text, "the text has changed"
            steps = (args.tokens - 1) / sum(acceptance**i for i in range(k + 1)) if k else 0
            cells.append(f"{plain / (seconds + steps * k * draft_s):.2f}")
        print(f"| {acceptance:.0%} | " + " | ".join(cells) + " |", flush=True)
    if draft_s:
        print("\nThe draft's time is in all columns but the last.")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=128, help="tokens before them, at random")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--no-texts", action="store_true", help="leave out 3, for models of random weights")
    args = parser.parse_args()
    with ExitStack() as stack:
        file = stack.enter_context(GGUFFile.open(args.model))
        n_ctx = max(guessing.N_CTX, args.prompt + args.tokens + 8)
        model = Model.load(file, n_ctx=n_ctx, n_threads=args.threads)
        stack.callback(model.close)
        generator = random.Random(1)
        prompt = [generator.randrange(1, 250) for _ in range(args.prompt)]
        costs = step_costs(model, prompt, args.repetitions)
        print(
            f"a step: {costs[0] * 1e3:.2f} ms; of 1 to 8 tokens: "
            + " ".join(f"{c / costs[0]:.2f}" for c in costs)
        )
        draft_s, options = 0.0, dict[str, Any](lookup=True)
        if args.draft:
            options = {"draft": args.draft}
            draft_s = _draft_step(args, model, prompt)
            print(f"a guess of the draft: {draft_s / costs[0]:.2f} steps")
        table(model, prompt, draft_s, args)
        if not args.no_texts:
            print()
            for one in guessing.measure(model, file, SpeculativeConfig(**options), args.repetitions):
                print({key: round(v, 3) if isinstance(v, float) else v for key, v in one.as_dict().items()})


def _draft_step(args: argparse.Namespace, model: Model, prompt: Sequence[int]) -> float:
    """Seconds of a plain step of the draft, which shares the model's threads."""
    with GGUFFile.open(args.draft) as file:
        draft = Model.load(file, n_ctx=model.n_ctx, beside=model)
        try:
            return step_costs(draft, prompt, args.repetitions)[0]
        finally:
            draft.close()


if __name__ == "__main__":
    main()
