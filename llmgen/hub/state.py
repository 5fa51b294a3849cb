"""What llmgen remembers about models: aliases, which files it has fetched, when a model was last used.

A small file each in the user's state folder, so that no process has to wait for another:

    aliases/NAME     what the name stands for
    fetched/KEY      a file that llmgen has fetched (JSON), KEY from its path
    used/KEY         its time is the model's last use
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path

from llmgen.errors import LLMGenError, UsageError, shown
from llmgen.files import read_bounded, replacing

STATE_VARIABLE = "LLMGEN_STATE"
_MOST_BYTES = 100_000
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}\Z")
_log = logging.getLogger(__name__)


def state_folder() -> Path:
    """Where what is remembered is kept: $LLMGEN_STATE, else the user's state folder."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(os.path.expanduser(chosen))
    import platformdirs

    return Path(platformdirs.user_state_dir("llmgen", appauthor=False))


# -- aliases


def is_alias_name(name: str) -> bool:
    """Whether this can be the name of an alias."""
    return bool(_ALIAS.match(name)) and not name.lower().endswith(".gguf")


def alias(name: str) -> str | None:
    """What an alias stands for; None where there is none of that name."""
    return _read(_aliases() / name) if is_alias_name(name) else None


def aliases() -> dict[str, str]:
    """All aliases by name, with what they stand for."""
    with suppress(OSError):
        names = sorted(path.name for path in _aliases().iterdir())
        return {name: target for name in names if (target := alias(name)) is not None}
    return {}


def set_alias(name: str, target: str) -> None:
    """Have ``name`` stand for ``target``.  Raises UsageError and LLMGenError."""
    if not is_alias_name(name):
        raise UsageError(
            f"{shown(name)} cannot be an alias; take up to 64 letters, digits, dots and dashes, and no .gguf at the end"
        )
    try:
        _write(_aliases() / name, target)
    except OSError as error:
        raise LLMGenError(
            f"cannot keep the alias {name} in {_aliases()}: {error.strerror or error}"
        ) from None


def remove_alias(name: str) -> None:
    """Forget an alias.  Raises LLMGenError."""
    try:
        (_aliases() / name).unlink(missing_ok=True)
    except OSError as error:
        raise LLMGenError(f"cannot remove the alias {name}: {error.strerror or error}") from None


def _aliases() -> Path:
    return state_folder() / "aliases"


# -- files that were fetched


def note_fetched(path: Path, source: str, partial: Path | None = None) -> None:
    """Remember that llmgen has fetched this file, and from where.

    Before it is moved to ``path`` it is still at ``partial``: a program that is killed between the two
    leaves a note of nothing, and no file that nobody seems to have fetched.
    """
    with _best_effort("that a file was fetched"):
        about = {**_identity(partial or path), "path": str(_real(path)), "source": source}
        _write(_of(path, "fetched"), json.dumps(about))


def fetched_from(path: Path) -> str | None:
    """Where llmgen has fetched this file from; None where it has not, or where another file is in its place."""
    with suppress(OSError, ValueError, RecursionError):
        note = json.loads(_read(_of(path, "fetched")) or "null")
        if isinstance(note, dict) and _identity(path).items() <= note.items():
            return str(note.get("source"))
    return None


def _identity(path: Path) -> dict[str, str | int]:
    """What tells a fetched file from one that was changed, or put in its place, since."""
    status = path.stat()
    return {"path": str(_real(path)), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def forget(path: Path) -> None:
    """Forget a file that was removed."""
    with _best_effort("that a file was removed"):
        for kind in ("fetched", "used"):
            _of(path, kind).unlink(missing_ok=True)


# -- the last use


def note_use(path: Path) -> None:
    """Remember that a model is used now."""
    with _best_effort("when a model was used"):
        note = _of(path, "used")
        if note.exists():
            os.utime(note)
        else:
            _write(note, str(_real(path)))


def last_use(path: Path) -> float | None:
    """When a model was last used, in seconds since 1970; None where that is not known."""
    with suppress(OSError):
        return _of(path, "used").stat().st_mtime
    return None


# -- inside


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _of(path: Path, kind: str) -> Path:
    import hashlib  # here, because completion must be instant

    key = hashlib.sha256(os.fsencode(_real(path))).hexdigest()[:32]
    return state_folder() / kind / key


def _read(path: Path) -> str | None:
    with suppress(OSError), open(path, "rb") as file:
        return (read_bounded(file, _MOST_BYTES) or b"").decode("utf-8", "surrogateescape") or None
    return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))


class _best_effort(suppress):
    """A state folder that cannot be written keeps nobody from a model; --verbose tells of it."""

    def __init__(self, what: str) -> None:
        super().__init__(OSError)
        self._what = what

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            _log.debug("cannot remember %s: %s", self._what, error)
        return bool(super().__exit__(kind, error, trace))  # type: ignore[arg-type]
