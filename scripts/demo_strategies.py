"""The decoding strategies side by side on one prompt: a short tour of the Python API.

python scripts/demo_strategies.py [MODEL.gguf | NAME] [PROMPT]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from llmgen import LLM, LLMGenError, SamplingParams, hub

PROMPT = "The old lighthouse keeper opened the door and"

STRATEGIES: dict[str, SamplingParams | int] = {
    "greedy": SamplingParams(temp=0),
    "beam search, 4 beams": 4,
    "the defaults": SamplingParams(),
    "temperature alone, 1.0": SamplingParams(temp=1.0, top_k=0, top_p=1, min_p=0),
    "temperature alone, 1.8": SamplingParams(temp=1.8, top_k=0, top_p=1, min_p=0),
    "top-k 5": SamplingParams(temp=1.0, top_k=5, top_p=1, min_p=0),
    "top-p 0.7": SamplingParams(temp=1.0, top_k=0, top_p=0.7, min_p=0),
    "min-p 0.1 at 1.8": SamplingParams(
        temp=1.8, top_k=0, top_p=1, min_p=0.1, samplers=("temperature", "min_p")
    ),
    "typical 0.5": SamplingParams(temp=1.0, top_k=0, top_p=1, min_p=0, typical_p=0.5),
    "top-n-sigma 1 at 1.8": SamplingParams(temp=1.8, top_k=0, top_p=1, min_p=0, top_n_sigma=1.0),
    "Mirostat 2, tau 3": SamplingParams(temp=1.0, mirostat=2, mirostat_tau=3.0),
    "XTC, always": SamplingParams(xtc_probability=1.0),
    "greedy, repeat penalty 1.15": SamplingParams(temp=0, repeat_penalty=1.15),
    "greedy, DRY 0.8": SamplingParams(temp=0, dry_multiplier=0.8),
}
"""What to show: options, or the number of beams."""


def answers(llm: LLM, prompt: str, n_tokens: int = 48, seed: int = 1) -> Iterator[tuple[str, str]]:
    """The name of each strategy, and how it continues the prompt."""
    for name, strategy in STRATEGIES.items():
        if isinstance(strategy, int):
            best = llm.beams(prompt, strategy, SamplingParams(max_tokens=n_tokens))[0]
            yield name, best.result.text
        else:
            yield name, llm.generate(prompt, strategy.with_(max_tokens=n_tokens, seed=seed)).text


def find_model(name: str) -> str:
    """The path of a model, fetched first where it is a known name that is not here yet."""
    found = hub.find(name)
    return str(hub.fetch(found, hub.models_folder()) if isinstance(found, hub.KnownModel) else found)


def main() -> None:
    """Print the answers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="path or name (default: smollm2)")
    parser.add_argument("prompt", nargs="?", default=PROMPT, help=f"default: {PROMPT!r}")
    args = parser.parse_args()
    try:
        with LLM(find_model(args.model), n_ctx=1024) as llm:
            print(args.prompt)
            for name, text in answers(llm, args.prompt):
                print(f"\n[{name}]\n{text.strip()}", flush=True)
    except LLMGenError as error:
        parser.exit(error.exit_code, f"error: {error}\n")


if __name__ == "__main__":
    main()
