"""What one rendering of a chat template may use: time, text, and the size of any value.

Templates come from strangers' files.  Python has no way to stop a computation from
outside, so the sandbox reports every loop turn, call, operator and filter here, and asks
before it makes a value whose size a template can choose.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, NoReturn

SECONDS = 3.0
"""How long a rendering may take; real templates need a few milliseconds."""

TEXT = 2_000_000
"""Characters and elements that any one value or the output may have, besides eight times the input."""

INTEGER_BITS = 1024
REPEAT = 100_000
"""The largest number that may stand for a width, a count or a depth."""

_ELEMENT = 8
"""What an element of a list weighs besides its own size, in characters."""

_NUMBER = re.compile(r"\d{5,}|\*")


class OverBudget(Exception):
    """A template used more than it may."""


class Budget:
    """Counts what one rendering uses; every method raises OverBudget when it is too much."""

    def __init__(self, n_input: int) -> None:
        """``n_input``: the characters in the conversation."""
        self._end = time.monotonic() + SECONDS
        self._largest = TEXT + 8 * n_input
        self._left = 16 * self._largest
        self._written = 0
        self._weights: dict[int, tuple[Any, int]] = {}

    def tick(self) -> None:
        """Something was done."""
        if time.monotonic() > self._end:
            raise OverBudget(f"it ran for more than {SECONDS:g} seconds")

    def made(self, value: Any) -> Any:
        """A value was made: count it, and give it back."""
        self.tick()
        if isinstance(value, (str, bytes, list, tuple, dict, set, frozenset)):
            self.room(self.weigh(value))
        elif isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            self._refuse_number()
        return value

    def room(self, size: float) -> None:
        """A value of this many characters or elements is about to be made."""
        self._left -= int(size)
        if size > self._largest or self._left < 0:
            raise OverBudget(f"it made more than {self._largest:,} characters")

    def weigh(self, value: Any) -> int:
        """The characters and elements in a value, shared parts counted each time they show.

        So nothing that walks through the value, as writing it out or comparing it does,
        takes more steps than this.
        """
        if isinstance(value, (str, bytes)):
            return len(value)
        if not isinstance(value, (list, tuple, dict, set, frozenset)):
            return 1
        known = self._weights.get(id(value))
        # A set or dict cannot be kept from changing, but templates cannot change one.
        if known is not None and known[0] is value:
            return known[1]
        parts = [*value, *value.values()] if isinstance(value, Mapping) else list(value)
        weight = _ELEMENT * (len(parts) + 1) + sum(map(self.weigh, parts))
        self._weights[id(value)] = (value, weight)
        return weight

    def operator(self, symbol: str, left: Any, right: Any) -> None:
        """An operator is about to be applied."""
        self.tick()
        match symbol:
            case "*":
                self._product(left, right)
            case "**":
                self._power(left, right)
            case "%" if isinstance(left, (str, bytes)):
                self.template_string(left, right)
            case "+":
                if isinstance(left, (str, bytes, list, tuple)):
                    self.room(self.weigh(left) + self.weigh(right))

    def _product(self, left: Any, right: Any) -> None:
        for value, count in ((left, right), (right, left)):
            if isinstance(value, (str, bytes, list, tuple)) and isinstance(count, int):
                self.room(max(self.weigh(value), 1) * max(count, 0))
            elif isinstance(value, int) and isinstance(count, int):
                if value.bit_length() + count.bit_length() > INTEGER_BITS:
                    self._refuse_number()

    def _power(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > INTEGER_BITS:
            self._refuse_number()

    def _refuse_number(self) -> NoReturn:
        raise OverBudget(f"it made a number of more than {INTEGER_BITS} bits")

    def template_string(self, text: Any, arguments: Any) -> None:
        """A ``%`` format is about to be filled in."""
        if _NUMBER.search(str(text)):
            raise OverBudget("it asked for a width of five digits or more")
        self.room(len(text) * (1 + self.weigh(arguments)))

    def width(self, value: Any) -> None:
        """A number is about to be used as a width or a count."""
        if isinstance(value, int) and value > REPEAT:
            raise OverBudget(f"it asked for a width of {value:,}, expected at most {REPEAT:,}")

    def format_spec(self, spec: str) -> None:
        """A value is about to be formatted as ``spec`` says."""
        if _NUMBER.search(spec):
            raise OverBudget("it asked for a width of five digits or more")

    def replaced(self, text: str, old: str, new: str) -> None:
        """``text.replace(old, new)`` is about to be made."""
        self.room(len(text) + (text.count(old) if old else len(text) + 1) * len(new))

    def joined(self, separator: Any, parts: list[Any]) -> None:
        """Parts are about to be joined."""
        self.room(len(str(separator)) * len(parts) + sum(map(self.weigh, parts)))

    def output(self, text: str) -> None:
        """A part of the prompt was written."""
        self.tick()
        self._written += len(text)
        if self._written > self._largest:
            raise OverBudget(f"it wrote more than {self._largest:,} characters")
