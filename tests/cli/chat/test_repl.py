"""What the loop of a conversation keeps of an answer, whatever ends it."""

from __future__ import annotations

import copy
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from llmgen import LLM, SamplingParams
from llmgen.cli.chat import repl
from llmgen.cli.chat.commands import obey
from llmgen.cli.chat.conversation import Conversation
from llmgen.cli.chat.joined import JoinedStream
from llmgen.cli.chat.leaving import Leaving
from llmgen.cli.chat.reading import Lines
from llmgen.cli.chats import kept
from llmgen.cli.common.interrupts import Stop
from llmgen.engine import GenerationResult
from models import smollm2

pytestmark = pytest.mark.usefixtures("compiled")


class Script(Lines):
    """Lines from a list; ``!`` in front of one: Ctrl-C came before its answer began."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self._lines = iter(lines)
        self._stopped = False

    def read(self) -> str | None:
        line = next(self._lines, None)
        self._stopped = line is not None and line.startswith("!")
        return line.removeprefix("!") if line else None

    @contextmanager
    def answering(self) -> Iterator[Stop]:
        with super().answering() as stop:
            if self._stopped:
                stop.set()
            yield stop


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(smollm2()), n_ctx=512) as one:
        yield one


@pytest.fixture
def loop(llm: LLM) -> Iterator[repl.Repl]:
    assert llm.chat_template is not None
    talk = Conversation(llm, llm.chat_template, SamplingParams(max_tokens=6, temp=0), lambda sentence: None)
    with closing(talk):
        yield repl.Repl(
            *(talk, smollm2()),
            obey=obey,
            change=lambda talk, name: smollm2(),
            think="show",
            markdown=False,
            wraps=False,
            json=False,
            stats=False,
            keep=True,
        )


def test_an_answer_is_saved_while_it_comes(loop: repl.Repl, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []
    write = kept.KeptFile.write

    def record(file: kept.KeptFile, content: dict[str, Any]) -> bool:
        saved.append(copy.deepcopy(content["messages"]))
        return write(file, content)

    monkeypatch.setattr(kept.KeptFile, "write", record)
    monkeypatch.setattr(repl, "_SAVE_EVERY_S", 0.0)
    loop.run(Script("Count to ten.", "/continue"), interactive=True)
    texts = [messages[1]["content"] if messages[1:] else "" for messages in saved]
    assert len(set(texts)) >= 10
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert loop.talk.messages == saved[-1]


def test_ctrl_c_before_the_first_token_changes_nothing(
    loop: repl.Repl, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.run(Script("Count to ten."), interactive=True)
    before, used = copy.deepcopy(loop.talk.messages), loop.talk.used
    loop.files = [("note.txt", "text")]
    capsys.readouterr()
    for line in ("!And then?", "!/regen", "!/edit Sing.", "!/continue"):
        loop.run(Script(line), interactive=True)
        assert (loop.talk.messages, loop.talk.used) == (before, used)
        err = capsys.readouterr().err
        assert err == "[interrupted before the first word: nothing has changed, Up brings it again]\n"
    assert loop.files
    loop.run(Script("/continue", "And then?"), interactive=True)
    assert [message["role"] for message in loop.talk.messages] == ["user", "assistant"] * 2
    assert not loop.files


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_signal_to_leave_during_a_prompt_keeps_the_question(
    loop: repl.Repl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    again = loop.talk.again

    def signalled(seed_shift: int = 0) -> JoinedStream:
        signal.raise_signal(signal.SIGTERM)
        return again(seed_shift)

    monkeypatch.setattr(loop.talk, "again", signalled)
    with pytest.raises(SystemExit) as left:
        loop.run(Script("Count to ten.", "never read"), interactive=True)
    assert left.value.code == 143
    [entry] = kept.entries()
    assert list(entry.messages) == [{"role": "user", "content": "Count to ten."}]
    loop.resume(entry)
    assert "the last message has no answer yet: /regen answers it" in capsys.readouterr().err


def test_signals_to_leave_elsewhere_and_again() -> None:
    ways: list[int] = []
    leaving = Leaving()
    with leaving.noticed():
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        leaving = Leaving()
    leaving.way_out = lambda error: ways.append(error.code) is None  # type: ignore[func-returns-value, arg-type]
    with leaving.noticed():
        signal.raise_signal(signal.SIGTERM)
        assert ways == [143]
        with leaving.stopping(stop := Stop()):
            assert stop.is_set()  # one that came just before the answer
            with pytest.raises(SystemExit):
                signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_timeout_before_the_first_token_is_no_answer(
    loop: repl.Repl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = GenerationResult("", (), "timeout", 1, 0, finish_detail="timeout")
    monkeypatch.setattr(loop, "_follow", lambda stream, stop: late)
    assert loop.run(Script("Hi"), interactive=False) == 1
    assert loop.talk.messages == []
    assert capsys.readouterr().err == "[timeout before the first word: nothing has changed]\n"


def test_a_first_message_that_gets_no_answer_leaves_no_file(loop: repl.Repl) -> None:
    loop.run(Script("!Hi"), interactive=True)
    assert kept.files() == []


def test_an_answer_that_cannot_be_shown_any_more_is_kept(
    loop: repl.Repl, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[str] = []

    def show(screen: object, text: str) -> None:
        pieces.append(text)
        if len(pieces) == 3:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(repl.AnswerScreen, "show", show)
    with pytest.raises(OSError, match="Input/output"):
        loop.run(Script("Count to ten."), interactive=True)
    [entry] = kept.entries()
    assert entry.messages[1]["content"].startswith("".join(pieces[:2]))


def test_another_writer_of_the_file_is_not_written_over(
    loop: repl.Repl, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.run(Script("Hi"), interactive=True)
    [file] = kept.files()
    file.write_text("somebody's")
    loop.run(Script("And then?"), interactive=True)
    assert file.read_text() == "somebody's"
    assert "goes on in a file of its own" in capsys.readouterr().err
    assert len(kept.read(kept.files()[0]).messages) == 4


def test_tokens_are_those_of_the_conversation(loop: repl.Repl) -> None:
    talk, counts = loop.talk, []
    assert talk.used == 0
    for line in ("Hi", "And then?", "/undo"):
        loop.run(Script(line), interactive=True)
        counts.append(talk.used)
    assert counts[0] == counts[2] < counts[1]
    talk.replace(talk.messages)  # as --resume does
    assert talk.used == counts[0]
