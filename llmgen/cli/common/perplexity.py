"""The perplexity of a text, with a bar while it is computed: for the commands that give one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llmgen.cli.common.texts import text_in
from llmgen.cli.terminal.progress import Bar
from llmgen.errors import LLMGenError
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.engine.perplexity import Perplexity, Window

WINDOW = 512
"""Tokens of a window, unless another number is asked for."""
_MOST_BYTES = 256 << 20


def read_text(file: Path) -> str:
    """The text of a file in UTF-8; ``-`` is stdin."""
    if str(file) == "-":
        return text_in(sys.stdin.buffer, "stdin", _MOST_BYTES)
    with open(file, "rb") as stream:
        return text_in(stream, visible(file), _MOST_BYTES)


def measure_text(
    llm: LLM, ids: list[int], parts: list[Window], what: str = "text"
) -> tuple[Perplexity | None, BaseException | None]:
    """The last figures, and the error that ended it early, if any: they are valid then too."""
    from llmgen.engine.perplexity import measure

    tokenizer = llm.tokenizer
    figures: Perplexity | None = None
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    total, done = sum(part.stop - part.start - 1 for part in parts), 0

    def show(n_tokens: int = 0) -> None:
        nonlocal done
        done += n_tokens
        bar.update(done, "" if figures is None else f"perplexity {figures.perplexity:.4f} so far")

    with Bar(what, total, "tokens") as bar:
        try:
            show()
            for found in measure(llm.model, ids, parts, bos, show):
                figures = found
                show()
        except (KeyboardInterrupt, LLMGenError, MemoryError) as error:
            return figures, error
    return figures, None
