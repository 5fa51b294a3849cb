"""The command line: the only part of llmgen that prints.

commands/   one file per command
app.py      the table of commands, loaded lazily
exits.py    exceptions -> one sentence on stderr and an exit code
options.py  options that several commands share
output.py   tables, numbers and untrusted text for the terminal
wrapping.py where a terminal's rows end; growing.py and plain.py do that while text streams in
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the ``llmgen`` command and leave the process with its exit code."""
    import signal

    # until errors are reported, and again when nothing is left to report, Ctrl-C just ends the process
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from llmgen.cli.exits import reporting

    with reporting():
        from llmgen.cli.app import run

        run()
