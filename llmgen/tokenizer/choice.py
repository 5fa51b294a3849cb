"""Finding the chosen chat template: one of the model file's, a built-in format, a file on disk, or a text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from llmgen.errors import TemplateError, UsageError
from llmgen.files import read_bounded
from llmgen.gguf import GGUFFile
from llmgen.tokenizer.builtin import FORMATS
from llmgen.tokenizer.kinds import bos_and_eos
from llmgen.tokenizer.template import ChatTemplate, chat_template_from_gguf, is_jinja, template_names

_MOST_BYTES = 1 << 20


def choose_template(
    file: GGUFFile, choice: str | os.PathLike[str] | None, option: str = "chat_template"
) -> ChatTemplate | None:
    """The template that ``choice`` names; for None the model file's own, or None if it has none.

    ``choice`` is the name of one of the file's further templates or of a built-in format,
    or the path of a Jinja file.  A text with Jinja's braces in it is itself the template.
    ``option`` is the name of the option in messages.  Raises UsageError and TemplateError.
    """
    if choice is None:
        return chat_template_from_gguf(file)
    bos, eos = bos_and_eos(file.metadata)
    if isinstance(choice, os.PathLike):
        return ChatTemplate(_read(Path(choice), (), option), bos, eos, name=os.fspath(choice))
    if not isinstance(choice, str):
        raise UsageError(
            f"{option} must be a template, a name or a path, not {type(choice).__name__}; leave it out"
            " for the model's own"
        )
    if not choice:
        raise UsageError(
            f"{option} is empty, expected a template, a name or a path; leave it out for the model's own"
        )
    if is_jinja(choice):
        return ChatTemplate(choice, bos, eos)
    if choice in template_names(file):
        return chat_template_from_gguf(file, choice)
    if choice in FORMATS:
        return FORMATS[choice].template(bos, eos)
    return ChatTemplate(_read(Path(choice), [*template_names(file), *FORMATS], option), bos, eos, name=choice)


def _read(path: Path, names: Sequence[str], option: str) -> str:
    """The text of a template file; ``names`` are the other valid choices."""
    try:
        with path.open("rb") as file:
            data = read_bounded(file, _MOST_BYTES)
    except FileNotFoundError:
        others = f" nor one of {', '.join(names)}; give one of these" if names else "; check the path"
        raise UsageError(f"{option} {path} is {'neither' if names else 'not'} a file{others}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the template {path}: {reason}") from error
    if data is None:
        raise TemplateError(f"the template {path} has more than {_MOST_BYTES:,} bytes; give another one")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TemplateError(f"the template {path} is not UTF-8 text; convert it first") from None
