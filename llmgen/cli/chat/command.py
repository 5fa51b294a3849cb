"""``llmgen chat``: a conversation in the terminal."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack, closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.chat.asked import Asked
from llmgen.cli.common.config import configurable
from llmgen.cli.common.guessing import check_draft
from llmgen.cli.common.guessing_options import guessing_options
from llmgen.cli.common.interrupts import noted
from llmgen.cli.common.loading import open_llm
from llmgen.cli.common.model_options import EngineOptions, model_options
from llmgen.cli.common.models import ModelArgument, model_path
from llmgen.cli.common.sampling_options import sampling_options
from llmgen.cli.common.stats import StatsOption
from llmgen.cli.common.templates import SystemOption, TemplateOption, find_template
from llmgen.cli.terminal.output import note
from llmgen.cli.terminal.plain import WrapOption
from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.errors import UsageError
from llmgen.sampling.params import SamplingParams
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.cli.chat.conversation import Conversation
    from llmgen.cli.chat.repl import Repl
    from llmgen.tokenizer import ChatTemplate


class Think(StrEnum):
    """What to do with a model's reasoning."""

    show = "show"
    fold = "fold"
    hide = "hide"
    off = "off"


# How to switch reasoning off, by the variable that a template reads: it has to occur like this.
_WITHOUT_THOUGHTS: tuple[tuple[str, str, Any], ...] = (
    ("enable_thinking", r"\benable_thinking\b", False),  # Qwen, GLM, SmolLM3
    ("thinking", r"\bthinking is (not )?defined\b|\b(el)?if (not )?thinking\b", False),  # DeepSeek, Granite
    ("thinking_budget", r"\bthinking_budget\b", 0),  # Seed-OSS
    ("thinking_mode", r"\bthinking_mode\b", "disabled"),  # MiniMax M3
    ("reasoning", r"\breasoning is not undefined\b", False),  # Command A with experts
    ("reasoning_effort", r"'no_think'", "no_think"),  # Hunyuan 3
    ("reasoning_effort", r'reasoning_effort in \["low", "minimal"\]', "minimal"),  # Solar
)
_FLAG = "/no_think"
"""What a template such as that of Nemotron Nano v2 looks for in the system message instead."""


class WhenFull(StrEnum):
    """The values of --when-full, the earlier name of --context-full here."""

    stop = "stop"
    drop = "drop"


def talk(
    model: ModelArgument,
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="The first message.", show_default=False)
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", metavar="FILE", help="A text file for the first message (repeatable)."),
    ] = None,
    system: SystemOption = None,
    template: TemplateOption = None,
    think: Annotated[
        Think,
        typer.Option("--think", help="What to do with a model's thoughts; off asks the template for none."),
    ] = Think.show,
    no_markdown: Annotated[
        bool, typer.Option("--no-markdown", help="Show answers without formatting.")
    ] = False,
    wrap: WrapOption = True,
    when_full: Annotated[
        WhenFull | None,
        typer.Option("--when-full", hidden=True, help="drop is --context-full shift."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout for each answer.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the latest conversation.")] = False,
    open: Annotated[
        str | None,
        typer.Option(
            "--open",
            metavar="CHAT",
            help="Continue a conversation, by its title, id or number in llmgen chats.",
        ),
    ] = None,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Do not keep the conversation for --resume.")
    ] = False,
    stats: StatsOption = False,
    *,
    engine: EngineOptions,
    guessing: SpeculativeConfig | None = None,
    sampling: SamplingParams,
) -> None:
    """Talk with a model.

    Type a message and Enter; /help lists the commands. Without a terminal, every
    line of stdin is a message or a command, after MESSAGE.
    """
    from llmgen.cli.chat.commands import attach, obey
    from llmgen.cli.chat.conversation import Conversation
    from llmgen.cli.chat.repl import Repl
    from llmgen.cli.chats import kept

    if sampling.logprobs is not None and not json:
        raise UsageError("--logprobs can only be shown by --json; add it, or leave --logprobs out")
    if message is not None and not message.strip():
        raise UsageError("the first message is empty; write one, or leave it out")
    if resume and open is not None:
        raise UsageError("--resume and --open both choose the conversation; give one of them")
    chosen = kept.find(open) if open is not None else kept.latest() if resume else None
    sampling = _when_full(sampling, when_full)
    check_draft(guessing)
    models = _Models(engine, guessing, template, think)
    path = model_path(model)
    try:
        llm, used = models.open(path)
        talk = Conversation(
            *(llm, used, sampling, _say),
            asked=_asked(used, think),
            stops=used.stops,
        )
        talk.system = system
        repl = Repl(
            talk,
            path,
            obey=obey,
            change=models.change,
            think="show" if think is Think.off else think.value,  # type: ignore[arg-type]
            markdown=not no_markdown,
            wraps=wrap,
            json=json,
            stats=stats,
            keep=not no_save,
            piped=not sys.stdin.isatty(),
        )
        if chosen is not None:
            repl.resume(chosen)
            talk.system = talk.system if system is None else system
        for path in file or ():
            attach(repl, path)
        with closing(talk):
            code = _run(repl, message)
    finally:
        models.close()
    raise typer.Exit(code)


def _when_full(sampling: SamplingParams, when_full: WhenFull | None) -> SamplingParams:
    """``--when-full`` is the earlier name of ``--context-full`` here."""
    if when_full is None:
        return sampling
    if when_full is WhenFull.stop and sampling.context_full == "shift":
        raise UsageError("--when-full stop contradicts --context-full shift; give one of them")
    from llmgen.cli.chat.commands import WHEN_FULL

    return sampling.with_(context_full=WHEN_FULL[when_full.value])


command = configurable(model_options(guessing_options(sampling_options(talk))))


class _Models:
    """The open model, and how to change to another one."""

    def __init__(
        self,
        engine: EngineOptions,
        guessing: SpeculativeConfig | None,
        template: str | None,
        think: Think,
    ) -> None:
        self._engine, self._guessing, self._template, self._think = engine, guessing, template, think
        self._open = ExitStack()

    def open(self, path: Path) -> tuple[LLM, ChatTemplate]:
        """Load a model; an earlier one stays open."""
        chosen = find_template(path, self._template)
        llm = self._open.enter_context(open_llm(path, self._engine, chosen, self._guessing))
        return llm, chosen or _stand_in(llm)

    def change(self, talk: Conversation, name: str) -> Path:
        """Load another model for the conversation, then close the first.

        After a failure nothing has changed.
        """
        path = model_path(name)
        old, self._open = self._open, ExitStack()
        try:
            llm, template = self.open(path)
            asked = _asked(template, self._think)
        except BaseException:
            self._open.close()
            self._open = old
            raise
        with noted():  # an interrupted change would leave neither model usable
            talk.use(llm, template, template.stops, asked)
        old.close()
        return path

    def close(self) -> None:
        """Give the memory back."""
        self._open.close()


def _run(repl: Repl, first: str | None) -> int:
    """Run the loop with a terminal or a pipe as its input."""
    from llmgen.cli.chat import commands
    from llmgen.cli.chat.keyboard import quiet_terminal
    from llmgen.cli.chat.reading import Lines, Prompt

    if not sys.stdin.isatty():
        return repl.run(Lines(), interactive=False, first=first)
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8")  # as everywhere, whatever the locale
    note("/help lists the commands; Ctrl-D leaves")
    prompt = Prompt(commands.HELP, lambda line: commands.completions(repl, line), repl.status)
    with quiet_terminal():
        try:
            return repl.run(prompt, interactive=True, first=first)
        finally:
            prompt.give_back()


def _say(sentence: str) -> None:
    """Print a sentence that may quote a template."""
    note(visible(sentence))


def _stand_in(llm: LLM) -> ChatTemplate:
    """A format for a model without a template; which one, and why, is printed."""
    from llmgen.tokenizer import guess_format

    names = [llm.metadata.get(f"general.{key}") for key in ("name", "finetune", "basename")]
    format, why = guess_format(llm.tokenizer, names)
    _say(f"this model has no chat template; using {format.description}, because {why}")
    tokenizer = llm.tokenizer
    bos, eos = ("" if id is None else tokenizer.token_text(id) for id in (tokenizer.bos_id, tokenizer.eos_id))
    return format.template(bos, eos)


def _asked(template: ChatTemplate, think: Think) -> Asked:
    """What the template gets besides the conversation."""
    if think is not Think.off:
        return Asked()
    for name, pattern, value in _WITHOUT_THOUGHTS:
        if name in template.reads and re.search(pattern, template.source):
            return Asked({name: value})
    if f"'{_FLAG}' in" in template.source:
        return Asked(flag=_FLAG)
    raise UsageError("this model's chat template cannot turn thoughts off; --think hide does not show them")
