"""Prove on real models that guessing never changes the text, and report how many guesses are right.

    python scripts/check_speculation.py MODEL [--draft DRAFT] [--prompts 100] [--tokens 64] [--chains greedy,default]

Every prompt is answered without guesses and with them, for several chains of samplers and
seeds; token ids, texts and log-probabilities must be equal.  Then the same with the method
``reject``, whose texts may differ, to compare how many guesses each method accepts.  Exit
code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from llmgen import LLM, GenerationResult, SamplingParams, SpeculativeConfig

CHAINS = {
    "greedy": SamplingParams(temp=0.0),
    "default": SamplingParams(),
    "hot": SamplingParams(temp=1.3, top_k=0, top_p=1.0, min_p=0.02),
    "penalties": SamplingParams(repeat_penalty=1.15, dry_multiplier=0.8),
    "mirostat": SamplingParams(mirostat=2, mirostat_tau=4.0),
}
_THINGS = ("a lighthouse", "an old bicycle", "the number seven", "a river in winter", "a broken clock")
_KINDS = {
    "code": "Write a Python class for {}, with four methods and a docstring for each.",
    "prose": "Tell a short story about {}.",
    "chat": "What should I know about {} before I write to a friend about it?",
    "list": "Give a JSON list of ten objects with the keys name and reason, all about {}.",
    "rewriting": "Repeat this text with one change, say it in the past tense: I look at {} every morning. It is there"
    " when I leave the house, and it is there when I come back. Nobody else looks at {}, but I do.",
}


def prompts(n: int) -> list[tuple[str, str]]:
    """The kind and the text of n prompts, no two the same."""
    found = []
    for i in range(n):
        kind, form = list(_KINDS.items())[i % len(_KINDS)]
        thing = _THINGS[i // len(_KINDS) % len(_THINGS)]
        number = i // (len(_KINDS) * len(_THINGS))
        found.append((kind, form.format(thing, thing) + (f" (Version {number + 1}.)" if number else "")))
    return found


def answers(llm: LLM, args: argparse.Namespace, chain: str) -> Iterator[GenerationResult]:
    """The answer to each prompt, each with a seed of its own."""
    for seed, (_, text) in enumerate(prompts(args.prompts)):
        params = CHAINS[chain].with_(seed=seed, max_tokens=args.tokens, logprobs=1)
        if llm.chat_template is None:
            yield llm.generate(text, params)
        else:
            yield llm.chat([{"role": "user", "content": text}], params)


def opened(args: argparse.Namespace, **options: object) -> LLM:
    """The model; ``options`` of guessing, or none."""
    if not options:
        return LLM(args.model, n_ctx=args.ctx, n_threads=args.threads)
    config = SpeculativeConfig(draft=args.draft, lookup=args.draft is None or args.lookup, **options)  # type: ignore[arg-type]
    return LLM(args.model, n_ctx=args.ctx, n_threads=args.threads, speculation=config)


def acceptance(args: argparse.Namespace, found: list[GenerationResult]) -> str:
    """By kind of prompt and in all: how many guesses were right, and how many tokens a step gave."""
    figures = []
    for kind in (*_KINDS, "all"):
        chosen = [
            one.speculation
            for (its, _), one in zip(prompts(args.prompts), found, strict=True)
            if one.speculation and kind in (its, "all")
        ]
        guessed, steps = sum(one.guessed for one in chosen), sum(one.steps for one in chosen)
        right, tokens = sum(one.accepted for one in chosen), sum(one.tokens for one in chosen)
        share = f"{right / guessed:.0%}" if guessed else "-"
        figures.append(f"{kind} {share} ({tokens / max(steps, 1):.2f})")
    return ", ".join(figures)


def main() -> int:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument(
        "--lookup", action="store_true", help="beside the draft; without one, it is always used"
    )
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--chains", default=",".join(CHAINS))
    parser.add_argument("--methods", default="coupled,reject")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--k", type=int, default=4, help="guesses a step, always as many")
    parser.add_argument("--adaptive", action="store_true", help="as many guesses as pay on this machine")
    args = parser.parse_args()
    different = 0
    for chain in args.chains.split(","):
        with opened(args) as llm:
            plain = list(answers(llm, args, chain))
        for method in args.methods.split(","):
            with opened(args, method=method, k=args.k, adaptive=args.adaptive) as llm:
                found = list(answers(llm, args, chain))
            same = sum(
                (a.token_ids, a.text, a.logprobs) == (b.token_ids, b.text, b.logprobs)
                for a, b in zip(plain, found, strict=True)
            )
            print(f"{chain}, {method}: {same} of {len(plain)} texts the same", flush=True)
            print(f"  guesses right (tokens a step): {acceptance(args, found)}", flush=True)
            different += method == "coupled" and same < len(plain)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
