"""``llmgen chat``: a first, small conversation."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from models import gemma3, smollm2
from program import PROGRAM, environment, llmgen, refused

pytestmark = pytest.mark.usefixtures("compiled")


def chat(*lines: str, options: tuple[str, ...] = ()) -> tuple[str, str]:
    """Stdout and stderr of a conversation from a pipe, with short greedy answers."""
    done = llmgen(
        "chat",
        str(smollm2()),
        "--temp",
        "0",
        "-n",
        "12",
        *options,
        input="".join(f"{line}\n" for line in lines),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_conversation_goes_on() -> None:
    name = "My name is Zebulon."
    first, _ = chat(name)
    both, _ = chat(name, "What is my name?")
    assert both.startswith(first)
    assert "Zebulon" in both[len(first) :]
    forgotten, _ = chat(name, "/clear", "What is my name?")
    assert "Zebulon" not in forgotten[len(first) :]


def test_commands() -> None:
    out, err = chat("/set max_tokens 1", "/set tmp 1", "/nothing", "/help", "/exit", "never read")
    assert out == ""
    assert "did you mean temp" in err
    assert "there is no command /nothing" in err
    assert "/clear" in err
    short, err = chat("/set max_tokens 1", "Hi")
    assert "[length: max_tokens]" in err
    assert len(short.split()) <= 1


def test_refusals() -> None:
    assert "chat template" in refused(llmgen("chat", str(gemma3()), input="Hi\n"))
    assert "--logprobs" in refused(llmgen("chat", str(smollm2()), "--logprobs", "1", input="Hi\n"), code=2)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX terminal")
def test_in_a_terminal() -> None:
    import pexpect

    program: Any = pexpect.spawn(
        PROGRAM[0],
        [*PROGRAM[1:], "chat", str(smollm2()), "--seed", "1", "--ignore-eos", "-n", "2000"],
        env=environment(TERM="xterm-256color", PROMPT_TOOLKIT_NO_CPR="1"),  # type: ignore[arg-type]
        encoding="utf-8",
        timeout=60,
    )
    program.expect(">")
    program.send("Tell me a long story.\r")
    program.expect(r"story\.[\s\S]*\n[\s\S]*\w+ \w+ \w+ \w+")
    program.sendintr()
    program.expect("interrupted")
    program.expect(">")
    program.sendeof()
    program.expect(pexpect.EOF)
    program.wait()
    assert program.exitstatus == 0
    assert "Traceback" not in program.before
