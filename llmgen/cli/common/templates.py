"""Which chat template a command uses: ``--template``, the file's own, or a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.terminal.output import note
from llmgen.errors import UsageError
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen.gguf import GGUFFile
    from llmgen.tokenizer import ChatTemplate

TemplateOption = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="FILE|NAME",
        help="Chat template instead of the model's: a Jinja file, the name of one of the file's further "
        "templates (`llmgen inspect` lists them), or chatml, gemma, llama3, phi3 or plain.",
        show_default=False,
    ),
]


SystemOption = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")]


def refuse_beside_raw(raw: bool, system: str | None, choice: str | None) -> None:
    """Refuse what needs the template that ``--raw`` leaves out.  Raises UsageError."""
    for flag, value in (("--system", system), ("--template", choice)):
        if raw and value is not None:
            raise UsageError(f"{flag} needs the chat template that --raw leaves out; give one of them")


def template_for_prompts(
    path: Path, choice: str | None, raw: bool, system: str | None
) -> ChatTemplate | None:
    """The template for a command's prompts; None if they are completed as they stand.

    Raises UsageError if a system message would be lost.
    """
    chat = None if raw else find_template(path, choice)
    if chat is None and system is not None:
        raise UsageError("--system needs a chat template, and this model has none; leave --system out")
    return chat


def find_template(path: Path, choice: str | None) -> ChatTemplate | None:
    """The template that ``--template`` names, else the model file's own, else None.

    Needs no loaded model, so that a wrong choice is refused at once.
    """
    from llmgen.gguf import GGUFFile

    with GGUFFile.open(path) as file:
        return template_in(file, choice)


def template_in(file: GGUFFile, choice: str | None) -> ChatTemplate | None:
    """As :func:`find_template`, for an open file."""
    from llmgen.tokenizer import choose_template

    return choose_template(file, choice, "--template")


def fitted(
    template: ChatTemplate, messages: list[dict[str, Any]], told: set[str] | None = None
) -> list[dict[str, Any]]:
    """The conversation in a form that the template accepts; if that changes it, a line on stderr says so.

    ``told``: what has been said and is not repeated.
    """
    messages, said = template.fit_system(messages)
    if said is not None and (told is None or said not in told):
        note(visible(said))
        if told is not None:
            told.add(said)
    return messages
