"""How a command ends: any error becomes one sentence on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from llmgen.cli.common.interrupts import end_process, raise_interrupt
from llmgen.cli.common.streams import CANNOT_WRITE, prepare_streams, silence_stdout
from llmgen.cli.terminal.output import say
from llmgen.cli.terminal.settings import is_quiet
from llmgen.errors import LLMGenError, shown
from llmgen.visible import visible

DONE = 0
FAILED = 1
TIMEOUT = 124
INTERRUPTED = 130
_BY_FINISH_REASON = {"timeout": TIMEOUT, "interrupted": INTERRUPTED}

_NO_MEMORY = "out of memory; try a smaller context (-c) or a smaller model"


def exit_code(finish_reasons: Iterable[str]) -> int:
    """The exit code for answers that ended for these reasons: an interruption counts before a timeout."""
    return max((_BY_FINISH_REASON.get(reason, DONE) for reason in finish_reasons), default=DONE)


@contextmanager
def reporting() -> Iterator[None]:
    """Run the program inside: raises SystemExit with one of the codes above, always."""
    try:
        prepare_streams()
        warnings.showwarning = _show_warning
        raise_interrupt()
        yield
        code = DONE
    except SystemExit as error:
        end_process()
        code = error.code if isinstance(error.code, int) else DONE
    except BaseException as error:
        end_process()
        code = _report(error)
    end_process()
    raise SystemExit(_flush(code))


def _report(error: BaseException) -> int:
    """Print the sentence for ``error`` on stderr and return its exit code."""
    if isinstance(error, BrokenPipeError):
        silence_stdout()
        return DONE
    if _was_interrupted(error):
        return INTERRUPTED
    if type(error).__name__ == "Exit" and hasattr(
        error, "exit_code"
    ):  # Typer's, recognized by its attributes
        return int(error.exit_code)
    message, code = describe(error)
    _say(f"error: {visible(message)}")
    if isinstance(error, OSError) and error.filename is CANNOT_WRITE:
        silence_stdout()  # a flush would fail again
    if os.environ.get("LLMGEN_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    return code


def _was_interrupted(error: BaseException) -> bool:
    """Whether this is Ctrl-C, or an error that Python or a library turned it into (during an import, say)."""
    if isinstance(error, LLMGenError):
        return False
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def describe(error: BaseException) -> tuple[str, int]:
    """The message and the exit code of an error."""
    if isinstance(error, LLMGenError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        return _NO_MEMORY, FAILED
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        return _describe_usage(error)
    if isinstance(error, OSError):
        return _describe_os_error(error), FAILED
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return (
            "the system gives no further thread; use fewer (-t), or raise the limit (ulimit -u, -v)",
            FAILED,
        )
    kind = type(error).__name__
    return f"unexpected {kind}: {error} (this is a bug; LLMGEN_DEBUG=1 shows where)", FAILED


def _describe_os_error(error: OSError) -> str:
    """Name the file that failed (for the output, see :class:`streams._Output`), or else the system."""
    reason = error.strerror or str(error)
    if error.filename:
        return f"{error.filename}: {reason}"
    if error.errno == errno.ENOMEM:
        return _NO_MEMORY
    return f"the system refused a request: {reason}"


def _describe_usage(error: BaseException) -> tuple[str, int]:
    """The message and the exit code of Typer's usage errors, known by their attributes: their class has moved."""
    message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "llmgen"
    message = _without_pydantics_words(message[:1].lower() + message[1:], error)
    return f"{message} (see `{command} --help`)", int(error.exit_code)  # type: ignore[attr-defined]


def _without_pydantics_words(message: str, error: BaseException) -> str:
    """The message about a value, which Typer takes from Pydantic, as a sentence that names the value."""
    problems = getattr(error.__cause__, "errors", None)
    if not callable(problems) or ": Input should be" not in message:
        return message.replace(": Value error, ", ": ")
    expected = message.partition(", unable to parse")[0].replace(": Input should be", ": it should be")
    return f"{expected}, not {shown(problems()[0]['input'])}"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning without the line of code that it came from, which means nothing to a user."""
    if not is_quiet():
        _say(f"warning: {visible(message)}")


def _flush(code: int) -> int:
    """Flush stdout; a full disk still has to be reported."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:
        silence_stdout()
        _say(f"error: {CANNOT_WRITE}: {error.strerror or error}")
        return code or FAILED
    return code


def _say(line: str) -> None:
    try:
        say(line)
    except (OSError, ValueError):
        pass
