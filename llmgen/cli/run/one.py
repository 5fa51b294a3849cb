"""``llmgen run`` with one answer: streamed as text, or as JSON at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from llmgen.cli.common import exits
from llmgen.cli.common.endings import note_cuts
from llmgen.cli.common.stats import note_stats
from llmgen.cli.run.answers import Form, Head
from llmgen.cli.terminal.output import note, print_json
from llmgen.cli.terminal.plain import answer_writer
from llmgen.cli.terminal.progress import Bar, PromptBar
from llmgen.cli.terminal.streaming import follow
from llmgen.errors import LLMGenError

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.engine import GenerationResult, GenerationStream, SamplingParams


def print_one(
    llm: LLM, ids: list[int], sampling: SamplingParams, prompt_cache: Path | None, form: Form
) -> int:
    """Print the answer to a prompt, and on stderr what belongs to it; returns the exit code."""
    with _stream(llm, ids, sampling, prompt_cache) as stream:
        result = _print_json(stream, form.head) if form.json else _print_text(stream, form)
    if form.stats:
        note_stats(result, llm.model)
    else:
        note_cuts([result], llm.n_ctx)
        if not form.json and sampling.seed is None and not sampling.greedy:
            note(f"seed {result.seed}")
    return exits.exit_code([result.finish_reason])


@contextmanager
def _stream(
    llm: LLM, ids: list[int], sampling: SamplingParams, prompt_cache: Path | None
) -> Iterator[GenerationStream]:
    """The stream of an answer, with a prompt cache file if one is wanted."""
    if prompt_cache is None:
        yield llm.stream(ids, sampling, on_prompt=PromptBar())
        return
    from llmgen.backends.cpu.cache_file import check_target, is_there

    found = is_there(prompt_cache)
    if not found:
        check_target(prompt_cache)
    with llm.session("prompt") as session:
        if found:
            session.load(prompt_cache)
        known = session.tokens
        if known != ids:
            check_target(prompt_cache)
        failure: LLMGenError | None = None

        def save(event: object = None) -> None:
            """Save once, when the cache holds just the prompt; a full disk must not cost the answer."""
            nonlocal known, failure
            if known != ids and session.cached_tokens == len(ids):
                known = ids
                try:
                    session.save(prompt_cache)
                except LLMGenError as error:
                    failure = error

        yield session.stream(ids, sampling, callback=save, on_prompt=PromptBar())
        save()  # there may have been no token
        if failure is not None:
            raise failure


def _print_text(stream: GenerationStream, form: Form) -> GenerationResult:
    """Write the text to stdout as it comes, then a line break, unless an error came before any text."""
    write, end = answer_writer(form.wraps, form.after_label)
    try:
        result = follow(stream, write)
    except BaseException:
        if stream.text:
            end()
            _end_line()
        raise
    end()
    _end_line()
    return result


def _end_line() -> None:
    sys.stdout.write("\n")
    sys.stdout.flush()


def _print_json(stream: GenerationStream, head: Head) -> GenerationResult:
    """Write the result as JSON at the end; after an error, what came before it."""
    try:
        with Bar("answer:", unit="tokens") as bar:
            events = count(1)
            return follow(stream, lambda text: bar.update(next(events)))
    finally:
        if stream.result is not None:
            print_json({**head(stream.result), **stream.result.as_dict()})
