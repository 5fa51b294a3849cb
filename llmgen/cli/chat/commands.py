"""Slash commands."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from llmgen.cli.chat.clipboard import copy
from llmgen.cli.chat.reading import expand
from llmgen.cli.chats import store
from llmgen.cli.common.sampling_options import changed, find_option
from llmgen.cli.common.stats import note_stats
from llmgen.cli.common.texts import text_in
from llmgen.cli.terminal.output import note, shorten
from llmgen.errors import LLMGenError, UsageError
from llmgen.visible import visible

if TYPE_CHECKING:
    from pathlib import Path

    from llmgen.cli.chat.joined import JoinedStream
    from llmgen.cli.chat.repl import Repl

_MOST_BYTES = 4 << 20

HELP = {
    "/help": "[COMMAND]  list the commands, or explain one",
    "/system": "[TEXT]  show or set the system message; - for none",
    "/set": "NAME VALUE  change a sampling option, as in /set temp 0.2; without VALUE, show it",
    "/reset": "NAME  set a sampling option back to its default",
    "/show": "[messages]  the options in effect, or the conversation",
    "/regen": "answer the last message again",
    "/undo": "remove the last message and its answer",
    "/edit": "[TEXT]  change the last message and answer it again",
    "/continue": "continue the last answer",
    "/clear": "start again; the system message stays",
    "/save": "FILE  write the conversation as JSON; /save! FILE replaces an existing file",
    "/load": "FILE  continue a saved conversation",
    "/export": "FILE  write the conversation as Markdown; /export! FILE replaces an existing file",
    "/rename": "TITLE  what `llmgen chats` calls the conversation; one with a title is never removed",
    "/tokens": "count the tokens of each message and of the context",
    "/stats": "show speeds, and how much of the last prompt was new",
    "/read": "FILE  attach a text file to the next message",
    "/copy": "put the last answer on the clipboard (wl-copy, xclip, xsel, pbcopy, clip, or the terminal)",
    "/model": "PATH  switch to another model",
    "/exit": "leave (also Ctrl-D)",
}
_KEYS = """\
Alt-Enter begins a new line, and so does Enter between \"\"\" and \"\"\".
Ctrl-C stops an answer and keeps it. A message that begins with // is sent with one slash."""


def obey(repl: Repl, line: str) -> None:
    """Carry out a command.  Raises LLMGenError."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    action = _ACTIONS.get(name)
    if action is None:
        raise UsageError(_no_command(name))
    if rest and name not in _TAKE_TEXT:
        raise UsageError(f"{name} takes nothing after it, not {visible(shorten(rest, 40))!r}")
    if not rest and name in _NEED_TEXT:
        raise UsageError(f"{name} needs more: {name} {HELP[name.removesuffix('!')]}")
    action(repl, rest)


def _no_command(name: str) -> str:
    """The error for an unknown command: a typo, or a message such as a path."""
    as_text = f"to send a message that begins with a slash, begin it with two: /{visible(shorten(name, 40))}"
    if not re.fullmatch(r"/[A-Za-z_-]+!?", name):
        return f"{visible(shorten(name, 40))} is not a command; {as_text}"
    near = difflib.get_close_matches(name, HELP, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "/help lists them"
    return f"there is no command {visible(name)}; {hint} ({as_text})"


def completions(repl: Repl, line: str) -> Iterable[str]:
    """Completions for what follows a command."""
    name = line.split(" ")[0]
    if name in ("/set", "/reset"):
        return [field.name for field in dataclasses.fields(repl.talk.sampling)]
    return {"/help": [c.removeprefix("/") for c in HELP], "/show": ["messages"]}.get(name, [])


def _help(repl: Repl, rest: str) -> None:
    name = "/" + rest.lstrip("/")
    if rest and name not in HELP:
        raise UsageError(f"there is no command {visible(name)}; /help lists them")
    rows = [name] if rest else HELP
    note("\n".join(f"{command.ljust(10)} {HELP[command]}" for command in rows), hang=11)
    if not rest:
        note(_KEYS)


def _system(repl: Repl, rest: str) -> None:
    if rest:
        repl.talk.system = None if rest == "-" else rest
        note("no system message from now on" if rest == "-" else "the system message is set")
    else:
        note(visible(repl.talk.system or "there is no system message", keep="\n"))


# The values of `when_full`, an earlier name of `context_full`.
WHEN_FULL = {"stop": "stop", "drop": "shift"}


def _set(repl: Repl, rest: str) -> None:
    name, _, value = rest.partition(" ")
    name, value = _plain_name(name), value.strip()
    if name == "when_full":
        if value not in ("", *WHEN_FULL):
            raise UsageError(f"when_full is stop or drop, not {visible(value)!r}")
        name, value = "context_full", WHEN_FULL.get(value, "")
    name = find_option(name).name
    if not value:
        _show_option(repl, name)
        return
    if name == "logprobs" and not repl.json:
        raise UsageError("logprobs can only be shown by --json, which this conversation was begun without")
    repl.talk.sampling = changed(repl.talk.sampling, name, value)
    _show_option(repl, name)


def _reset(repl: Repl, rest: str) -> None:
    option = find_option(_plain_name(rest))
    repl.talk.sampling = repl.talk.sampling.with_(**{option.name: option.default})
    _show_option(repl, option.name)


def _plain_name(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _show_option(repl: Repl, name: str) -> None:
    note(f"{name} = {visible(_in_words(getattr(repl.talk.sampling, name)))}")


def _in_words(value: object) -> str:
    """The value of a sampling option for people to read."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(map(_item_in_words, value)) or "none"
    return str(value)


def _item_in_words(item: object) -> str:
    """One item of a value in words: a text in quotes, a token with its bias, a number."""
    if isinstance(item, tuple):
        return "=".join(map(str, item))
    return repr(item) if isinstance(item, str) else str(item)


def _show(repl: Repl, rest: str) -> None:
    if rest == "messages":
        for message in repl.talk.messages:
            note(f"{message['role']}: {visible(message['content'], keep=chr(10))}")
        return
    if rest:
        raise UsageError(f"/show takes nothing or messages, not {visible(rest)!r}")
    talk, default = repl.talk, type(repl.talk.sampling)()
    rows = [
        ("model", repl.path),
        ("template", talk.template.name or "the model's"),
    ]
    for field in dataclasses.fields(talk.sampling):
        value = getattr(talk.sampling, field.name)
        rows.append(
            (
                field.name,
                f"{_in_words(value)}{'' if value == getattr(default, field.name) else '  (changed)'}",
            )
        )
    note("\n".join(f"{name.ljust(22)} {visible(value)}" for name, value in rows), hang=23)


def _regen(repl: Repl, rest: str) -> None:
    repl.regenerated += 1

    def start() -> JoinedStream:
        repl.talk.drop_answer()
        return repl.talk.again(seed_shift=repl.regenerated)

    repl.answer(start)


def _undo(repl: Repl, rest: str) -> None:
    text = repl.talk.undo()
    repl.autosave()
    note(f"taken back: {visible(shorten(text, 60))}")


def _edit(repl: Repl, rest: str) -> None:
    text = rest or repl.reader.edit(next(m["content"] for m in reversed(_users(repl))))
    if text is None or not text.strip():
        note("nothing changed" if rest or text is None else "an empty message: nothing changed")
        return

    def start() -> JoinedStream:
        repl.talk.undo()
        return repl.talk.ask(text)

    repl.answer(start)


def _users(repl: Repl) -> list[dict[str, str]]:
    users = [m for m in repl.talk.messages if m["role"] == "user"]
    if not users:
        raise UsageError("there is no message yet; write one first")
    return users


def _continue(repl: Repl, rest: str) -> None:
    repl.go_on()


def _clear(repl: Repl, rest: str) -> None:
    repl.talk.clear()
    repl.begin_file()


def _save(repl: Repl, rest: str, replace: bool = False) -> None:
    path = expand(rest)
    _refuse_to_replace(repl, path, replace)
    store.save(path, repl.content())
    repl.own_files.add(path.resolve())
    note(f"saved {len(repl.talk.messages)} messages in {visible(path)}")


def _save_over(repl: Repl, rest: str) -> None:
    _save(repl, rest, replace=True)


def _refuse_to_replace(repl: Repl, path: Path, replace: bool, command: str = "/save") -> None:
    """Refuse to replace a file that this conversation has not written."""
    if not replace and path.is_file() and path.resolve() not in repl.own_files:
        raise UsageError(f"{path} exists already; {command}! {path} replaces it")


def _load(repl: Repl, rest: str) -> None:
    repl.load(expand(rest))


def _export(repl: Repl, rest: str, replace: bool = False) -> None:
    path = expand(rest)
    _refuse_to_replace(repl, path, replace, "/export")
    title = repl.title or f"A conversation with {repl.path.stem}"
    store.write_atomically(path, store.as_markdown(repl.talk.messages, title))
    repl.own_files.add(path.resolve())
    note(f"written to {visible(path)}")


def _export_over(repl: Repl, rest: str) -> None:
    _export(repl, rest, replace=True)


def _rename(repl: Repl, rest: str) -> None:
    if not repl.keeps:
        raise UsageError("this conversation is not kept, so there is nothing to give a title to")
    repl.title = rest
    repl.autosave()
    note(f"the conversation is called {visible(rest)!r}")


def _tokens(repl: Repl, rest: str) -> None:
    talk = repl.talk
    for message in talk.messages:
        note(
            f"{talk.count(message['content']):6d}  {message['role']}: {visible(shorten(message['content'], 50))}",
            hang=8,
        )
    left_out = f"; the oldest {talk.left_out} messages are left out" if talk.left_out else ""
    note(f"context: {talk.used} of {talk.llm.n_ctx} tokens{left_out}")


def _stats(repl: Repl, rest: str) -> None:
    last = repl.talk.last
    if last is None:
        raise UsageError("there is no answer yet; write a message first")
    note_stats(last, repl.talk.llm.model)


def _read(repl: Repl, rest: str) -> None:
    attach(repl, expand(rest))


def attach(repl: Repl, path: Path) -> None:
    """Attach a text file to the next message.  Raises LLMGenError."""
    with store.open_file(path) as file:
        text = text_in(file, visible(path), _MOST_BYTES, LLMGenError)
    talk, waiting = repl.talk, sum(repl.talk.count(text) for _, text in repl.files)
    tokens, room = talk.count(text), talk.llm.n_ctx - waiting - (0 if talk.shifts else talk.used)
    if tokens >= room:
        raise LLMGenError(f"{path} has {tokens} tokens, but only {max(0, room)} are free in the context")
    repl.files.append((path.name, text))
    note(f"{visible(path.name)}, {tokens} tokens, goes with the next message")


def _copy(repl: Repl, rest: str) -> None:
    if repl.talk.answer is None:
        raise UsageError("there is no answer to copy yet")
    note(copy(repl.talk.answer))


def _model(repl: Repl, rest: str) -> None:
    repl.change_model(rest)


_ACTIONS: dict[str, Callable[[Repl, str], None]] = {
    "/help": _help,
    "/system": _system,
    "/set": _set,
    "/reset": _reset,
    "/show": _show,
    "/regen": _regen,
    "/undo": _undo,
    "/edit": _edit,
    "/continue": _continue,
    "/clear": _clear,
    "/save": _save,
    "/save!": _save_over,
    "/load": _load,
    "/export": _export,
    "/export!": _export_over,
    "/rename": _rename,
    "/tokens": _tokens,
    "/stats": _stats,
    "/read": _read,
    "/copy": _copy,
    "/model": _model,
}
_NEED_TEXT = frozenset(
    ["/set", "/reset", "/save", "/save!", "/load", "/export", "/export!", "/rename", "/read", "/model"]
)
_TAKE_TEXT = _NEED_TEXT | {"/help", "/system", "/show", "/edit"}
