"""``llmgen chats``: the conversations that ``llmgen chat`` has kept."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from llmgen.cli.chats import kept, store
from llmgen.cli.common.help import Group
from llmgen.cli.terminal.output import note, print_json, shorten, table
from llmgen.errors import LLMGenError, UsageError
from llmgen.visible import visible

app = typer.Typer(name="chats", cls=Group, add_completion=False, rich_markup_mode=None)

JsonOption = Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")]
ChatArgument = Annotated[
    str, typer.Argument(metavar="CHAT", help="Its title, its id (or the beginning of one), or its number.")
]
_TITLE = 60
_AROUND = 30


class Format(StrEnum):
    """The format of an exported conversation."""

    md = "md"
    json = "json"


@app.callback(invoke_without_command=True)
def chats(context: typer.Context, json: JsonOption = False) -> None:
    """List (the default), search, rename, export or remove kept conversations.

    `llmgen chat MODEL --resume` continues the latest, `--open CHAT` any of them.
    """
    if context.invoked_subcommand is None:
        show_list(json)
    elif json:
        raise UsageError(f"--json belongs after {context.invoked_subcommand}")


@app.command("list", short_help="List the conversations, the latest first.")
def show_list(json: JsonOption = False) -> None:
    """List the conversations, the latest first; --json adds their ids."""
    rows = []
    for number, entry in enumerate(kept.entries(), 1):
        if json:
            print_json(_described(number, entry))
        rows.append((number, *_columns(entry)))
    if json:
        return
    if not rows:
        note("no conversation is kept yet; llmgen chat MODEL begins one")
        return
    table(("", "saved", "model", "messages", "title"), rows, right=(0, 3))


def _columns(entry: kept.Entry) -> tuple[object, ...]:
    saved = entry.changed.astimezone().strftime("%Y-%m-%d %H:%M")
    if entry.error:
        return saved, "?", "?", "cannot be read"
    return saved, entry.model, len(entry.messages), shorten(entry.title, _TITLE)


def _described(number: int, entry: kept.Entry) -> dict[str, Any]:
    about: dict[str, Any] = {
        "number": number,
        "id": entry.id,
        "path": str(entry.path),
        "saved": entry.changed.isoformat(timespec="seconds"),
    }
    if entry.error:
        return {**about, "error": entry.error}
    return {
        **about,
        "title": entry.title,
        "named": entry.named,
        "model": entry.model,
        "messages": len(entry.messages),
    }


@app.command("search", short_help="Find the messages that contain all of some words.")
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="What a message must hold.")],
    json: JsonOption = False,
) -> None:
    """Show the messages that hold all the words, in any order and case."""
    if not any(word.strip() for word in words):
        raise UsageError("WORD is empty; give what a message must hold")
    wanted = [word.casefold() for word in words]
    found = False
    for number, entry in enumerate(kept.entries(), 1):
        matches = list(_matches(entry, wanted))
        found = found or bool(matches)
        if json:
            for at, message in matches:
                about = {"number": number, "id": entry.id, "title": entry.title, "message": at}
                print_json({**about, "role": message["role"], "content": message["content"]})
        elif matches:
            print(f"{number}  {visible(shorten(entry.title, _TITLE))}")
            for _, message in matches:
                print(f"    {message['role']}: {visible(_excerpt(message['content'], wanted))}")
    if not found:
        note(f"no message holds {visible(' and '.join(words))}")


def _matches(entry: kept.Entry, wanted: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The messages that hold all the words, with their numbers from 1."""
    for at, message in enumerate(entry.messages, 1):
        text = message["content"].casefold()
        if all(word in text for word in wanted):
            yield at, message


def _excerpt(text: str, wanted: list[str]) -> str:
    """The text around the first of the words."""
    line = " ".join(text.split())
    # case folding may change the length; the position is close enough
    at = min((place for word in wanted if (place := line.casefold().find(word)) >= 0), default=0)
    start = max(0, at - _AROUND)
    return ("…" if start else "") + shorten(line[start:], 3 * _AROUND)


@app.command("rename", short_help="Give a conversation a title.")
def rename(chat: ChatArgument, title: Annotated[str, typer.Argument(metavar="TITLE")]) -> None:
    """Give a conversation a title; one with a title is never removed automatically."""
    if not title.strip():
        raise UsageError("the title is empty; give some words")
    entry = kept.find(chat)
    if entry.error:
        raise LLMGenError(entry.error)
    file = kept.KeptFile(entry.path)
    if not file.take():
        raise LLMGenError(f"{entry.id} is open in another terminal; use /rename there")
    try:
        file.rename(title.strip())
    finally:
        file.close()


@app.command("export", short_help="Write a conversation as Markdown or JSON.")
def export(
    chat: ChatArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file instead of stdout.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="Markdown for people, or JSON.")] = Format.md,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing FILE.")] = False,
) -> None:
    """Write a conversation to stdout or a file; JSON is what /load and --open read."""
    entry = kept.find(chat)
    if entry.error:
        raise LLMGenError(entry.error)
    if format is Format.json:
        text = json_format.dumps(store.load(entry.path), ensure_ascii=False, indent=2) + "\n"
    else:
        text = store.as_markdown(list(entry.messages), shorten(entry.title, _TITLE) or entry.id)
    if output is None:
        print(text, end="")
        return
    if output.exists() and not force:
        raise UsageError(f"{output} exists already; --force replaces it")
    store.write_atomically(output, text)


@app.command("remove", short_help="Remove conversations for good.")
def remove(
    chats: Annotated[list[str], typer.Argument(metavar="CHAT...", help="Titles, ids or numbers.")],
) -> None:
    """Remove conversations; all names are looked up before the first one goes."""
    for entry in [kept.find(chat) for chat in chats]:
        if not kept.remove(entry.path):
            raise LLMGenError(f"{entry.id} is open in another terminal; leave it there first")
        note(f"removed {entry.id} ({visible(shorten(entry.title, _TITLE))})")
