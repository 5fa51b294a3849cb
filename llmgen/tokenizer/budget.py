"""What one rendering of a chat template may use: time, text, and the size of any value.

Templates come from strangers' files.  Python has no way to stop a computation from
outside, so the sandbox reports every step of a template here: each loop turn, call,
operator, comparison, filter, look-up and output.  Two rules bound what a step can do:

- The operands of a step are weighed first (:meth:`Budget.take`), so a step that walks
  through its operands is short, even if they contain the same parts many times.
- The result of a step is counted (:meth:`Budget.made`).  If it can be much larger than the
  operands, the sandbox asks for room before it is made.

Steps whose work grows with the product of two lengths declare it (:meth:`Budget.work`).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, Protocol

from llmgen.errors import TemplateError

SECONDS = 4.0
"""The processor time for all renderings of one call; real templates need a few milliseconds.

Time in which the process is stopped, or waits for a busy machine, is not the template's fault."""

TEXT = 2_000_000
"""Characters and elements that a value or the output may have, on top of eight times the input."""

INTEGER_BITS = 1024
REPEAT = 100_000
"""The largest number allowed as a width, a count or a depth."""

_ELEMENT = 8
"""The weight of a list's element in characters, on top of its own."""

WORK = 2_000_000_000
"""The most comparisons of characters that one step may need: less than a second."""

_ENDLESS = 1 << 60
"""The weight of a value while it is being weighed, so that one that contains itself is too heavy."""

_NUMBER = re.compile(r"\d{5,}|\*")
_VIEWS = tuple(map(type, ({}.keys(), {}.values(), {}.items())))
_CONTAINERS: tuple[type[Any], ...] = (list, tuple, dict, set, frozenset, *_VIEWS)


class Cancel(Protocol):
    """Tells whether to stop: ``threading.Event`` and the like."""

    def is_set(self) -> bool:
        """Whether to stop."""


class Limit(NamedTuple):
    """What a caller allows: seconds, the time at which they end, and a cancel event."""

    seconds: float
    end: float
    cancel: Cancel | None


_NO_LIMIT = Limit(math.inf, math.inf, None)
_limit: ContextVar[Limit] = ContextVar("rendering_limit", default=_NO_LIMIT)


class Stopped(TemplateError):
    """A rendering was stopped before its end."""


class OverBudget(Stopped):
    """A template used more than it may."""

    def __init__(self, words: str, advice: str = "; give another one") -> None:
        """``words``: what it did."""
        super().__init__(f"the chat template was stopped: {words}{advice}")


class OutOfTime(Stopped):
    """The caller's timeout was over; how much of it the template took is unknown."""

    exit_code = 124

    def __init__(self, seconds: float) -> None:
        """``seconds``: what the caller gave."""
        super().__init__(
            f"the timeout of {seconds:g} s was over before the chat template had made the prompt; allow more"
        )


@contextmanager
def rendering_within(seconds: float | None, cancel: Cancel | None = None) -> Iterator[None]:
    """Stop renderings in the block after this many seconds, and when ``cancel`` is set.

    They never take more than :data:`SECONDS` of the processor.
    """
    allowed = math.inf if seconds is None else seconds
    token = _limit.set(Limit(allowed, time.monotonic() + allowed, cancel))
    try:
        yield
    finally:
        _limit.reset(token)


class Deadline:
    """When a call that begins now, in this thread, must be done with all its renderings."""

    def __init__(self) -> None:
        self._limit = _limit.get()
        self._end = time.thread_time() + SECONDS

    def check(self) -> None:
        """Raise a :class:`Stopped` error if the time is over or the caller has cancelled."""
        limit = self._limit
        if time.monotonic() > limit.end:
            raise OutOfTime(limit.seconds)
        if time.thread_time() > self._end:
            raise OverBudget(f"it ran for more than {SECONDS:g} seconds")
        if limit.cancel is not None and limit.cancel.is_set():
            raise OverBudget("it was interrupted", "")


class Budget:
    """Counts what one rendering uses; every method raises a :class:`Stopped` error if that is too much."""

    def __init__(self, n_input: int, deadline: Deadline | None = None) -> None:
        """``n_input``: the characters in the conversation."""
        self._deadline = deadline or Deadline()
        self._largest = TEXT + 8 * n_input
        self._left = 16 * self._largest
        self._written = 0
        self._weights: dict[int, tuple[Any, int]] = {}

    def tick(self) -> None:
        """Check the time; called at every step."""
        self._deadline.check()

    def take(self, *values: Any) -> None:
        """These values are about to be used in one step."""
        self.tick()
        for value in values:
            if self.weigh(value) > self._largest:
                self._refuse_size()

    def made(self, value: Any) -> Any:
        """Count a value that was made, and return it."""
        self.tick()
        if isinstance(value, (str, bytes, *_CONTAINERS)):
            self.room(self.weigh(value))
        elif isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            self._refuse_number()
        return value

    def room(self, size: float) -> None:
        """A value of this many characters or elements is about to be made."""
        self._left -= int(size)
        if size > self._largest or self._left < 0:
            self._refuse_size()

    def work(self, steps: int) -> None:
        """A step is about to compare this many characters at worst."""
        self.tick()
        if steps > WORK:
            raise OverBudget("it searched a long text for another long text")

    def weigh(self, value: Any) -> int:
        """The characters and elements in a value, shared parts counted each time they occur.

        Nothing that walks through the value, such as printing or comparing it, takes more
        steps than this.  Values that are neither text nor containers weigh 1.
        """
        if isinstance(value, (str, bytes)):
            return len(value)
        if isinstance(value, range):
            return _ELEMENT * len(value)
        if not isinstance(value, _CONTAINERS):
            return 1
        known = self._weights.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        self.tick()
        self._weights[id(value)] = (value, _ENDLESS)
        parts = list(value)
        if isinstance(value, Mapping):
            parts += value.values()
        weight = _ELEMENT * (len(parts) + 1) + sum(map(self.weigh, parts))
        self._weights[id(value)] = (value, weight)
        return weight

    def changed(self) -> None:
        """Forget known weights, because a list was changed."""
        self._weights.clear()

    def operator(self, symbol: str, left: Any, right: Any) -> None:
        """An operator is about to be applied."""
        self.take(left, right)
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

    def _refuse_size(self) -> NoReturn:
        raise OverBudget(f"it made more than {self._largest:,} characters")

    def _refuse_number(self) -> NoReturn:
        raise OverBudget(f"it made a number of more than {INTEGER_BITS} bits")

    def template_string(self, text: Any, arguments: Any) -> None:
        """A ``%`` format is about to be filled in."""
        if _NUMBER.search(str(text)):
            raise OverBudget("it asked for a width of five digits or more")
        self.room(len(text) + text.count("%") * self.weigh(arguments))

    def width(self, value: Any, most: int = REPEAT) -> None:
        """A number is about to be used as a width or a count."""
        if isinstance(value, int) and value > most:
            raise OverBudget(f"it asked for a width of {value:,}, expected at most {most:,}")

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
