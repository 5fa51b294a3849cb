"""What guessing has shown of a model and its draft, kept in a file from one program to the next.

Without it each program begins with nothing known: it measures what runs of several tokens cost, and may lose so
little that two wrong guesses end it.  The file is JSON, {"format": "llmgen guesses", "version": 1,
"entries": [entry ...]}, written whole or not at all; an entry has a key (a hash of the models, the machine
and the kind of cache), costs in plain steps, what was gained, and shares of right guesses.  No text is kept.
A file that cannot be read or written is as good as none: the text is the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from llmgen.engine.speculation.costs import StepCosts
from llmgen.engine.speculation.experience import Experience
from llmgen.files import folder_lock, read_bounded, replacing

_log = logging.getLogger(__name__)
_FORMAT, _VERSION = "llmgen guesses", 1
_MOST_BYTES, _MOST_ENTRIES = 1 << 20, 100


class GuessMemory:
    """The entry of one model with its draft."""

    def __init__(self, path: Path, *what: object) -> None:
        """``what``: everything that must be equal for the entry to hold."""
        self._path = path
        self._key = hashlib.sha256(json.dumps([str(part) for part in what]).encode()).hexdigest()

    def load(self, costs: StepCosts, experience: Experience) -> None:
        """Begin with what was kept; with nothing where that is damaged."""
        for entry in self._entries():
            if entry.get("key") == self._key:
                try:
                    kept_costs, kept_experience = entry["costs"], entry["experience"]
                    Experience().recall(kept_experience)  # all of an entry is used, or nothing
                    costs.recall(kept_costs)
                    experience.recall(kept_experience)
                except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                    _log.debug("what guesses have shown is not used: %r in %s", error, self._path)

    def save(self, costs: StepCosts, experience: Experience) -> None:
        """Keep what is known now, if that is enough to begin with."""
        known = costs.known()
        if known is None or str(self._path).startswith("~"):  # no home is known
            return
        entry = {"key": self._key, "costs": known, "experience": experience.known()}
        try:
            # another program may add an entry at the same time
            with folder_lock(self._path.with_name(f"{self._path.name}.edit"), lambda: None):
                others = [other for other in self._entries() if other.get("key") != self._key]
                content = {
                    "format": _FORMAT,
                    "version": _VERSION,
                    "entries": [entry, *others][:_MOST_ENTRIES],
                }
                with replacing(self._path.resolve()) as file:
                    file.write(json.dumps(content, indent=1).encode())
        except (OSError, RuntimeError) as error:  # a link to itself is a RuntimeError before Python 3.13
            _log.debug("what guesses have shown is not kept: %s", error)

    def _entries(self) -> list[dict[str, Any]]:
        try:
            if not self._path.is_file():
                return []
            with open(self._path, "rb") as file:
                content = json.loads(read_bounded(file, _MOST_BYTES) or b"")
            if content["format"] != _FORMAT or content["version"] != _VERSION:
                return []
            return [entry for entry in content["entries"] if isinstance(entry, dict)]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _log.debug("cannot use %s: %s", self._path, error)
            return []
