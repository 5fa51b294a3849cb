"""llama.cpp's guesses for scripts/bench_speculation.py, through llama-cpp-python's own draft API.

    python scripts/side_speculation.py MODEL [--draft DRAFT] < PROMPTS

PROMPTS is a JSON object of lists of token ids by name.  Each is continued greedily, plainly and with guesses; a line of
JSON for each tells the tokens per second, the best of the repetitions.  The draft is a second model, or what
followed the last tokens before (LlamaPromptLookupDecoding).  Imports nothing of llmgen: it runs under the Python that
has llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding


class ModelDraft(LlamaDraftModel):
    """A second model that guesses k tokens greedily; its cache follows by the longest common prefix."""

    def __init__(self, llama: Any, k: int) -> None:
        self._llama, self._k = llama, k

    def __call__(self, input_ids: Any, /, **_: Any) -> Any:
        """int32 [k]: how int32 [n] goes on."""
        found = []
        for token in self._llama.generate(input_ids.tolist(), temp=0.0):
            found.append(token)
            if len(found) == self._k:
                break
        return np.array(found, dtype=np.intc)


def continued(llama: Any, prompt: Sequence[int], n: int) -> tuple[float, list[int]]:
    """Tokens per second after the first, and all n."""
    llama.reset()
    tokens, began = list[int](), 0.0
    for token in llama.generate(list(prompt), temp=0.0):
        tokens.append(token)
        if len(tokens) == 1:
            began = time.perf_counter()
        if len(tokens) == n:
            break
    return (n - 1) / (time.perf_counter() - began), tokens


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--k", type=int, default=4, help="guesses a step")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    prompts = json.load(sys.stdin)
    n_ctx = max(map(len, prompts.values())) + args.tokens + 32
    options = {"n_ctx": n_ctx, "n_threads": args.threads, "n_threads_batch": args.threads, "verbose": False}
    if args.draft:
        guesser: Any = ModelDraft(Llama(args.draft, **options), args.k)
    else:
        guesser = LlamaPromptLookupDecoding(num_pred_tokens=args.k)
    plain, guessing = Llama(args.model, **options), Llama(args.model, draft_model=guesser, **options)
    for name, prompt in prompts.items():
        without, with_guesses = (
            max(continued(llama, prompt, args.tokens) for _ in range(args.repetitions))
            for llama in (plain, guessing)
        )
        same = without[1] == with_guesses[1]
        print(
            json.dumps({"text": name, "plain": without[0], "guessed": with_guesses[0], "same_tokens": same}),
            flush=True,
        )


if __name__ == "__main__":
    main()
