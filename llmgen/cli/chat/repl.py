"""The loop of a conversation: read, answer or obey, and again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llmgen.cli.chat import commands, store
from llmgen.cli.chat.conversation import Conversation
from llmgen.cli.chat.interrupts import Stop
from llmgen.cli.chat.screen import AnswerScreen, Think
from llmgen.cli.exits import INTERRUPTED
from llmgen.cli.output import note, print_json, visible
from llmgen.cli.streaming import follow
from llmgen.errors import LLMGenError, UsageError

if TYPE_CHECKING:
    from llmgen.generation import GenerationResult, GenerationStream


class Reader(Protocol):
    """Where messages come from."""

    def read(self) -> str | None:
        """The next message; None at the end."""

    def edit(self, text: str) -> str | None:
        """A text to change; None where that is given up or impossible."""

    def answering(self) -> AbstractContextManager[Stop]:
        """While an answer is made: what Ctrl-C sets."""

    def obeying(self) -> AbstractContextManager[None]:
        """While a command is carried out: Ctrl-C raises KeyboardInterrupt."""

    def keep(self, stop: Stop) -> None:
        """Between two pieces of an answer: look after the keys."""


class Repl:
    """Reads messages and shows answers until the input ends or the user leaves."""

    def __init__(
        self,
        talk: Conversation,
        path: Path,
        *,
        change: Callable[[Conversation, str], Path],
        think: Think,
        markdown: bool,
        json: bool,
        keep: bool,
    ) -> None:
        """``change`` makes a conversation go on with another model; ``keep``: save it as it grows."""
        self.talk = talk
        self.path = path
        self.files: list[tuple[str, str]] = []
        self.regenerated = 0
        self.reader: Reader
        self._change = change
        self._think: Think = think
        self._markdown = markdown
        self.json = json
        self._keep = keep
        self._file = store.new_file()
        self._turn = 0
        self._failed = False
        self._interactive = False

    def run(self, reader: Reader, interactive: bool) -> int:
        """Run to the end; returns the exit code: 1 where a scripted message got no answer."""
        self.reader, self._interactive = reader, interactive
        while True:
            try:
                line = self._read()
                if line is None or not self._handle(line):
                    break
            except LLMGenError as error:
                note(f"error: {visible(error)}")
            except KeyboardInterrupt:
                if not interactive:
                    return INTERRUPTED
                note("interrupted")
        return int(self._failed and not interactive)

    def _read(self) -> str | None:
        try:
            return self.reader.read()
        except LLMGenError as error:
            self._turn += 1
            self._unanswered(error)
            raise

    def _handle(self, line: str) -> bool:
        if line.startswith("/") and not line.startswith("//") and "\n" not in line:
            with self.reader.obeying():
                return commands.obey(self, line)
        if line.strip():
            text = self._with_files(line[1:] if line.startswith("//") else line)
            self.answer(lambda: self.talk.ask(text))
            self.files = []
        return True

    def _with_files(self, line: str) -> str:
        """The message with the files that were read for it."""
        blocks = [f"{name}:\n```\n{text.rstrip()}\n```\n\n" for name, text in self.files]
        return "".join([*blocks, line])

    # -- answers

    def answer(self, start: Callable[[], GenerationStream]) -> None:
        """Show the answer that ``start`` begins, and keep it; without one, nothing has changed."""
        self._turn += 1
        self._close(self._make(start, self.talk.add))

    def go_on(self) -> None:
        """Show what follows the last answer."""
        result = self._make(self.talk.go_on, self.talk.extend)
        if not result.text.strip() and result.finish_reason != "interrupted":
            note("the model has nothing to add")
        self._close(result)

    def _make(
        self, start: Callable[[], GenerationStream], keep: Callable[[GenerationResult], None]
    ) -> GenerationResult:
        """The result, kept; an error leaves the messages as they were."""
        before = list(self.talk.messages)
        with self.reader.answering() as stop:
            try:
                self.talk.cancel = stop
                with stop.raising_when_repeated():
                    stream = start()
                self.autosave()
                result = self._follow(stream, stop)
            except BaseException as error:
                self.talk.messages = before
                self.autosave()
                self._unanswered(error)
                raise
            keep(result)
            self.autosave()
        return result

    def _unanswered(self, error: BaseException) -> None:
        """A script is told that a message got no answer."""
        self._failed = self._failed or not isinstance(error, UsageError)
        if self.json and isinstance(error, LLMGenError):
            print_json({"turn": self._turn, "error": str(error)})

    def _follow(self, stream: GenerationStream, stop: Stop) -> GenerationResult:
        if self.json:
            result = follow(stream, lambda text: self.reader.keep(stop))
            print_json({"turn": self._turn, **self._exchange(), **result.as_dict()})
            sys.stdout.flush()
            return result
        screen = AnswerScreen(self._think, self._markdown, self.talk.thinks)

        def show(text: str) -> None:
            screen.show(text)
            self.reader.keep(stop)

        try:
            return follow(stream, show)
        finally:
            screen.finish()

    def _exchange(self) -> dict[str, Any]:
        users = [m["content"] for m in self.talk.messages if m["role"] == "user"]
        return {"message": users[-1] if users else None}

    def _close(self, result: GenerationResult) -> None:
        """Say how the answer ended, where that is not as usual."""
        if result.finish_reason not in ("stop", "interrupted") and result.finish_detail != "context_full":
            how = "/continue goes on" if result.finish_detail == "max_tokens" else "/regen tries again"
            note(f"[{result.finish_reason}: {result.finish_detail}; {how}]")
        elif result.finish_reason == "interrupted":
            if not self._interactive:
                raise KeyboardInterrupt
            note("[interrupted; /continue goes on]")

    # -- what commands need

    def status(self) -> str:
        """The line below the prompt."""
        used, n_ctx, last = self.talk.used, self.talk.llm.n_ctx, self.talk.last
        speed = last.timings.decode_tokens_per_s if last else None
        shown = "" if speed is None else f" | {speed:.1f} tokens/s"
        return f"{visible(self.path.stem)} | {used} / {n_ctx} tokens ({used / n_ctx:.0%}){shown}"

    def content(self) -> dict[str, Any]:
        """What is saved of the conversation."""
        return {"model": str(self.path), "messages": self.talk.messages}

    def begin_file(self) -> None:
        """From here on it is another conversation."""
        self._file = store.new_file()

    def autosave(self) -> None:
        """Keep the conversation for --resume; that it cannot be kept is said once."""
        if not self._keep:
            return
        try:
            new = not self._file.exists()
            store.save(self._file, self.content())
            if new:
                store.prune()
        except (LLMGenError, OSError) as error:
            self._keep = False
            note(f"the conversation is not kept for --resume: {visible(error)}")

    def load(self, path: Path) -> None:
        """Go on with a saved conversation."""
        saved = store.load(path)
        self.talk.replace(saved["messages"])
        self.begin_file()
        note(f"{len(self.talk.messages)} messages from {visible(path)}")

    def resume(self) -> None:
        """Go on with the latest conversation, in its file."""
        path = store.latest_file()
        self.load(path)
        self._file = path

    def change_model(self, model: str) -> None:
        """Go on with another model; where that fails, with this one."""
        self.path = self._change(self.talk, model)
        note(f"{visible(self.path.stem)} reads the conversation with the next message")
