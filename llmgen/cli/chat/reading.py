"""The user's messages: typed at a terminal, or lines from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmgen.cli.chat.keyboard import give_back_keys, keep_keys, signals
from llmgen.cli.common.interrupts import Stop, noted
from llmgen.cli.terminal.output import note
from llmgen.cli.terminal.settings import is_simple
from llmgen.errors import LLMGenError
from llmgen.hub.state import state_folder

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

QUOTES = '"""'


_MOST_BYTES = 64 << 20


class Lines:
    """Messages from a pipe, one a line, in UTF-8."""

    def __init__(self) -> None:
        self._number = 0

    def read(self) -> str | None:
        """The next message; None at the end.  Raises LLMGenError for a line that is not text or too long."""
        line = sys.stdin.buffer.readline(_MOST_BYTES)
        self._number += 1
        if len(line) == _MOST_BYTES:
            while len(sys.stdin.buffer.readline(_MOST_BYTES)) == _MOST_BYTES:
                pass
            raise LLMGenError(f"line {self._number} has more than {_MOST_BYTES >> 20} MB; give a part of it")
        try:
            text = line.decode("utf-8-sig" if self._number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise LLMGenError(
                f"line {self._number} is not UTF-8 text (byte 0x{line[error.start]:02x}); convert it first"
            ) from None
        return text.rstrip("\r\n") if line else None

    def edit(self, text: str) -> str | None:
        """A pipe cannot edit."""
        return None

    @contextmanager
    def answering(self) -> Iterator[Stop]:
        """Ctrl-C within ends the answer."""
        with noted() as stop:
            yield stop

    @contextmanager
    def obeying(self) -> Iterator[None]:
        """Ctrl-C raises KeyboardInterrupt, as usual."""
        yield

    def keep(self, stop: Stop) -> None:
        """Nothing to do: a pipe buffers its own input."""

    def leave(self, error: SystemExit) -> bool:
        """False: the error can be raised while a pipe is being read."""
        return False


class Prompt:
    """Messages from a terminal, with editing, history and completion."""

    def __init__(
        self, commands: dict[str, str], completions: Callable[[str], Iterable[str]], status: Callable[[], str]
    ) -> None:
        """``commands``: name -> help; ``completions``: words for a line so far; ``status``: the line below."""
        from prompt_toolkit import PromptSession

        self._status = status
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            multiline=True,
            key_bindings=_keys(),
            completer=_completer(commands, completions),
            complete_while_typing=False,
            enable_suspend=True,
            prompt_continuation=lambda width, line, wrapped: "" if wrapped else ". ".rjust(width),
            bottom_toolbar=self._toolbar,
            output=_output(),
        )
        # The library would print its own warning if a terminal does not report its cursor's position.
        self._session.app.renderer.cpr_not_supported_callback = self._session.app.invalidate

    def read(self) -> str | None:
        """The next message; None when the user leaves."""
        return self._ask("")

    def edit(self, text: str) -> str | None:
        """A text to change; None when the user gives it up."""
        try:
            return _unquoted(self._session.prompt("edit> ", default=text))
        except (KeyboardInterrupt, EOFError):
            return None

    @contextmanager
    def answering(self) -> Iterator[Stop]:
        """Ctrl-C within, or since Enter, ends the answer; other keys are kept for the next message."""
        with noted() as stop, signals():
            self.keep(stop)
            yield stop
            self.keep(stop)

    @contextmanager
    def obeying(self) -> Iterator[None]:
        """Ctrl-C within, or since Enter, raises KeyboardInterrupt."""
        with signals():
            stop = Stop()
            self.keep(stop)
            if stop.is_set():
                raise KeyboardInterrupt
            yield

    def keep(self, stop: Stop) -> None:
        """Read keys that are typed during an answer."""
        keep_keys(self._session.input, stop.set)

    def leave(self, error: SystemExit) -> bool:
        """End the editor with this error; False if it is not running.

        Raised inside the editor by a signal, the error would leave the terminal in the wrong mode.
        """
        app = self._session.app
        if not app.is_running or app.loop is None:
            return False
        app.loop.call_soon_threadsafe(self._end, error)
        return True

    def _end(self, error: SystemExit) -> None:
        app = self._session.app
        if app.future is not None and not app.future.done():
            app.exit(exception=error)

    def give_back(self) -> None:
        """Leave what was typed after the last message to the shell."""
        give_back_keys(self._session.input)

    def _ask(self, default: str) -> str | None:
        warned = False
        while True:
            try:
                return _unquoted(self._session.prompt(self._message, default=default))
            except KeyboardInterrupt:
                if warned and not self._session.default_buffer.text:
                    return None
                note("(Ctrl-C again or Ctrl-D leaves)")
                warned = True
            except EOFError:
                return None

    def _message(self) -> str:
        """The prompt; the status goes above it if there can be no line below."""
        from prompt_toolkit.renderer import CPR_Support

        renderer = self._session.app.renderer
        below = renderer.cpr_support != CPR_Support.NOT_SUPPORTED and not is_simple()
        return "> " if below else f"[{self._status()}]\n> "

    def _toolbar(self) -> Any:
        from prompt_toolkit.formatted_text import FormattedText

        return FormattedText([("", f" {self._status()} ")])


def _unquoted(text: str) -> str:
    """The message without the quotes that several lines stand between."""
    body = text.strip()
    if body.startswith(QUOTES) and body.endswith(QUOTES) and len(body) >= 2 * len(QUOTES):
        return body[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text.rstrip("\n")


def _is_open(text: str) -> bool:
    """Whether a message of several lines is still going on."""
    body = text.strip()
    return body.startswith(QUOTES) and not (len(body) >= 2 * len(QUOTES) and body.endswith(QUOTES))


def _keys() -> KeyBindings:
    """Enter sends, Alt-Enter and Ctrl-J begin another line."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None
        elif _is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def another_line(event: Any) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


def _history() -> History:
    """The history of all conversations, in a file that only the user may read."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = state_folder() / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | getattr(os, "O_NONBLOCK", 0), 0o600))
        if os.name == "posix":
            path.chmod(0o600)
    except OSError as error:
        note(f"the history cannot be kept in {path}: {error.strerror or error}")
        return InMemoryHistory()

    class History(FileHistory):
        """A full disk must not end a conversation."""

        def store_string(self, string: str) -> None:
            try:
                super().store_string(string)
            except OSError as error:
                note(f"the history cannot be kept in {path}: {error.strerror or error}")

    return History(str(path))


def _completer(commands: dict[str, str], completions: Callable[[str], Iterable[str]]) -> Any:
    """Completes commands with their help, options after /set, and paths."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        """What may follow a slash."""

        def get_completions(self, document: Document, event: Any) -> Iterable[Completion]:
            line = document.text_before_cursor
            name, blank, rest = line.partition(" ")
            if not line.startswith("/") or "\n" in line:
                return
            if not blank:
                for command, help in commands.items():
                    if command.startswith(name):
                        yield Completion(command, start_position=-len(name), display_meta=help)
            elif name in ("/read", "/load", "/save", "/save!", "/export", "/export!", "/model"):
                from prompt_toolkit.document import Document as Part

                yield from paths.get_completions(Part(rest), event)
            else:
                for word in completions(line):
                    if word.startswith(rest):
                        yield Completion(word, start_position=-len(rest))

    return Commands()


def _output() -> Any:
    """The terminal to draw on: stderr where stdout leads elsewhere."""
    if sys.stdout.isatty():
        return None
    from prompt_toolkit.output import create_output

    return create_output(stdout=sys.stderr)


def expand(path: str) -> Path:
    """A path as the user typed it, perhaps in quotes or with ~."""
    path = path.strip()
    if len(path) > 1 and path[0] == path[-1] and path[0] in "\"'":
        path = path[1:-1]
    try:
        return Path(path).expanduser()
    except RuntimeError:  # ~user of an unknown user
        return Path(path)
