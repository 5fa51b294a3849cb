"""Text to the clipboard."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys

from llmgen.errors import LLMGenError

_MOST_OSC_52 = 74_000  # longer ones are dropped by terminals


def copy(text: str) -> None:
    """By the desktop's program, else by asking the terminal.  Raises LLMGenError."""
    for needs, command in (
        ("WAYLAND_DISPLAY", ["wl-copy"]),
        ("DISPLAY", ["xclip", "-selection", "clipboard"]),
        ("DISPLAY", ["xsel", "--clipboard", "--input"]),
        (None, ["pbcopy"]),
        (None, ["clip.exe" if sys.platform != "win32" else "clip"]),
    ):
        if (needs is None or os.environ.get(needs)) and shutil.which(command[0]):
            done = subprocess.run(
                command,
                input=text.encode("utf-8", "replace"),
                stdout=subprocess.DEVNULL,  # a clipboard's owner lives on, and must not keep our streams
                stderr=subprocess.DEVNULL,
                timeout=5,
                check=False,
            )
            if done.returncode == 0:
                return
    data = base64.b64encode(text.encode("utf-8", "replace")).decode()
    if not sys.stdout.isatty() or len(data) > _MOST_OSC_52:
        raise LLMGenError("there is no clipboard here; /save or /export write files instead")
    sys.stdout.write(f"\x1b]52;c;{data}\x07")
    sys.stdout.flush()
