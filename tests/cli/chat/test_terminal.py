"""``llmgen chat`` in a real terminal: typing, pasting, interrupting, resizing."""

from __future__ import annotations

import base64
import os
import re
import shlex
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgen.cli.chats import kept
from models import smollm2
from program import HANGS_S, PROGRAM, environment, signalled

pytestmark = [
    pytest.mark.usefixtures("compiled"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX terminal"),
]
ESCAPE = "\x1b"
PASTE, END = "\x1b[200~", "\x1b[201~"


def drawn(text: str) -> str:
    """A pattern for text in the line that is edited, which a busy machine draws in several steps."""
    return r"(?:\x1b\[[\d;?]*[A-Za-z])*".join(map(re.escape, text))


class Terminal:
    """A conversation in a pseudo-terminal that tells where its cursor is, as real ones do."""

    shell: tuple[str, list[str]] | None = None
    """What runs in the terminal and begins the conversation."""

    def __init__(self, *options: str, begins: str = "", program: list[str] = PROGRAM, **changes: str) -> None:
        import pexpect

        arguments = ["chat", str(smollm2()), *options]
        self.program: Any = pexpect.spawn(
            *(self.shell or (program[0], [*program[1:], *arguments])),
            env=environment(**({"TERM": "xterm-256color", "NO_COLOR": None} | changes)),  # type: ignore[arg-type]
            encoding="utf-8",
            timeout=HANGS_S,
            dimensions=(24, 80),
        )
        self.eof = pexpect.EOF
        if self.shell:
            self.program.send(shlex.join([*PROGRAM, *arguments]) + "\n")
        if begins and not begins.endswith("tokens"):
            self.wait_for(begins)
        self.wait_for(r"/help lists the commands")
        if begins.endswith("tokens"):
            self.wait_for(begins)
        else:
            self.ready()

    def wait_for(self, pattern: str) -> str:
        """Read up to a pattern; questions for the cursor's place are answered on the way."""
        seen = ""
        while self.program.expect([pattern, r"\x1b\[6n"]):
            seen += self.program.before
            self.program.send("\x1b[20;1R")
        return seen + str(self.program.before)

    def ready(self) -> str:
        """Read up to the next prompt."""
        return self.wait_for(r"\x1b\[\?2004h") + self.wait_for(r"tokens \(")

    def say(self, text: str) -> str:
        """Type a message and Enter; returns what came until the next prompt."""
        self.program.send(text + "\r")
        self.wait_for(r"\x1b\[\?2004l")  # the prompt is done
        return self.ready()

    def messages(self) -> str:
        """What /show messages says."""
        return self.say("/show messages").replace("\r\n", "\n")

    def leave(self) -> int:
        """Leave with Ctrl-D; returns the exit code."""
        self.program.sendeof()
        return self.wait()

    def wait(self) -> int:
        self.program.expect(self.eof)
        self.program.wait()
        assert "Traceback" not in self.program.before
        return int(self.program.exitstatus)


class Shell(Terminal):
    """A conversation that was begun from a shell with jobs."""

    shell = "bash", ["--norc", "--noprofile", "--noediting", "-i"]

    def modes(self) -> str:
        """Which of the terminal's modes are on, as the shell's other programs meet them."""
        self.program.send("stty -a; echo 'the' end\n")
        return self.wait_for("the end")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    yield from opened("--temp", "0", "-n", "8")


def opened(*options: str, **settings: Any) -> Iterator[Terminal]:
    one = Terminal(*options, **settings)
    yield one
    one.program.close(force=True)


def test_lines_pastes_and_history(terminal: Terminal) -> None:
    terminal.say("first\x1b\rsecond")  # Alt-Enter
    terminal.say('"""\rthird\rfourth"""')
    terminal.say(f"{PASTE}fifth\nsixth{END}")
    terminal.say("\u4e2d\u6587\U0001f389 wide\x1b[D\x1b[D\x1b[D\x1b[D\x7f\x1b[F!")  # Left, Backspace, End
    shown = terminal.messages()
    for text in ("user: first\nsecond\n", "user: third\nfourth\n", "user: fifth\nsixth\n"):
        assert text in shown
    assert "user: \u4e2d\u6587\U0001f389wide!\n" in shown
    terminal.say("\x1b[A\x1b[A")  # up, past /show messages
    assert terminal.messages().count("wide!") == 2
    assert terminal.leave() == 0
    history = Path(os.environ["LLMGEN_STATE"]) / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+first\n+second\n" in history.read_text()
    again = Terminal("-n", "1")
    again.program.send("\x1b[A")
    again.wait_for(drawn("/show messages"))
    again.program.send("\x15")
    assert again.leave() == 0


def test_completion(terminal: Terminal) -> None:
    terminal.program.send("/und\t")
    terminal.wait_for(drawn("/undo"))
    terminal.program.send("\x15/set dry_base\t 2\r")
    terminal.ready()
    assert re.search(r"dry_base\s+2.0  \(changed\)", terminal.say("/show"))
    assert terminal.leave() == 0


def test_ctrl_c_stops_an_answer_and_keeps_it() -> None:
    for one in opened("--seed", "1", "--ignore-eos", "-n", "5000"):
        one.program.send("Tell me a long story.\r")
        one.wait_for(r"\x1b\[\?2004l")
        one.wait_for(r"\w+ \w+ \w+ \w+ \w+ ")
        one.program.sendintr()
        one.wait_for(r"interrupted; /continue goes on")
        one.ready()
        assert len(one.messages().partition("assistant: ")[2].split()) >= 4
        one.say("/set max_tokens 3")
        one.say("And then?")
        one.program.send("half a line")
        one.wait_for(drawn("half a line"))
        one.program.sendintr()
        one.wait_for("Ctrl-C again or Ctrl-D leaves")
        one.ready()
        one.program.sendintr()
        assert one.wait() == 0


@pytest.mark.parametrize("wait", [0.0, 0.002, 0.02])
def test_ctrl_c_right_after_enter_stops_the_answer(wait: float) -> None:
    # It reaches the editor, the terminal between two modes, or the program: none may lose it.
    for one in opened("--seed", "1", "--ignore-eos", "-n", "8000"):
        one.program.send("Tell me a long story.\r" + ("" if wait else "\x03"))
        if wait:
            time.sleep(wait)
            one.program.sendintr()
        one.wait_for(r"\[interrupted")
        before = "before the first word" in one.ready()
        assert ("user: Tell me a long story.\n" in one.messages()) is not before
        assert one.leave() == 0


def test_ctrl_c_during_a_prompt_changes_nothing(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("many words " * 1500)
    # "Hi" takes four runs, and the question six; the system sends the same signal for the key
    program = signalled("llmgen.backends.cpu.model:Model.forward", 7)
    for one in opened("--temp", "0", "-n", "4", program=program):
        one.say("Hi")
        one.say(f"/read {note}")
        one.program.send("How many?\r")
        one.wait_for("interrupted before the first word: nothing has changed, Up brings it again")
        used = int(re.findall(r"(\d+) / 8192 tokens", one.wait_for(r"\(\d+%\)"))[-1])
        assert 30 < used < 100
        shown = one.messages()
        assert (shown.count("user: "), shown.count("assistant: ")) == (1, 1)
        one.program.send("\x1b[A\x1b[A")  # up, past /show messages
        one.wait_for(drawn("How many"))
        one.program.send("\x15")
        assert one.leave() == 0


def test_the_tokens_in_the_context_are_those_of_the_conversation() -> None:
    for one in opened("--temp", "0", "-n", "4"):
        seen = []
        for line in ("Hi", "And then?", "/undo", "/set top_k 3"):
            one.program.send(line + "\r")
            one.wait_for(r"\x1b\[\?2004l")
            one.wait_for(r"\x1b\[\?2004h")
            one.wait_for(r" \| (?=\d+ / 8192 tokens)")
            seen.append(one.wait_for(r" / 8192"))
        assert seen[0] == seen[2] == seen[3] < seen[1]
        assert one.leave() == 0
    again = Terminal("--resume", "-n", "4", begins=rf"{seen[0]} / 8192 tokens")
    assert again.leave() == 0


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_at_the_prompt_leaves_the_terminal_in_order(name: str, code: int) -> None:
    import termios

    for one in opened("-n", "1"):
        one.program.send("half a line")
        one.wait_for(drawn("half a line"))
        one.program.kill(signal.Signals[name])
        one.wait_for(r"\x1b\[\?2004l")
        assert one.wait() == code
        assert termios.tcgetattr(one.program.child_fd)[3] & (termios.ICANON | termios.ISIG)


def test_a_terminal_that_is_closed_keeps_what_it_has_shown() -> None:
    one = Terminal("--seed", "1", "--ignore-eos", "-n", "8000")
    one.program.send("Tell me a long story.\r")
    one.wait_for(r"\x1b\[\?2004l")
    one.wait_for(r"\w+ \w+ \w+ \w+ \w+ ")
    words = str(one.program.after).split()
    one.program.ptyproc.fileobj.close()  # the system sends SIGHUP
    one.program.closed = one.program.ptyproc.closed = True
    assert os.waitstatus_to_exitcode(os.waitpid(one.program.pid, 0)[1]) == 129
    [entry] = kept.entries()
    assert " ".join(words) in " ".join(entry.messages[1]["content"].split())


def test_two_terminals_in_one_conversation_lose_nothing() -> None:
    for one in opened("--temp", "0", "-n", "2"):
        one.say("Hi")
        for two in opened("--temp", "0", "-n", "2", "--resume", begins="goes on with a copy of it"):
            one.say("From one")
            two.say("From two")
            assert one.leave() == two.leave() == 0
    users = [{m["content"] for m in entry.messages if m["role"] == "user"} for entry in kept.entries()]
    assert sorted(users, key=sorted) == [{"Hi", "From one"}, {"Hi", "From two"}]


def test_a_first_message_from_the_command_line() -> None:
    for one in opened("Name a colour.", "--temp", "0", "-n", "4"):
        assert "user: Name a colour.\n" in one.messages()
        assert one.leave() == 0


def test_keys_during_an_answer_wait_for_the_next_message() -> None:
    for one in opened("--seed", "1", "--ignore-eos", "-n", "8000"):
        one.program.send("Tell me a long story.\r")
        one.wait_for(r"\w+ \w+ \w+ ")
        one.program.send("zebr\u00e1\x1b[DX")
        shown = one.wait_for(r"\w+ \w+ \w+ \w+ \w+ \w+ ")
        one.program.sendintr()
        assert "zebr" not in shown + one.wait_for("interrupted; /continue goes on")
        one.ready()
        one.program.send("sun\r")  # after what was typed before Ctrl-C
        one.wait_for(r"\x1b\[\?2004l")
        one.wait_for(r"\w+ \w+ ")
        one.program.sendintr()
        one.ready()
        assert "user: zebrXsun\u00e1\n" in one.messages()
        one.program.send("And now?\r")
        one.wait_for(r"\x1b\[\?2004l")
        one.program.send("/set max_tokens 9\r")  # obeyed when the answer has ended
        one.wait_for(r"\w+ \w+ ")
        one.program.sendintr()
        one.wait_for("max_tokens = 9")
        one.ready()
        assert one.leave() == 0


def test_ctrl_z_gives_the_terminal_to_the_shell() -> None:
    one = Shell("--seed", "1", "--ignore-eos", "-n", "8000")
    one.program.send("Tell me a")
    one.wait_for(drawn("Tell me a"))
    one.program.send("\x1a")
    one.wait_for("Stopped")
    assert " echo " in one.modes()
    one.program.send("fg\n")
    one.ready()
    one.program.send(" story.\r")
    one.wait_for(r"\x1b\[\?2004l")
    one.wait_for(r"\w+ \w+ \w+ ")
    one.program.send("\x1a")  # while the answer comes
    one.wait_for("Stopped")
    assert " echo " in one.modes()
    one.program.send("fg\n")
    one.wait_for(r"\w+ \w+ \w+ ")
    one.program.sendintr()
    one.ready()
    assert "user: Tell me a story.\n" in one.messages()
    one.program.close(force=True)


def test_what_is_typed_after_the_last_message_is_for_the_shell() -> None:
    setting = Path("/proc/sys/dev/tty/legacy_tiocsti")
    if setting.exists() and setting.read_text().strip() == "0":
        pytest.skip("this system forbids programs to put keys back")
    one = Shell("--temp", "0", "-n", "2")
    one.program.send("Hi\r/exit\recho $((40 + 2))\r")
    one.wait_for(r"\s42\s")
    one.program.close(force=True)


def test_edit_and_status(terminal: Terminal) -> None:
    terminal.say("Name a colour.")
    terminal.program.send("/edit\r")
    terminal.wait_for("edit> ?")
    terminal.wait_for(drawn("colour"))
    time.sleep(0.3)
    terminal.program.send("\x7f\x7f\x7f\x7f\x7f\x7f\x7fflower.\r")
    terminal.wait_for(r"\x1b\[\?2004l")
    terminal.wait_for(r"\d+ / 8192 tokens \(\d+%\) \| [\d.]+ tokens/s")
    assert "user: Name a flower." in terminal.messages()
    assert "did you mean /regen?" in terminal.say("/regne")
    assert terminal.leave() == 0


def test_a_terminal_that_does_not_tell_its_cursor() -> None:
    import pexpect

    program = pexpect.spawn(
        PROGRAM[0],
        [*PROGRAM[1:], "chat", str(smollm2()), "--temp", "0", "-n", "4"],
        env=environment(TERM="xterm-256color", NO_COLOR=None),
        encoding="utf-8",
        timeout=HANGS_S,
    )
    program.expect(r"0 / 8192 tokens \(0%\)\]")  # above the prompt, as there can be no line below
    assert "WARNING" not in program.before
    program.send("Hi\r")
    program.expect(r"\d\d / 8192 tokens .*tokens/s\]")
    program.sendeof()
    program.expect(pexpect.EOF)


def test_copying(tmp_path: Path) -> None:
    for one in opened("--temp", "0", "-n", "4", PATH="", DISPLAY="", WAYLAND_DISPLAY="", TMUX=""):
        one.say("Hi")
        told = one.say("/copy")
        [data] = re.findall(r"\x1b\]52;c;([\w+/=]+)\x07", told)
        assert base64.b64decode(data).decode() in one.messages()
        assert "handed to the terminal" in told
        assert one.leave() == 0
    program = tmp_path / "xclip"
    clip = shlex.quote(str(tmp_path / "clip"))
    program.write_text(f'#!/bin/sh\nwhile IFS= read -r line || [ "$line" ]; do echo "$line"; done > {clip}\n')
    program.chmod(0o755)
    for one in opened(
        "--temp", "0", "-n", "4", PATH=str(tmp_path), DISPLAY=":9", WAYLAND_DISPLAY="", TMUX=""
    ):
        one.say("Hi")
        assert "copied with xclip" in one.say("/copy")
        assert (tmp_path / "clip").read_text().strip() in one.messages()
        program.write_text("#!/bin/sh\nexit 1\n")
        assert "\x1b]52;c;" in one.say("/copy")
        assert one.leave() == 0


def test_a_resize_in_the_middle(terminal: Terminal) -> None:
    terminal.say("/set max_tokens 60")
    terminal.program.send("Write a **long** line.\r")
    terminal.wait_for(r"\x1b\[\?2004l")
    for size in ((10, 30), (40, 120), (24, 20), (24, 80)):
        terminal.program.setwinsize(*size)
        time.sleep(0.05)
    terminal.ready()
    assert "user: Write a" in terminal.messages()
    assert terminal.leave() == 0


def test_what_the_model_writes_cannot_steer_the_terminal(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    for one in opened("--temp", "0", "-n", "8", "--template", str(template)):
        one.program.send(f"{PASTE}{20 * (ESCAPE + '[9m ')}{END}\r")
        one.wait_for(r"\x1b\[\?2004l")
        assert "\x1b[9m" not in one.ready()
        shown = one.messages()
        assert "\x1b[9m" not in shown
        assert "\\x1b[9m" in shown
        assert one.leave() == 0


def test_fifty_turns() -> None:
    for one in opened("--temp", "0", "-n", "4", "--ignore-eos"):
        for turn in range(50):
            one.say(f"Say {turn}.")
        told = one.say("/stats")
        new = re.search(r"(\d+) of them cached, (\d+) new", told)
        assert new is not None
        assert int(new[2]) < 20 < 500 < int(new[1])
        for _ in range(3):
            one.say("/undo")
        assert one.messages().count("user: Say") == 47
        assert one.leave() == 0
