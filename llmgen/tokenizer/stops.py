"""Stop strings, matched across token boundaries."""

from __future__ import annotations

from llmgen.errors import UsageError


class StopMatcher:
    """Lets text through up to the first stop string.

    No part of a stop string is ever returned: text that may be the beginning of one is held
    back until that is known.  ``stopped_by`` is the string that was found, or None.
    """

    def __init__(self, stops: list[str]) -> None:
        """Raises UsageError for an empty stop string."""
        if any(not isinstance(stop, str) or not stop for stop in stops):
            raise UsageError("a stop string is empty, expected at least one character; leave it out")
        self._stops = list(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """The text that can be shown now, and whether a stop string was reached.

        After one was, everything that follows is dropped.
        """
        if self.stopped_by is not None:
            return "", True
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            # the one that is complete first, however the text was cut; of two, the longer
            _, at, self.stopped_by = min(found)
            self._held = ""
            return text[:at], True
        keep = self._beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """The text that is still held back, when the generation ends for another reason."""
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """The length of the longest suffix of ``text`` that a stop string begins with."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - size :]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
