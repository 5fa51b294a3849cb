"""How much faster text comes with guesses, by the share of them that is right: the table of docs/speculation.md.

    python scripts/bench_speculation.py MODEL [--draft DRAFT] [--tokens 256] [--repetitions 3] [--parts table,texts]

1. What a run of 1 to 8 generated tokens costs, and a guess of the draft, each in plain steps.
2. A text is written plainly, then again with an oracle that knows it: each of its guesses is
   made wrong with a given probability.  So the speed at any acceptance is measured with all that a
   step does, on any model, also one of random weights.  The oracle runs the draft for each guess, and
   leaves its answer aside: here the draft may be of random weights and of any vocabulary, too.
3. Three texts, with the guesses of the draft, or of a lookup (what ``llmgen bench --draft`` tells).
4. Texts of four kinds (guessed_texts.py): how many of the draft's greedy guesses are right, one at each place, and
   what that gains, computed with the costs above, by a fixed number of guesses and by the draft's confidence
   (``confidence``).
5. The same texts, each plainly and with the draft at once, some tokens in turn, so that what else the machine does
   meets both alike (``answers``): with nothing known before, and again with what the answers before have shown.
6. With ``--llama-cpp PYTHON``, an interpreter that has llama-cpp-python, the same texts by llama.cpp with its draft
   model or its lookup (side_speculation.py).

``--parts`` and ``--texts`` choose among these, for a machine that is quiet only for a while.  Every figure is the best
of the repetitions.  Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from guessed_texts import TEXTS, Costs, places, report_confidence, side_by_side

from llmgen.api_speculation import OpenDraft
from llmgen.backends.cpu.model import Model
from llmgen.cli.bench import guessing
from llmgen.engine import Session, SpeculativeConfig
from llmgen.engine.speculation.speculator import Speculation, Speculator
from llmgen.gguf import GGUFFile
from llmgen.model.runs import Part
from llmgen.sampling.params import SamplingParams
from llmgen.sampling.rejection import Guess
from llmgen.tokenizer import Tokenizer

ACCEPTANCE = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
COUNTS = (1, 2, 3, 4, 5, 7)
PARTS = ("costs", "table", "texts", "confidence", "answers")


class Oracle(Speculator):
    """Knows the text; each guess is wrong with the probability 1 - ``acceptance``, and takes the draft's time."""

    def __init__(
        self, speculation: Speculation, text: Sequence[int], acceptance: float, draft: DraftTime | None
    ) -> None:
        super().__init__(speculation)
        self._text, self._acceptance, self._random = text, acceptance, random.Random(0)
        self._draft_time = draft

    def look_up(self, tokens: Sequence[int], most: int, n_sequences: int) -> list[Guess]:
        """The next tokens of the text, some of them spoilt."""
        self._kind, self._n_sequences = 1, n_sequences
        costs = self._speculation.costs
        n = self._pace.choose(most, self._kind, n_sequences, costs.guess_s)
        if n and self._draft_time:
            costs.guessed([1] * n, self._draft_time.run(n))
        following = self._text[len(tokens) : len(tokens) + n]
        return [
            Guess(token if self._random.random() < self._acceptance else token ^ 1) for token in following
        ]


class TextIsKnown(Speculation):
    """Guesses of an :class:`Oracle`."""

    def __init__(self, config: SpeculativeConfig, *oracle: Any) -> None:
        super().__init__(config)
        self._oracle = oracle

    def speculator(self) -> Speculator:
        return Oracle(self, *self._oracle)


class DraftTime:
    """A draft that computes and guesses nothing."""

    def __init__(self, model: Model, prompt: Sequence[int]) -> None:
        self.model, self._sequence, self._n = model, model.new_sequence(), len(prompt)
        model.prefill(self._sequence, prompt, logits="none")

    def run(self, n: int) -> float:
        """Compute n tokens one by one; seconds."""
        began = time.perf_counter()
        for token in range(n):
            self.model.forward([Part(self._sequence, [token], 1)], "guess", np.argmax)
        self._sequence.truncate(self._n)
        return time.perf_counter() - began


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
    draft: DraftTime | None = None,
) -> tuple[float, list[int]]:
    """Seconds after the first token, and all tokens; ``oracle``: the text, the acceptance, how many guesses a step."""
    params = SamplingParams(temp=0.0, max_tokens=args.tokens, ignore_eos=True)
    best, tokens = float("inf"), list[int]()
    for _ in range(args.repetitions):
        speculation = None
        if oracle is not None:
            config = SpeculativeConfig(lookup=True, adaptive=not oracle[2], k=oracle[2] or 4)
            speculation = TextIsKnown(config, *oracle[:2], draft)
        with Session(model, reuse="none", speculation=speculation) as session:
            stream = session.stream(prompt, params)
            tokens = [*prompt, next(stream).token_id]
            began = time.perf_counter()
            tokens += [event.token_id for event in stream if event.token_id is not None]
            best = min(best, time.perf_counter() - began)
    return best, tokens


def table(model: Model, prompt: Sequence[int], draft: DraftTime | None, args: argparse.Namespace) -> None:
    """Speed-up by acceptance and number of guesses, as Markdown."""
    plain, text = written(model, prompt, args, None)
    print(f"\nplain: {(args.tokens - 1) / plain:.1f} tokens/s; times as fast with guesses:\n")
    print("| right | " + " | ".join(f"{k} guesses" for k in COUNTS) + " | adaptive |")
    print("|---:" * (len(COUNTS) + 2) + "|")
    for acceptance in args.acceptance:
        cells = []
        for k in (*COUNTS, 0):
            seconds, again = written(model, prompt, args, (text, acceptance, k), draft)
            assert again == text, "the text has changed"
            cells.append(f"{plain / seconds:.2f}")
        print(f"| {acceptance:.0%} | " + " | ".join(cells) + " |", flush=True)


def confidence(model: Model, draft: Model, file: GGUFFile, costs: Costs, args: argparse.Namespace) -> None:
    """What guesses by the draft's confidence gain, by kind of text."""
    tokenizer = Tokenizer.from_gguf(file)
    found = {
        kind: [places(model, draft, tokenizer.encode_prompt(text), args.tokens) for text in texts]
        for kind, texts in TEXTS.items()
    }
    report_confidence(found, costs)


def answers(model: Model, file: GGUFFile, args: argparse.Namespace) -> None:
    """Whole answers, plainly and with guesses: first each as in a new program, then one after the other."""
    tokenizer = Tokenizer.from_gguf(file)
    with ExitStack() as stack:
        # what other programs have learned is left aside
        os.environ["LLMGEN_STATE"] = stack.enter_context(TemporaryDirectory())
        opened = stack.enter_context(closing(OpenDraft(SpeculativeConfig(draft=args.draft), file)))
        going_on = opened.speculation(model)
        for known, kind in itertools.product((False, True), args.kinds):
            for text in TEXTS[kind]:
                guesses = going_on if known else going_on.renewed()
                if not known:
                    guesses.warm_up()
                one = side_by_side(model, tokenizer.encode_prompt(text), args.tokens, guesses)
                right = "" if one.stats is None else f"{one.stats.accepted} of {one.stats.guessed} right"
                right += f" ({one.stats.idle})" if one.stats and one.stats.idle else ""
                plain, guessed = ((args.tokens - 1) / s for s in (one.plain_s, one.guessed_s))
                before = "earlier answers" if known else "nothing"
                print(
                    f"| {kind} | {before} | {plain:.1f} | {guessed:.1f} | {guessed / plain:.2f} | {right} |",
                    flush=True,
                )


def llama_cpp(file: GGUFFile, args: argparse.Namespace, threads: int) -> None:
    """The texts of ``llmgen bench --draft`` by llama.cpp."""
    tokenizer = Tokenizer.from_gguf(file)
    prompts = {name: tokenizer.encode_prompt(guessing.TEXTS[name]) for name in args.texts}
    command = [args.llama_cpp, str(Path(__file__).with_name("side_speculation.py")), args.model]
    command += [f"--threads={threads}", f"--repetitions={args.repetitions}", f"--k={args.k}"]
    command += [f"--draft={args.draft}"] if args.draft else []
    print("\nllama.cpp, tokens per second:", flush=True)
    subprocess.run(command, input=json.dumps(prompts), text=True, check=True)


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
    parser.add_argument(
        "--acceptance", type=float, nargs="+", default=ACCEPTANCE, help="shares of right guesses"
    )
    parser.add_argument(
        "--parts",
        default="costs,table,texts",
        help="of costs, table, texts, confidence, answers; models of random weights have costs and a table only",
    )
    parser.add_argument("--kinds", nargs="+", choices=TEXTS, default=list(TEXTS), help="of answers")
    parser.add_argument("--texts", nargs="+", choices=guessing.TEXTS, default=list(guessing.TEXTS))
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--k", type=int, default=4, help="guesses a step by llama.cpp")
    args = parser.parse_args()
    args.parts = set(args.parts.split(","))
    if unknown := args.parts - set(PARTS):
        parser.error(f"--parts: {min(unknown)!r} is none of {', '.join(PARTS)}")
    if not args.draft and args.parts & {"confidence", "answers"}:
        parser.error("confidence and answers are about a draft: give --draft")
    with ExitStack() as stack:
        file = stack.enter_context(GGUFFile.open(args.model))
        n_ctx = max(guessing.N_CTX, args.prompt + args.tokens + 8)
        model = Model.load(file, n_ctx=n_ctx, n_threads=args.threads)
        model.move_weights()
        stack.callback(model.close)
        generator = random.Random(1)
        prompt = [generator.randrange(1, 250) for _ in range(args.prompt)]
        costs = step_costs(model, prompt, args.repetitions) if args.parts & {"costs", "confidence"} else None
        if costs:
            print(
                f"a step: {costs[0] * 1e3:.2f} ms; of 1 to 8 tokens: "
                + " ".join(f"{c / costs[0]:.2f}" for c in costs),
                flush=True,
            )
        draft, options = None, dict[str, Any](lookup=True)
        if args.draft:
            options = {"draft": args.draft}
            draft = _draft_time(stack, args, model, prompt)
            if costs:
                guess_s = min(draft.run(8) for _ in range(5)) / 8
                print(f"a guess of the draft: {guess_s / costs[0]:.2f} steps", flush=True)
                if "confidence" in args.parts:
                    in_steps = Costs([cost / costs[0] for cost in costs], guess_s / costs[0])
                    confidence(model, draft.model, file, in_steps, args)
        if "table" in args.parts:
            table(model, prompt, draft, args)
        if "texts" in args.parts:
            print()
            texts = {name: guessing.TEXTS[name] for name in args.texts}
            for one in guessing.measure(model, file, SpeculativeConfig(**options), args.repetitions, texts):
                print({key: round(v, 3) if isinstance(v, float) else v for key, v in one.as_dict().items()})
        if "answers" in args.parts:
            answers(model, file, args)
        if args.llama_cpp:
            llama_cpp(file, args, model.n_threads)


def _draft_time(stack: ExitStack, args: argparse.Namespace, model: Model, prompt: Sequence[int]) -> DraftTime:
    """The draft, which shares the model's threads."""
    file = stack.enter_context(GGUFFile.open(args.draft))
    draft = Model.load(file, n_ctx=model.n_ctx, beside=model)
    draft.move_weights()
    stack.callback(draft.close)
    return DraftTime(draft, prompt)


if __name__ == "__main__":
    main()
