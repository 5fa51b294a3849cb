"""The command line: the only part of llmgen that prints.

app.py      the table of commands, loaded lazily
run/, batch/, bench/, chat/, chats/, tokenize/
            a command each: command.py holds its options and its help
inspect.py, list.py, perplexity.py, plan.py, pull.py, quantize.py ...
            commands of one file each
common/     what several commands share: options, models, templates, exit codes
terminal/   how text reaches a terminal or a pipe: output, progress, wrapping
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the ``llmgen`` command and leave the process with its exit code."""
    from llmgen.cli.common.interrupts import end_process

    end_process()  # until errors are reported
    from llmgen.cli.common.exits import reporting

    with reporting():
        from llmgen.cli.app import run

        run()
