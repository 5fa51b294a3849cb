"""``llmgen run``: one completion, streamed to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from llmgen import hub
from llmgen.cli import exits
from llmgen.cli.loading import has_template, open_llm
from llmgen.cli.models import ModelArgument, model_path
from llmgen.cli.options import EngineOptions, model_options, sampling_options
from llmgen.cli.output import generated, note, print_json
from llmgen.cli.stdin import piped_text
from llmgen.errors import UsageError
from llmgen.generation.params import SamplingParams

if TYPE_CHECKING:
    from llmgen.generation import GenerationResult, GenerationStream


@model_options
@sampling_options
def command(
    model: ModelArgument,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt; text that is piped in is appended to it."),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text as it stands, without the chat template.")
    ] = False,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Leave stdin alone.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object at the end, no streaming.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Speeds on stderr at the end.")] = False,
    *,
    engine: EngineOptions,
    sampling: SamplingParams,
) -> None:
    """Complete one prompt.

    The model's chat template is applied when it has one, unless --raw is given.
    Text that is piped in follows the prompt on a new line (with --raw, at once), or
    is the prompt. Ctrl-C stops the answer and keeps the text so far.
    """
    if raw and system is not None:
        raise UsageError("--system needs the chat template that --raw leaves out; give one of them")
    if sampling.logprobs is not None and not json:
        raise UsageError("--logprobs can only be shown by --json; add it, or leave --logprobs out")
    hub.find(model)  # refuses before stdin is read, where model_path might also download
    text = _prompt(prompt, no_stdin, raw)
    path = model_path(model)
    if system is not None and not has_template(path):
        raise UsageError("--system needs a chat template, and this model has none; leave --system out")
    with open_llm(path, engine) as llm:
        if raw or llm.chat_template is None:
            stream = llm.stream(text, sampling)
        else:
            stream = llm.stream_chat(_messages(system, text), sampling)
        result = _print_json(stream) if json else _print_text(stream)
        if stats:
            _note_stats(result)
        elif not json and sampling.seed is None and not sampling.greedy:
            note(f"seed {result.seed}")
    code = {"timeout": exits.TIMEOUT, "interrupted": exits.INTERRUPTED}.get(result.finish_reason, exits.DONE)
    if code != exits.DONE:
        raise typer.Exit(code)


def _prompt(prompt: str | None, no_stdin: bool, raw: bool) -> str:
    """The prompt with what is piped in; the last line break of piped text is not part of a message."""
    piped = None if no_stdin else piped_text(announce=prompt is not None)
    if prompt is None and not piped:
        raise UsageError("there is no prompt; give PROMPT after the model's name, or pipe text in")
    if not piped:
        return prompt or ""
    if raw:
        return (prompt or "") + piped
    return "\n".join(part for part in (prompt, piped.removesuffix("\n")) if part)


def _messages(system: str | None, text: str) -> list[dict[str, str]]:
    briefing = [] if system is None else [{"role": "system", "content": system}]
    return [*briefing, {"role": "user", "content": text}]


def _consume(stream: GenerationStream, show: Callable[[str], None]) -> GenerationResult:
    """Show the text as it comes; Ctrl-C between two tokens ends the answer as it does within one."""
    try:
        for event in stream:
            show(event.text)
    except KeyboardInterrupt:
        stream.close()
    assert stream.result is not None
    return stream.result


def _print_text(stream: GenerationStream) -> GenerationResult:
    """Write the text to stdout as it comes, then one line break, whatever ended it."""
    try:
        return _consume(stream, _write)
    finally:
        _write("\n")


def _print_json(stream: GenerationStream) -> GenerationResult:
    """Write the result as JSON once it is there; after an error, what there was before it."""
    try:
        return _consume(stream, lambda text: None)
    finally:
        if stream.result is not None:
            print_json(stream.result.as_dict())


def _write(text: str) -> None:
    if text:
        sys.stdout.write(generated(text))
        sys.stdout.flush()


def _note_stats(result: GenerationResult) -> None:
    """Speeds and the seed, on stderr."""
    t = result.timings
    cached = f" ({t.cached_tokens} of them cached)" if t.cached_tokens else ""
    first = "" if t.ttft_s is None else f", first token after {t.ttft_s:.3f} s"
    speed = _rate(t.prefill_tokens_per_s)
    note(f"prompt: {result.prompt_tokens} tokens{cached} in {t.prefill_s:.3f} s{speed}{first}")
    note(f"answer: {result.completion_tokens} tokens in {t.decode_s:.3f} s{_rate(t.decode_tokens_per_s)}")
    note(f"ended: {result.finish_reason} ({result.finish_detail}); seed {result.seed}")


def _rate(tokens_per_s: float | None) -> str:
    return "" if tokens_per_s is None else f", {tokens_per_s:.1f} tokens/s"
