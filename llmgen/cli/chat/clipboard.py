"""Text to the clipboard, through a desktop program or the terminal."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys

from llmgen.cli.terminal.output import size
from llmgen.cli.terminal.settings import is_simple
from llmgen.errors import LLMGenError

_MOST_OSC_52 = 74_000  # bytes of base64; terminals drop longer ones
_PATIENCE_S = 5

# The variable that must be set, and the command that reads the text from stdin.
_PROGRAMS = (
    ("WAYLAND_DISPLAY", ["wl-copy"]),
    ("DISPLAY", ["xclip", "-selection", "clipboard"]),
    ("DISPLAY", ["xsel", "--clipboard", "--input"]),
    (None, ["pbcopy"]),
    (None, ["termux-clipboard-set"]),
    (None, ["clip.exe"]),
    # tmux does not pass OSC 52 on from its programs, but passes this on to its own terminal.
    ("TMUX", ["tmux", "load-buffer", "-w", "-"]),
)


def copy(text: str) -> str:
    """Copy the text; returns how, for the user.  Raises LLMGenError if there is no way."""
    for program in _programs():
        if _runs(program, text):
            return f"copied with {program[0]}"
    data = base64.b64encode(text.encode("utf-8", "replace")).decode()
    if not sys.stdout.isatty() or is_simple():
        raise LLMGenError(
            "there is no clipboard here: no wl-copy, xclip, xsel or pbcopy that works, and no terminal to ask; "
            "/save and /export write files"
        )
    if len(data) > _MOST_OSC_52:
        raise LLMGenError(
            f"the answer is too long to be copied by the terminal ({size(len(data))}, at most "
            f"{size(_MOST_OSC_52)}); install wl-copy, xclip or xsel, or use /save or /export"
        )
    sys.stdout.write(f"\x1b]52;c;{data}\x07")
    sys.stdout.flush()
    return (
        "handed to the terminal to copy (OSC 52); where it does not take that, /save and /export write files"
    )


def _programs() -> list[list[str]]:
    """The programs that may work here.

    Over SSH, those that need no display would copy to a screen that the user cannot see.
    """
    remote = bool(os.environ.get("SSH_TTY") or os.environ.get("SSH_CONNECTION"))
    return [
        command
        for needs, command in _PROGRAMS
        if (os.environ.get(needs) if needs else not remote) and shutil.which(command[0])
    ]


def _runs(command: list[str], text: str) -> bool:
    """Run a program with the text on its stdin; False if it fails or hangs."""
    encoding = (
        "utf-16" if command[0] == "clip.exe" else "utf-8"
    )  # with a byte order mark, or it would use a code page
    try:
        done = subprocess.run(
            command,
            input=text.encode(encoding, "replace"),
            stdout=subprocess.DEVNULL,  # the clipboard's owner keeps running, and must not hold our streams
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
            check=False,
            start_new_session=True,  # Ctrl-C is for the conversation
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
