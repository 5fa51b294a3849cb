"""Write the examples of docs/generation.md anew: each strategy's answer to one prompt.

    python scripts/make_generation_docs.py

Everything outside of the two markers stays as it is.
"""

from __future__ import annotations

from pathlib import Path

from demo_strategies import PROMPT, STRATEGIES, answers, find_model

from llmgen import LLM, SamplingParams
from llmgen.sampling.checks import flag

PAGE = Path(__file__).resolve().parents[1] / "docs" / "generation.md"
BEGIN, END = "<!-- examples: begin -->", "<!-- examples: end -->"
_PLAIN = {"max_tokens", "seed"}


def flags(strategy: SamplingParams | int) -> str:
    """What to type for a strategy: the options that are not the default."""
    if isinstance(strategy, int):
        return f"--beams {strategy}"
    defaults = SamplingParams()
    parts = []
    for name, value in vars(strategy).items():
        if value != getattr(defaults, name) and name not in _PLAIN:
            shown = ";".join(value) if isinstance(value, tuple) else f"{value:g}"
            parts.append(f"{flag(name)} {shown!r}" if ";" in shown else f"{flag(name)} {shown}")
    return " ".join(parts)


def examples() -> str:
    """The section between the markers."""
    with LLM(find_model("smollm2"), n_ctx=1024) as llm:
        lines = [
            f"SmolLM2 135M continues *{PROMPT}* (`--raw --seed 1 -n 48`). A small model: the differences show,",
            "and so does nonsense.",
            "",
        ]
        for name, text in answers(llm, PROMPT):
            typed = flags(STRATEGIES[name])
            quoted = " / ".join(part.strip() for part in text.splitlines() if part.strip())
            lines += [
                f"**{name[0].upper() + name[1:]}**" + (f" `{typed}`" if typed else ""),
                "",
                f"> {quoted}",
                "",
            ]
    return "\n".join(lines)


def main() -> None:
    """Replace the section."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{examples()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
