"""``llmgen run``: one completion, streamed to stdout."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgen import hub
from llmgen.cli.common.config import Given, configurable
from llmgen.cli.common.guessing import check_draft
from llmgen.cli.common.guessing_options import guessing_options
from llmgen.cli.common.loading import open_llm
from llmgen.cli.common.model_options import EngineOptions, model_options
from llmgen.cli.common.models import ModelArgument, model_path
from llmgen.cli.common.sampling_options import sampling_options
from llmgen.cli.common.stats import StatsOption
from llmgen.cli.common.templates import (
    SystemOption,
    TemplateOption,
    fitted,
    refuse_beside_raw,
    template_for_prompts,
)
from llmgen.cli.common.texts import as_message, piped_text, read_text, typed_text, with_documents
from llmgen.cli.run.answers import Form, print_beams, print_samples
from llmgen.cli.run.manifest import head, perform
from llmgen.cli.run.one import print_one
from llmgen.cli.terminal.output import note
from llmgen.cli.terminal.plain import WrapOption
from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.errors import UsageError
from llmgen.sampling.params import SamplingParams

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.engine import BeamOptions
    from llmgen.tokenizer import ChatTemplate


@functools.partial(configurable, perform=perform)
@model_options
@guessing_options
@sampling_options
def command(
    model: ModelArgument,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="The prompt; text that is piped in is appended to it. - is stdin."
        ),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="A text file to put before the prompt, or to use as the prompt (repeatable).",
        ),
    ] = None,
    system: SystemOption = None,
    system_file: Annotated[
        Path | None, typer.Option("--system-file", metavar="FILE", help="The system message from a file.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text as it stands, without the chat template.")
    ] = False,
    template: TemplateOption = None,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Read special tokens such as <s> in a raw prompt as such.")
    ] = False,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Do not read stdin.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object at the end, no streaming.")] = False,
    wrap: WrapOption = True,
    stats: StatsOption = False,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", metavar="N", min=1, max=10_000, help="N answers, with the seeds s, s+1, ..."
        ),
    ] = 1,
    beams: Annotated[
        int | None,
        typer.Option("--beams", metavar="N", min=1, help="Beam search: the best of N; --json shows all N."),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option("--length-penalty", help="Beam scores: log-probability / length ** this. [default: 1]"),
    ] = None,
    early_stopping: Annotated[
        bool, typer.Option("--early-stopping", help="End the beam search with the N-th complete answer.")
    ] = False,
    prompt_cache: Annotated[
        Path | None,
        typer.Option(
            "--prompt-cache",
            metavar="FILE",
            help="Store the computed prompt in this file; later prompts with the same beginning reuse it.",
        ),
    ] = None,
    *,
    engine: EngineOptions,
    guessing: SpeculativeConfig | None,
    sampling: SamplingParams,
    given: Given,
) -> None:
    """Complete one prompt.

    The model's chat template is applied when it has one, unless --raw is given.
    Text that is piped in follows the prompt on a new line (with --raw, at once), or
    is the prompt. Ctrl-C stops the answer and keeps the text so far. At a terminal,
    without any prompt, a chat begins.
    """
    if system_file is not None:
        if system is not None:
            raise UsageError("--system and --system-file both give the system message; give one of them")
        system = as_message(read_text(system_file))
    search = _search(beams, length_penalty, early_stopping, samples, prompt_cache)
    if search is not None and guessing is not None:
        raise UsageError("--draft and --lookup do not go with a beam search; leave them or --beams out")
    refuse_beside_raw(raw, system, template)
    if sampling.logprobs is not None and not json:
        raise UsageError("--logprobs can only be shown by --json; add it, or leave --logprobs out")
    hub.find(model)  # refuse a wrong name before stdin is read and anything is fetched
    check_draft(guessing)
    ignores_stdin = no_stdin or given.run is not None
    for_answers = raw or json or parse_special or samples > 1 or beams or prompt_cache is not None
    if prompt is None and not file and not ignores_stdin and not for_answers and _at_terminal():
        from llmgen.cli.chat.command import talk

        talk(
            model,
            system=system,
            template=template,
            wrap=wrap,
            stats=stats,
            engine=engine,
            guessing=guessing,
            sampling=sampling,
        )
        return
    text = _prompt(prompt, file or [], ignores_stdin, raw)
    path = model_path(model)
    chat = template_for_prompts(path, template, raw, system)
    if chat is not None and parse_special:
        raise UsageError("--parse-special is for raw prompts, since a message's text is data; add --raw")
    with open_llm(path, engine, chat, guessing) as llm:
        begin = functools.partial(head, given, llm, sampling)  # before the template's stops join in
        if chat is None and not raw:
            note("this model has no chat template, so the text is completed as it stands")
        if chat is None:
            ids, after_label = llm.prompt_ids(text, parse_special=parse_special), False
        else:
            ids, after_label = _chat_ids(llm, chat, _messages(system, text), sampling.timeout)
            sampling = sampling.with_(stop=(*sampling.stop, *chat.stops))
        form = Form(json, begin, wrap, after_label, stats)
        if search is not None:
            code = print_beams(llm, ids, sampling, search, form)
        elif samples > 1:
            code = print_samples(llm, ids, sampling, samples, form)
        else:
            code = print_one(llm, ids, sampling, prompt_cache, form)
    raise typer.Exit(code)


def _chat_ids(
    llm: LLM, chat: ChatTemplate, messages: list[dict[str, str]], timeout: float | None
) -> tuple[list[int], bool]:
    """A conversation's token ids, and whether they end with a label such as ``Assistant:``."""
    from llmgen.tokenizer import rendering_within

    with rendering_within(timeout):
        ids = llm.encode_chat(fitted(chat, messages))
    return ids, llm.detokenize(ids[-1:]).endswith(":")


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _prompt(prompt: str | None, files: list[Path], no_stdin: bool, raw: bool) -> str:
    """The files, the prompt and the piped text as one prompt.

    In a message, files and piped text lose the last line break and \\r\\n; --raw takes everything as it is.
    """
    documents = [(path.name, read_text(path)) for path in files]
    piped: str | None
    if prompt == "-":
        if no_stdin:
            raise UsageError("- is the text on stdin, which --no-stdin leaves alone; give one of them")
        prompt, piped = None, typed_text()
    else:
        piped = None if no_stdin else piped_text(announce=bool(prompt is not None or documents))
    if prompt is None and not piped and not documents:
        raise UsageError("there is no prompt; give PROMPT after the model's name, or pipe text in")
    if raw:
        return "".join([*(text for _, text in documents), prompt or "", piped or ""])
    question = "\n".join(part for part in (prompt, as_message(piped or "")) if part)
    if not question:  # the files are the prompt
        return "\n\n".join(as_message(text) for _, text in documents)
    return with_documents([(name, as_message(text)) for name, text in documents], question)


def _messages(system: str | None, text: str) -> list[dict[str, str]]:
    briefing = [] if system is None else [{"role": "system", "content": system}]
    return [*briefing, {"role": "user", "content": text}]


def _search(
    beams: int | None,
    length_penalty: float | None,
    early_stopping: bool,
    samples: int,
    prompt_cache: Path | None,
) -> BeamOptions | None:
    """The options of a beam search if one is wanted; refuses options that do not go together."""
    if (beams is not None or samples > 1) and prompt_cache is not None:
        raise UsageError("--prompt-cache goes with one answer; leave --samples or --beams out, or it")
    if beams is None:
        if length_penalty is not None or early_stopping:
            flag = "--early-stopping" if length_penalty is None else "--length-penalty"
            raise UsageError(f"{flag} belongs to a beam search; add --beams N, or leave it out")
        return None
    if samples > 1:
        raise UsageError("--samples draws at random and --beams does not; give one of them")
    from llmgen.engine.beams import BeamOptions

    return BeamOptions(beams, 1.0 if length_penalty is None else length_penalty, early_stopping)
