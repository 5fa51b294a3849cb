"""``llmgen chat`` over pipes: the files that it reads and writes, and what is kept when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmgen.cli.chats import kept
from models import smollm2
from program import HANGS_S, PROGRAM, environment, llmgen, refused
from talking import chat

pytestmark = pytest.mark.usefixtures("compiled")


def test_saving_loading_and_resuming(tmp_path: Path) -> None:
    path, page = tmp_path / "talk.json", tmp_path / "talk.md"
    chat("My name is Zebulon.", f"/save {path}", f'/export "{page}"')
    saved = json.loads(path.read_text())["messages"]
    assert [message["role"] for message in saved] == ["user", "assistant"]
    assert "## User\n\nMy name is Zebulon." in page.read_text()
    out, err = chat(f"/load {path}", "What is my name?")
    assert "Zebulon" in out
    assert "2 messages from" in err
    out, _ = chat("/show messages", "What is my name?", options=("--resume",))
    assert "Zebulon" in out
    _, err = chat("/show messages", options=("--resume",))
    assert err.count("user: ") == 3
    chats = sorted((Path(os.environ["LLMGEN_STATE"]) / "chats").iterdir())
    chat("Hi", options=("--no-save",))
    assert sorted((Path(os.environ["LLMGEN_STATE"]) / "chats").iterdir()) == chats
    _, err = chat(f"/load {page}", "/load /none", "/save /proc/none/x")
    assert err.count("error: ") == 3


def test_files_go_with_the_next_message(tmp_path: Path) -> None:
    note, long, odd = tmp_path / "note.txt", tmp_path / "long.txt", tmp_path / "odd.bin"
    note.write_text("The password is swordfish.\n")
    long.write_text("many words " * 3000)
    odd.write_bytes(b"\xff\xfe\x00")
    said = (f"/read {note}", "What is the password?", "Well?", "/show messages")
    out, err = chat(*said, f"/read {long}", f"/read {odd}", "/read /none", options=("-c", "2000"))
    assert "swordfish" in out
    assert "user: note.txt:\n```\nThe password is swordfish.\n```\n\nWhat is the password?" in err
    assert "note.txt, " in err
    assert "are free in the context" in err
    assert "is not UTF-8 text" in err
    assert "cannot read /none" in err


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    _, err = chat(f"/read {pipe}", f"/load {pipe}", f"/save {pipe}", f"/export {tmp_path}", "/read ~none/x")
    assert err.count("not a regular file; give a file") == 2
    assert "it is a pipe or a device; give a file" in err
    assert "it is a folder; give a file" in err
    assert err.count("error: ") == 5
    assert pipe.is_fifo()


def test_a_path_at_the_beginning_of_a_message() -> None:
    _, err = chat("/etc/hosts has what?", "/home", "/x1")
    assert "/etc/hosts is not a command; to send a message that begins with a slash" in err
    assert "begin it with two: //etc/hosts\n" in err
    assert "begin it with two: //home)" in err
    assert err.count("error: ") == 3


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    notes, own = tmp_path / "notes.txt", tmp_path / "own.json"
    notes.write_text("mine")
    said = (
        f"/save {own}",
        "Hi",
        f"/save {own}",
        f"/save {notes}",
        f"/export {notes}",
        f"/save {tmp_path}/no/x",
    )
    _, err = chat(*said)
    assert notes.read_text() == "mine"
    assert len(json.loads(own.read_text())["messages"]) == 2
    assert f"{notes} exists already; /export! {notes} replaces it" in err
    assert "there is no folder" in err
    assert err.count("error: ") == 3
    chat("Hi", f"/export! {notes}", f"/load {own}", f"/save {own}", f"/save! {notes}")
    assert json.loads(notes.read_text())["messages"]


def test_a_first_message_and_files(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("The password is swordfish.\n")
    command = (
        "chat",
        str(smollm2()),
        "What is the password?",
        "-f",
        str(note),
        "--temp",
        "0",
        "-n",
        "20",
        "--json",
    )
    done = llmgen(*command, input="/show messages\n")
    told = json.loads(done.stdout)
    assert told["message"].startswith("note.txt:\n```\nThe password is swordfish.\n```\n\nWhat is")
    assert "swordfish" in told["text"]
    assert "cannot read /none" in refused(llmgen("chat", str(smollm2()), "Hi", "-f", "/none"))


def long_answer() -> subprocess.Popen[bytes]:
    """A chat over pipes that gives a long answer."""
    return subprocess.Popen(
        [*PROGRAM, "chat", str(smollm2()), "Count.", "--ignore-eos", "-n", "7000", "--seed", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        bufsize=0,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_to_end_keeps_what_there_is_of_the_answer(name: str) -> None:
    number = signal.Signals[name]
    program = long_answer()
    assert program.stdout is not None
    shown = program.stdout.read(40)
    program.send_signal(number)
    rest, _ = program.communicate(timeout=HANGS_S)
    assert program.returncode == 128 + number
    [entry] = kept.entries()
    assert [message["role"] for message in entry.messages] == ["user", "assistant"]
    assert entry.messages[1]["content"].strip() == (shown + rest).decode().strip()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_a_reader_that_goes_away_loses_nothing_of_the_answer() -> None:
    program = long_answer()
    assert program.stdout is not None
    shown = program.stdout.read(40)
    program.stdout.close()
    assert program.wait(timeout=HANGS_S) == 0
    [entry] = kept.entries()
    assert shown in entry.messages[1]["content"].encode()


def test_the_conversations_command(tmp_path: Path) -> None:
    assert "no conversation is kept yet" in llmgen("chats").stderr
    chat("My name is Zebulon.")
    chat("Hello.", "Hello again.")
    listed = [json.loads(line) for line in llmgen("chats", "--json").stdout.splitlines()]
    assert [entry["title"] for entry in listed] == ["Hello.", "My name is Zebulon."]
    assert [entry["messages"] for entry in listed] == [4, 2]
    assert "Zebulon" in llmgen("chats", "list").stdout
    found = llmgen("chats", "search", "zebulon", "NAME").stdout
    assert "    user: My name is Zebulon.\n" in found
    assert "no message holds xylophone" in llmgen("chats", "search", "xylophone").stderr
    assert refused(llmgen("chats", "search", " "), 2) == "WORD is empty; give what a message must hold"
    assert llmgen("chats", "rename", "2", "Names").returncode == 0
    _, err = chat("/show messages", "/rename The other", options=("--open", "names"))
    assert "user: My name is Zebulon." in err
    page = llmgen("chats", "export", "the other").stdout
    assert page.startswith("# The other\n\n## User\n\nMy name is Zebulon.\n")
    out = tmp_path / "x.json"
    for options, code in ((), 0), ((), 2), (("--force",), 0):
        done = llmgen("chats", "export", "the other", "--format", "json", "-o", str(out), *options)
        assert done.returncode == code
    assert json.loads(out.read_text())["title"] == "The other"
    assert "removed" in llmgen("chats", "remove", "the other").stderr
    assert "no conversation 'the other'" in refused(llmgen("chats", "export", "the other"), code=2)
    assert len(list(kept.entries())) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_kill_loses_nothing_and_ctrl_c_ends_a_script() -> None:
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        program = subprocess.Popen(
            [*PROGRAM, "chat", str(smollm2()), "--ignore-eos", "-n", "7000", "--seed", "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(f"My name is Signal{number}.\n".encode())
        program.stdin.flush()
        program.stdout.read(20)
        program.send_signal(number)
        program.communicate(timeout=HANGS_S)
        assert program.returncode == code
        _, err = chat("/show messages", options=("--resume",))
        assert f"Signal{number}" in err
