"""The loop of a conversation: read, answer or obey, and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llmgen.cli.chat.conversation import Conversation, State
from llmgen.cli.chat.joined import JoinedStream
from llmgen.cli.chat.leaving import Leaving
from llmgen.cli.chat.screen import AnswerScreen, Think
from llmgen.cli.chats import kept, store
from llmgen.cli.common.exits import INTERRUPTED
from llmgen.cli.common.interrupts import Stop
from llmgen.cli.common.loading import local_window
from llmgen.cli.common.stats import note_stats
from llmgen.cli.common.texts import with_documents
from llmgen.cli.terminal.output import note, print_json, shorten
from llmgen.cli.terminal.streaming import follow
from llmgen.errors import LLMGenError, UsageError
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen.engine import GenerationResult

_NOTHING_CAME = "[interrupted before the first word: nothing has changed, Up brings it again]"
_LEAVES = ("/exit", "/quit", "/bye")
_SAVE_EVERY_S = 5.0
"""A running answer is saved this often: at most this much is lost in a crash."""


class Reader(Protocol):
    """A source of messages."""

    def read(self) -> str | None:
        """The next message; None at the end."""

    def edit(self, text: str) -> str | None:
        """Let the user edit a text; None if it is cancelled or impossible."""

    def answering(self) -> AbstractContextManager[Stop]:
        """During an answer: the token that Ctrl-C sets."""

    def obeying(self) -> AbstractContextManager[None]:
        """During a command: Ctrl-C raises KeyboardInterrupt."""

    def keep(self, stop: Stop) -> None:
        """Called between two pieces of an answer, to read the keyboard."""

    def leave(self, error: SystemExit) -> bool:
        """Called by a signal handler: raise this error in the wait for a message; False if that is impossible."""


class Repl:
    """Reads messages and shows answers until the input ends or the user leaves."""

    def __init__(
        self,
        talk: Conversation,
        path: Path,
        *,
        obey: Callable[[Repl, str], None],
        change: Callable[[Conversation, str], Path],
        think: Think,
        markdown: bool,
        wraps: bool,
        json: bool,
        stats: bool,
        keep: bool,
        piped: bool = False,
    ) -> None:
        """``obey`` carries out a command, and ``change`` switches a conversation to another model.

        ``stats``: note the figures of every answer; ``keep``: save the conversation as it grows;
        ``piped``: the input is not a terminal.
        """
        self.talk = talk
        self.path = path
        self.files: list[tuple[str, str]] = []
        self.regenerated = 0
        self.reader: Reader
        self._obey = obey
        self._change = change
        self._think: Think = think
        self._markdown = markdown
        self._wraps = wraps
        self.json = json
        self._stats = stats
        self.title: str | None = None
        self.own_files: set[Path] = set()
        """Files of this conversation, which may be replaced."""
        self.keeps = keep
        """Whether it is saved as it grows."""
        self._piped = piped
        self._file = kept.KeptFile.new(piped)
        self._saved_at = 0.0
        self._leaving = Leaving()
        self._turn = 0
        self._failed = False
        self._interactive = False

    def run(self, reader: Reader, interactive: bool, first: str | None = None) -> int:
        """Run to the end, beginning with the message ``first``.

        Returns the exit code: 1 if a scripted message got no answer.
        """
        self.reader, self._interactive = reader, interactive
        self._leaving.way_out = reader.leave
        with self._leaving.noticed():
            try:
                code = self._run(first)
            except OSError:  # the terminal may have been closed
                self._leaving.leave_now()
                raise
            finally:
                self._file.close()
            self._leaving.leave_now()
            return code

    def _run(self, first: str | None) -> int:
        goes_on = True
        while goes_on:
            try:
                if first is not None:
                    text, first = first, None
                    self._say(text)
                else:
                    line = self._read()
                    goes_on = line is not None and self._handle(line)
            except LLMGenError as error:
                note(f"error: {visible(error)}")
            except KeyboardInterrupt as interrupt:
                if not self._interactive:
                    return INTERRUPTED
                note(str(interrupt) or "interrupted")
        return int(self._failed and not self._interactive)

    def _read(self) -> str | None:
        try:
            return self.reader.read()
        except LLMGenError as error:
            self._turn += 1
            self._unanswered(error)
            raise

    def _handle(self, line: str) -> bool:
        if line.startswith("/") and not line.startswith("//") and "\n" not in line:
            if line.split(" ")[0] in _LEAVES:
                return False
            with self.reader.obeying():
                self._obey(self, line)
            return True
        if line.strip():
            self._say(line[1:] if line.startswith("//") else line)
        return True

    def _say(self, message: str) -> None:
        text = self._with_files(message)
        if self.answer(lambda: self.talk.ask(text)):
            self.files = []

    def _with_files(self, line: str) -> str:
        """The message with the files that were read for it."""
        return with_documents(self.files, line)

    # -- answers

    def answer(self, start: Callable[[], JoinedStream]) -> bool:
        """Show the answer that ``start`` begins, and keep it; False, with nothing changed, if there is none."""
        self._turn += 1
        result = self._make(start)
        self._close(result)
        return not _is_nothing(result)

    def go_on(self) -> None:
        """Show a continuation of the last answer."""
        result = self._make(self.talk.go_on)
        if not result.text.strip() and result.finish_reason == "stop":
            note("the model has nothing to add")
        self._close(result)

    def _make(self, start: Callable[[], JoinedStream]) -> GenerationResult:
        """Make and keep an answer; after an error, or Ctrl-C before the first token, nothing has changed."""
        from llmgen.tokenizer import rendering_within

        before, stream = self.talk.state(), None
        with self.reader.answering() as stop, self._leaving.stopping(stop):
            try:
                self.talk.cancel = stop
                within = rendering_within(self.talk.sampling.timeout, stop)
                with stop.raising_when_repeated(), within:
                    stream = start()
                self.autosave()
                result = self._follow(stream, stop)
            except BaseException as error:
                if stream is not None:
                    stream.close()
                self._settle(before, stream.result if stream else None, error)
                if stream is None and stop.is_set():  # the template was stopped, whatever error it raised
                    self._leaving.leave_now()
                    raise KeyboardInterrupt(_NOTHING_CAME) from None
                self._unanswered(error)
                raise
            self._settle(before, result)
            self._failed = self._failed or _is_nothing(result)
        self._leaving.leave_now()
        return result

    def _settle(
        self, before: State, result: GenerationResult | None, error: BaseException | None = None
    ) -> None:
        """Keep the answer so far, even if it can no longer be shown: the terminal may be gone."""
        shown = result is not None and not _is_nothing(result) and not isinstance(error, LLMGenError)
        if shown and result is not None:
            self.talk.keep(result)
        elif not self._leaving.asked:  # when leaving, the question stays for --resume
            self.talk.restore(before)
        self.autosave()

    def _unanswered(self, error: BaseException) -> None:
        """Record that a message got no answer; scripts get the error as JSON."""
        self._failed = self._failed or not isinstance(error, UsageError)
        if self.json and isinstance(error, LLMGenError):
            print_json({"turn": self._turn, "error": str(error)})

    def _follow(self, stream: JoinedStream, stop: Stop) -> GenerationResult:
        if self.json:
            result = follow(stream, lambda text: self._between(stop))
            print_json({"turn": self._turn, **self._exchange(), **result.as_dict()})
            sys.stdout.flush()
            return result
        screen = AnswerScreen(
            self._think,
            markdown=self._markdown,
            thinks=self.talk.thinks,
            may_think=self._think != "show" and self.talk.may_think,
            answer_tags=self.talk.answer_tags,
            after_label=self.talk.after_label,
            wraps=self._wraps,
        )

        def show(text: str) -> None:
            screen.show(text)
            self._between(stop)

        try:
            return follow(stream, show)
        finally:
            screen.finish()

    def _between(self, stop: Stop) -> None:
        """Called between two pieces of an answer."""
        self.reader.keep(stop)
        if time.monotonic() - self._saved_at >= _SAVE_EVERY_S:
            self.autosave(self.talk.draft())

    def _exchange(self) -> dict[str, Any]:
        users = [m["content"] for m in self.talk.messages if m["role"] == "user"]
        return {"message": users[-1] if users else None, **local_window(self.talk.llm.model)}

    def _close(self, result: GenerationResult) -> None:
        """Say how the answer ended, if it was cut off, and with ``--stats`` its figures."""
        if self._stats and not _is_nothing(result):
            note_stats(result, self.talk.llm.model)
        if result.finish_reason == "timeout" and _is_nothing(result):
            note("[timeout before the first word: nothing has changed]")
        elif result.finish_reason not in ("stop", "interrupted") and result.finish_detail != "context_full":
            how = "/continue goes on" if result.finish_detail == "max_tokens" else "/regen tries again"
            note(f"[{result.finish_reason}: {result.finish_detail}; {how}]")
        elif result.finish_reason == "interrupted":
            if not self._interactive:
                raise KeyboardInterrupt
            if _is_nothing(result):
                note(_NOTHING_CAME)
            else:
                note("[interrupted; /continue goes on]")

    # -- for commands

    def status(self) -> str:
        """The line below the prompt."""
        used, n_ctx, last = self.talk.used, self.talk.llm.n_ctx, self.talk.last
        speed = last.timings.decode_tokens_per_s if last else None
        shown = "" if speed is None else f" | {speed:.1f} tokens/s"
        return f"{visible(self.path.stem)} | {used} / {n_ctx} tokens ({used / n_ctx:.0%}){shown}"

    def content(self, messages: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """What is saved of the conversation; ``messages`` replaces its own."""
        title = {} if self.title is None else {"title": self.title}
        return {**title, "model": str(self.path), "messages": messages or self.talk.messages}

    def begin_file(self) -> None:
        """Start a new file: from here on it is another conversation."""
        self._file.close()
        self._file = kept.KeptFile.new(self._piped)
        self.title = None

    def autosave(self, messages: list[dict[str, Any]] | None = None) -> None:
        """Keep the conversation for --resume; if that fails, say so once."""
        if not self.keeps:
            return
        self._saved_at = time.monotonic()
        try:
            new = not self._file.path.exists()
            if not any(message["role"] == "user" for message in self.talk.messages):
                self._file.discard()
            elif not self._file.write(self.content(messages)):
                old, self._file = self._file, kept.KeptFile.new(self._piped)
                old.close()
                self._file.write(self.content(messages))
                note(
                    f"another program has changed {visible(old.path.name)}; "
                    "this conversation goes on in a file of its own"
                )
            elif new:
                kept.prune()
        except (LLMGenError, OSError) as error:
            self.keeps = False
            reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
            note(f"the conversation is not kept for --resume: {visible(reason)}")

    def load(self, path: Path) -> None:
        """Continue a saved conversation."""
        saved = store.load(path)
        self.talk.replace(saved["messages"])
        self.begin_file()
        self.own_files.add(path.resolve())
        note(f"{len(self.talk.messages)} messages from {visible(path)}")

    def resume(self, entry: kept.Entry) -> None:
        """Continue a conversation in its file, or in a new file if another terminal has it open."""
        file = kept.KeptFile(entry.path)
        ours = self.keeps and file.take()
        self.talk.replace(store.load(entry.path)["messages"])
        self.begin_file()
        self.title = entry.title if entry.named else None
        note(f"{len(self.talk.messages)} messages of {visible(shorten(entry.title, 60))!r}")
        if self.talk.messages and self.talk.messages[-1]["role"] == "user":
            note("the last message has no answer yet: /regen answers it, /undo takes it back")
        if ours:
            if not self._piped:
                file.adopt()
            self._file = file
        elif self.keeps:
            note("it is open in another terminal: this one goes on with a copy of it")

    def change_model(self, model: str) -> None:
        """Switch to another model; if that fails, stay with this one."""
        self.path = self._change(self.talk, model)
        note(f"{visible(self.path.stem)} reads the conversation with the next message")


def _is_nothing(result: GenerationResult) -> bool:
    """Whether an answer was stopped before it began."""
    return not result.token_ids and result.finish_reason in ("interrupted", "timeout")
