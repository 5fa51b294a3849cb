"""``llmgen tokenize``: text to token ids and pieces, and back."""

from __future__ import annotations

import json as jsonlib
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.common.models import ModelArgument, model_path
from llmgen.cli.common.options import JsonOption
from llmgen.cli.common.templates import TemplateOption, fitted, template_in
from llmgen.cli.common.texts import piped_text
from llmgen.cli.terminal.output import generated, print_json
from llmgen.cli.tokenize.tokens import pieces, print_tokens, prompt_text
from llmgen.errors import TemplateError, UsageError

if TYPE_CHECKING:
    from llmgen.gguf import GGUFFile
    from llmgen.tokenizer import Tokenizer


def command(
    model: ModelArgument,
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The text, or the ids for --decode; else what is piped in."),
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Turn token ids into text.")] = False,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="The prompt that the chat template makes of a user's message, or of a conversation given as "
            "JSON: a list of messages, or an object that holds it under `messages`.",
        ),
    ] = False,
    template: TemplateOption = None,
    special: Annotated[
        bool,
        typer.Option(
            "--parse-special", "--special", help="Read special tokens such as <s> in the text as such."
        ),
    ] = False,
    no_bos: Annotated[
        bool, typer.Option("--no-bos", help="Leave out the tokens that the model adds to a text.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Only the ids, on one line.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only the number of tokens.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the tokens of a text: each id with the piece of text it stands for.

    The number of tokens goes to stderr. On a terminal, colours show where tokens
    begin and end. --decode is the way back: ids, separated by spaces or commas,
    become the text they spell.
    """
    _check(
        decode,
        {"--chat": chat, "--parse-special": special, "--no-bos": no_bos, "--ids": ids, "--count": count},
    )
    if sum((ids, count, json)) > 1:
        raise UsageError("--ids, --count and --json exclude each other; give one of them")
    if chat and (special or no_bos):
        raise UsageError(
            "--chat leaves no room for --parse-special and --no-bos: the template decides; leave them out"
        )
    if template is not None and not chat:
        raise UsageError("--template belongs to --chat; add that, or leave --template out")
    path = model_path(model)
    if text is None:
        text = piped_text(announce=False)
    if text is None:
        raise UsageError("there is no text; give TEXT after the model's name, or pipe it in")

    from llmgen.gguf import GGUFFile
    from llmgen.tokenizer import Tokenizer

    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
        if decode:
            _print_text(tokenizer, _ids(text, tokenizer.n_vocab), json)
            return
        if chat:
            tokens = _chat_tokens(file, tokenizer, text, template)
        else:
            tokens = tokenizer.encode(text, add_special=not no_bos, parse_special=special)
        if json:
            _print_json(tokenizer, tokens)
        elif ids:
            print(*tokens)
        elif count:
            print(len(tokens))
        else:
            print_tokens(tokenizer, tokens, prompt=chat)


def _check(decode: bool, others: dict[str, bool]) -> None:
    """Refuse options that --decode has no use for."""
    useless = [name for name, given in others.items() if given and decode]
    if useless:
        raise UsageError(f"--decode has no use for {useless[0]}; leave one of them out")


def _ids(text: str, n_vocab: int) -> list[int]:
    """Read token ids with blanks, commas or brackets between them, as --ids and JSON write them."""
    words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
    for word in words:
        if not re.fullmatch(r"[0-9]{1,18}", word):
            raise UsageError(
                f"{word!r} is not a token id; --decode takes whole numbers, such as 1 15043 29892"
            )
        if int(word) >= n_vocab:
            raise UsageError(f"there is no token {word}; this model's ids go from 0 to {n_vocab - 1}")
    return [int(word) for word in words]


def _chat_tokens(file: GGUFFile, tokenizer: Tokenizer, text: str, choice: str | None) -> list[int]:
    from llmgen.tokenizer import encode_chat

    template = template_in(file, choice)
    if template is None:
        raise TemplateError(
            "--chat needs a chat template, and this model has none; leave --chat out, or give a --template"
        )
    return encode_chat(tokenizer, template, fitted(template, _messages(text)))


def _messages(text: str) -> list[dict[str, Any]]:
    """The conversation that a text is: as JSON, else one message of the user."""
    try:
        value = jsonlib.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        value = value.get("messages")
    if isinstance(value, list) and value and all(isinstance(m, dict) and "role" in m for m in value):
        return value
    return [{"role": "user", "content": text}]


def _print_text(tokenizer: Tokenizer, ids: list[int], json: bool) -> None:
    text = tokenizer.decode(ids)
    if json:
        print_json({"text": text, "ids": ids, "count": len(ids)})
    else:
        print(generated(text))


def _print_json(tokenizer: Tokenizer, tokens: list[int]) -> None:
    found = pieces(tokenizer, tokens)
    print_json(
        {
            "ids": tokens,
            "pieces": [piece.text for piece in found],
            "special": [piece.special for piece in found],
            "count": len(tokens),
            "text": prompt_text(tokenizer, tokens),
        }
    )
