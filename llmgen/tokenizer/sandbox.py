"""The Jinja2 environment that chat templates run in: sandboxed, immutable, and on a budget.

Imported only when a template is used: Jinja2 takes a while to load.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
import jinja2.sandbox
from jinja2 import nodes
from jinja2.ext import loopcontrols as LoopControls
from jinja2.filters import do_indent, do_trim
from jinja2.utils import Namespace

from llmgen.tokenizer.budget import Budget
from llmgen.tokenizer.methods import LIST_CHANGES, check_method
from llmgen.tokenizer.watch import Generation, Watch

_WIDTH_FILTERS = ("center", "slice", "batch", "truncate", "round")
# random results do not belong in a prompt; the others are slow on large values
_LEFT_OUT = ("random", "pprint", "urlize", "xmlattr", "wordwrap", "striptags")

_MOST_INDENT = 100


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment that published templates expect, that of ``apply_chat_template`` in transformers.

    Each rendering sets a :class:`Budget` with :meth:`start`, for its thread.
    """

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControls, Generation],
            # constant folding would compute outside the budget
            optimized=False,
            cache_size=0,
        )
        self._local = threading.local()
        self.concat = self._concat  # type: ignore[method-assign]
        self.finalize = self._written
        self.globals.pop("lipsum")
        self.globals["namespace"] = _Space
        for name in _LEFT_OUT:
            self.filters.pop(name)
        self.filters |= {"tojson": self._tojson, "sum": _sum, "replace": self._replace, "join": self._join}
        self.filters |= {"format": self._format, "indent": self._indent, "trim": self._trim}
        self.filters = self._all_watched(self.filters)
        self.tests = self._all_watched(self.tests)

    def start(self, budget: Budget, given: Any = ()) -> None:
        """Begin a rendering in this thread; the template may not change lists within ``given``."""
        self._local.budget = budget
        self._local.given = given
        self._local.given_ids = None

    @property
    def budget(self) -> Budget:
        """The budget of the rendering in this thread."""
        budget = getattr(self._local, "budget", None)
        return budget if budget is not None else Budget(0)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = Watch(self).visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    # What compiled templates call

    def turn(self) -> bool:
        """A loop begins another iteration."""
        self.budget.tick()
        return True

    def used(self, value: Any) -> Any:
        """A value is about to be compared."""
        self.budget.take(value)
        return value

    def keep(self, value: Any) -> Any:
        """A list, tuple or dict was written out."""
        return self.budget.made(value)

    def join_text(self, *parts: Any) -> str:
        """The ``~`` operator."""
        self.budget.take(*parts)
        texts = list(map(str, parts))
        self.budget.joined("", texts)
        return "".join(texts)

    # the context is passed so that Jinja2 does not evaluate constants while it compiles
    @jinja2.pass_context
    def _written(self, context: Any, value: Any) -> str:
        """What ``{{ value }}`` writes."""
        self.budget.take(value)
        return str(self.budget.made(str(value)))

    def _concat(self, parts: Any) -> str:
        texts = list(parts)
        self.budget.joined("", texts)
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.budget.operator(operator, left, right)
        return self.budget.made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.budget.take(argument)
        value = super().getitem(obj, argument)
        return self.budget.made(value) if isinstance(argument, slice) else value

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.budget.tick()
        if attribute.startswith("__"):
            return self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(__obj, (BuiltinMethodType, MethodType)):
            return __self._call(__context, __obj, args, kwargs)
        if __obj.__self__ is __self:
            # one of the calls that Watch has inserted; it charges the budget itself
            return __obj(*args)
        args = check_method(__self.budget, __obj, args, kwargs, __self._listed)
        try:
            return __self._call(__context, __obj, args, kwargs)
        finally:
            if isinstance(__obj.__self__, list) and __obj.__name__ in LIST_CHANGES:
                __self.budget.changed()

    def _call(self, context: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.budget.take(*args, *kwargs.values())
        return self.budget.made(super().call(context, function, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is list and attr in LIST_CHANGES and not self._is_given(obj):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def _is_given(self, value: list[Any]) -> bool:
        """Whether a list belongs to the conversation, and not to the template."""
        local = self._local
        if local.given_ids is None:
            local.given_ids = frozenset(_list_ids(local.given))
        return id(value) in local.given_ids

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """The result for an attribute that no template may see.

        Access to Python's internals is refused at once; methods that would change a list
        or dict only when they are called, since a dict can have a key of that name.
        """
        if attribute.startswith("_") or jinja2.sandbox.is_internal_attribute(obj, attribute):
            raise jinja2.exceptions.SecurityError(f"it asked for {attribute!r} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` and ``format_map``, with their widths on the budget."""
        if super().wrap_str_format(value) is None:
            return None
        text, is_map = value.__self__, value.__name__ == "format_map"
        formatter = _Formatter(self)

        def wrapped(*args: Any, **kwargs: Any) -> str:
            if is_map:
                args, kwargs = (), dict(*args)
            return str(self.budget.made(formatter.vformat(str(text), args, kwargs)))

        return wrapped

    def _all_watched(self, table: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._watched(function, name) for name, function in table.items()}

    def _watched(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A filter or test, charged to the budget.  Jinja2's attributes of the function are kept."""

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.take(*args, *kwargs.values())
            if name in _WIDTH_FILTERS:
                for value in (*args[1:], *kwargs.values()):
                    budget.width(value)
            result = function(*args, **kwargs)
            # an iterator is consumed here, so that its elements are counted
            return budget.made(self._listed(result) if isinstance(result, Iterator) else result)

        return watched

    # Filters that could make large values, rewritten to ask first

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as models were trained with: nothing escaped for HTML, as transformers does it."""
        self.budget.width(len(indent) if isinstance(indent, str) else indent, _MOST_INDENT)
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return "".join(map(self.budget.made, encoder.iterencode(value)))

    def _trim(self, value: Any, chars: str | None = None) -> Any:
        self.budget.work(len(str(value)) * len(chars or ""))
        return do_trim(value, chars)

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self.budget.replaced(text, old, new)
        return text.replace(old, new, -1 if count is None else count)

    def _join(self, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
        parts = self._listed(value)
        for name in str(attribute).split(".") if attribute is not None else ():
            key = int(name) if name.isdigit() else name
            parts = [self.getitem(part, key) for part in parts]
        self.budget.joined(d, parts)
        return str(d).join(map(str, parts))

    def _format(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if args and kwargs:
            raise TypeError("can't handle positional and keyword arguments at the same time")
        text = str(value)
        self.budget.template_string(text, kwargs or args)
        return text % (kwargs or args)

    def _indent(self, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        size = len(width) if isinstance(width, str) else width
        self.budget.width(size)
        self.budget.room(len(str(s)) + (str(s).count("\n") + 1) * max(size, 0))
        return do_indent(str(s), width, first, blank)

    def _listed(self, parts: Any) -> list[Any]:
        """The elements of anything that can be looped over, on the budget."""
        budget = self.budget

        def counted() -> Iterator[Any]:
            for part in parts:
                budget.tick()
                yield part

        return list(counted())


class _Space(Namespace):
    """A namespace that prints without its contents."""

    def __repr__(self) -> str:
        return "namespace(...)"


class _Formatter(jinja2.sandbox.SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        env: Sandbox = self._env  # type: ignore[assignment]
        env.budget.format_spec(format_spec)
        return env.budget.made(super().format_field(value, format_spec))


def _sum(iterable: Any, attribute: str | None = None, start: Any = 0) -> Any:
    """The sum of numbers; lists are refused, because adding them takes quadratic time."""
    total = start
    for item in iterable:
        value = item.get(attribute) if attribute is not None else item
        if not isinstance(value, (int, float)) or not isinstance(total, (int, float)):
            raise TypeError("sum adds numbers only")
        total += value
    return total


def _list_ids(value: Any) -> Iterator[int]:
    """The ids of all lists in plain data."""
    if isinstance(value, list):
        yield id(value)
    if isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _list_ids(item)
