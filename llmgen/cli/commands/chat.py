"""``llmgen chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from llmgen.cli.loading import open_llm
from llmgen.cli.models import ModelArgument, model_path
from llmgen.cli.options import EngineOptions, changed, model_options, sampling_options
from llmgen.cli.output import generated, note, visible
from llmgen.cli.templates import find_template
from llmgen.errors import LLMGenError, TemplateError, UsageError
from llmgen.generation.params import SamplingParams

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.generation import GenerationStream, Session

HELP = """\
/set NAME VALUE   a sampling option, as in /set temp 0.2; without VALUE its default
/system TEXT      start again with this system message; without TEXT with none
/clear            start again
/exit             leave (also Ctrl-D)
Ctrl-C stops an answer."""


@model_options
@sampling_options
def command(
    model: ModelArgument,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    *,
    engine: EngineOptions,
    sampling: SamplingParams,
) -> None:
    """Talk with a model that has a chat template.

    Type a message and Enter; /help lists the commands. Without a terminal, every
    line of stdin is a message.
    """
    if sampling.logprobs is not None:
        raise UsageError("chat does not show --logprobs; use run --json for them")
    path = model_path(model)
    if find_template(path, None) is None:
        raise TemplateError(
            "this model has no chat template, which a conversation needs; "
            "complete plain text with `llmgen run`"
        )
    with open_llm(path, engine) as llm, llm.session() as session:
        _Conversation(llm, session, sampling, system).run()


@dataclass
class _Conversation:
    """The messages so far, and the loop that adds to them."""

    llm: LLM
    session: Session
    sampling: SamplingParams
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> None:
        """Read and answer until the input ends or the user leaves."""
        self._restart()
        interactive = sys.stdin.isatty()
        if interactive:
            note("/help lists the commands; Ctrl-D leaves")
        read = _prompting() if interactive else _lines()
        while (line := read()) is not None:
            try:
                if line.startswith("/"):
                    if not self._obey(line):
                        return
                elif line.strip():
                    self._answer(line)
            except LLMGenError as error:
                note(f"error: {visible(error)}")

    def _restart(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def _obey(self, line: str) -> bool:
        """Carry out a command; False means to leave."""
        name, _, rest = line[1:].partition(" ")
        match name:
            case "exit" | "quit":
                return False
            case "help":
                note(HELP)
            case "clear":
                self._restart()
            case "system":
                self.system = rest or None
                self._restart()
            case "set":
                option, _, value = rest.strip().partition(" ")
                self.sampling = changed(self.sampling, option, value.strip())
            case _:
                note(f"there is no command /{visible(name)}; /help lists them")
        return True

    def _answer(self, line: str) -> None:
        """Answer a message; a failed one is taken back."""
        self.messages.append({"role": "user", "content": line})
        try:
            stream = self.session.stream(self.llm.encode_chat(self.messages), self.sampling)
            text = _show(stream)
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": text})
        result = stream.result
        if result is not None and result.finish_reason != "stop":
            note(f"[{result.finish_reason}: {result.finish_detail}]")


def _show(stream: GenerationStream) -> str:
    """Write the answer as it comes; Ctrl-C ends it, and what is there counts."""
    try:
        for event in stream:
            sys.stdout.write(generated(event.text))
            sys.stdout.flush()
    except KeyboardInterrupt:
        stream.close()
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()
    return stream.text


def _lines() -> Callable[[], str | None]:
    """Messages from a pipe, one a line."""

    def read() -> str | None:
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    return read


def _prompting() -> Callable[[], str | None]:
    """Messages from a terminal, with a history for this session."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession()

    def read() -> str | None:
        while True:
            try:
                return session.prompt("> ")
            except KeyboardInterrupt:
                note("Ctrl-D or /exit leaves")
            except EOFError:
                return None

    return read
