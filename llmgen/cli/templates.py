"""Which chat template a command uses: ``--template``, the file's own, or a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.output import note, visible
from llmgen.errors import TemplateError, UsageError

if TYPE_CHECKING:
    from llmgen.gguf import GGUFFile
    from llmgen.tokenizer import ChatTemplate

_MOST_BYTES = 1 << 20

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


def find_template(path: Path, choice: str | None) -> ChatTemplate | None:
    """The template that ``--template`` means, else the model file's own, else None.

    Needs no loaded model, so that a wrong choice is refused at once.
    """
    from llmgen.gguf import GGUFFile

    with GGUFFile.open(path) as file:
        return template_in(file, choice)


def template_in(file: GGUFFile, choice: str | None) -> ChatTemplate | None:
    """The same for an open file."""
    from llmgen.tokenizer import FORMATS, ChatTemplate, chat_template_from_gguf, template_names
    from llmgen.tokenizer.tokenizer import bos_and_eos

    if choice is None:
        return chat_template_from_gguf(file)
    if choice in template_names(file):
        return chat_template_from_gguf(file, choice)
    bos, eos = bos_and_eos(file.metadata)
    if choice in FORMATS:
        return FORMATS[choice].template(bos, eos)
    return ChatTemplate(_read(Path(choice), [*template_names(file), *FORMATS]), bos, eos, name=choice)


def stops_of(template: ChatTemplate) -> tuple[str, ...]:
    """The stop strings that come with a template: those of a built-in format without end tokens."""
    from llmgen.tokenizer import FORMATS

    format = FORMATS.get(template.name or "")
    return format.stops if format is not None and format.source == template.source else ()


def fitted(
    template: ChatTemplate, messages: list[dict[str, Any]], told: set[str] | None = None
) -> list[dict[str, Any]]:
    """The conversation as the template can take it; where that changes it, a line on stderr says so.

    ``told``: what was said before and need not be said again.
    """
    messages, said = template.fit_system(messages)
    if said is not None and (told is None or said not in told):
        note(visible(said))
        if told is not None:
            told.add(said)
    return messages


def _read(path: Path, names: list[str]) -> str:
    """The text of a template file."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(
            f"--template {path} is neither a file nor one of {', '.join(names)}; give one of these"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read the template {path}: {error.strerror or error}") from error
    try:
        return data[:_MOST_BYTES].decode("utf-8-sig") if len(data) <= _MOST_BYTES else _too_long(path)
    except UnicodeDecodeError:
        raise TemplateError(f"the template {path} is not UTF-8 text; convert it first") from None


def _too_long(path: Path) -> str:
    raise TemplateError(f"the template {path} has more than {_MOST_BYTES:,} bytes; give another one")
