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
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from llmgen.tokenizer.budget import Budget, OverBudget

_WIDTH_METHODS = ("ljust", "rjust", "center", "zfill", "to_bytes")
_WIDTH_FILTERS = ("center", "slice", "batch", "truncate", "round")
# Chance has no place in a prompt, and the others are slow on large values.
_LEFT_OUT = ("random", "pprint", "urlize", "xmlattr", "wordwrap", "striptags")


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """What templates in the wild expect, after ``apply_chat_template`` of Hugging Face transformers.

    Each rendering sets a :class:`Budget` with :meth:`start`, for its thread.
    """

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControls, Generation],
            # Folding constants would compute outside the budget.
            optimized=False,
            cache_size=0,
        )
        self._local = threading.local()
        self.concat = self._concat  # type: ignore[method-assign]
        self.globals.pop("lipsum")
        for name in _LEFT_OUT:
            self.filters.pop(name)
        self.filters |= {"tojson": self._tojson, "sum": _sum, "replace": self._replace, "join": self._join}
        self.filters |= {"format": self._format, "indent": self._indent}
        self.filters = self._all_watched(self.filters)
        self.tests = self._all_watched(self.tests)

    def start(self, budget: Budget) -> None:
        """Begin a rendering in this thread."""
        self._local.budget = budget

    @property
    def budget(self) -> Budget:
        """The budget of the rendering in this thread."""
        budget = getattr(self._local, "budget", None)
        return budget if budget is not None else Budget(0)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Watch(self).visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    # What compiled templates call

    def turn(self) -> bool:
        """A loop went round; ``call`` has counted it."""
        return True

    def join_text(self, *parts: Any) -> str:
        """The ``~`` operator."""
        texts = list(map(str, parts))
        self.budget.joined("", texts)
        return "".join(texts)

    def keep(self, value: Any) -> Any:
        """A list, tuple or dict was written out; ``call`` has counted it."""
        return value

    def _concat(self, parts: Any) -> str:
        texts = list(parts)
        self.budget.joined("", texts)
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.budget.operator(operator, left, right)
        return self.budget.made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        value = super().getitem(obj, argument)
        return self.budget.made(value) if isinstance(argument, slice) else value

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __self.budget
        budget.tick()
        if isinstance(__obj, (BuiltinMethodType, MethodType)):
            args = __self._check_method(__obj, args, kwargs)
        return budget.made(super().call(__context, __obj, *args, **kwargs))

    def getattr(self, obj: Any, attribute: str) -> Any:
        if attribute.startswith("__"):
            return self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """What stands for an attribute that no template may see.

        Asking for Python's insides is refused at once; methods that would change a list
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
        """A filter or test, on the budget.  Jinja2's marks on the function are kept."""

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.tick()
            if name in _WIDTH_FILTERS:
                for value in (*args[1:], *kwargs.values()):
                    budget.width(value)
            return budget.made(function(*args, **kwargs))

        return watched

    def _check_method(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Ask for room before a method makes a value whose size its arguments choose."""
        budget = self.budget
        name, owner = method.__name__, method.__self__
        if name in _WIDTH_METHODS:
            for value in (*args, *kwargs.values()):
                budget.width(value)
        if not isinstance(owner, (str, bytes)):
            return args
        match name, args:
            case "encode" | "decode" | "maketrans", _:
                raise OverBudget(f"it used {name}, which no prompt needs")
            case "replace", (str() as old, str() as new, *_) if isinstance(owner, str):
                budget.replaced(owner, old, new)
            case "join", (parts,):
                listed = self._listed(parts)
                budget.joined(owner, listed)
                return (listed,)
            case "expandtabs", _:
                size = next(iter((*args, *kwargs.values())), 8)
                budget.width(size)
                budget.room(len(owner) + str(owner).count("\t") * max(size, 0))
            case "translate", (table,):
                budget.room(len(owner) * (1 + budget.weigh(table)))
        return args

    # Filters that could make large values, written anew to ask first

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as models were trained with: nothing escaped for HTML, as transformers does it."""
        width = len(indent) if isinstance(indent, str) else indent or 0
        weight = self.budget.weigh(value)
        self.budget.room(weight * (1 + width * _depth(value)))
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

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


class Generation(Extension):
    """``{% generation %}``: marks the assistant's words for training; here it only shows them."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's content in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Formatter(jinja2.sandbox.SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        env: Sandbox = self._env  # type: ignore[assignment]
        env.budget.format_spec(format_spec)
        return env.budget.made(super().format_field(value, format_spec))


class _Watch(NodeTransformer):
    """Puts calls into a template's tree that report what it does."""

    def __init__(self, env: Sandbox) -> None:
        self._env = env

    def _call(self, name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
        function = nodes.EnvironmentAttribute(name, lineno=line)
        return nodes.Call(function, arguments, [], None, None, lineno=line)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        line = node.lineno
        node.body.insert(0, nodes.ExprStmt(self._call("turn", [], line), lineno=line))
        if node.test is not None:
            node.test = nodes.And(self._call("turn", [], line), node.test, lineno=line)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("join_text", node.nodes, node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return self._call("keep", [node], node.lineno)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx == "store" else self._call("keep", [node], node.lineno)


def _sum(iterable: Any, attribute: str | None = None, start: Any = 0) -> Any:
    """The sum of numbers; sums of lists, which could grow with the square, are refused."""
    total = start
    for item in iterable:
        value = item.get(attribute) if attribute is not None else item
        if not isinstance(value, (int, float)) or not isinstance(total, (int, float)):
            raise TypeError("sum adds numbers only")
        total += value
    return total


def _depth(value: Any) -> int:
    """How deep lists and dicts lie in one another; the value's weight bounds the work."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            part
            for item in level
            if isinstance(item, (list, tuple, dict))
            for part in (item.values() if isinstance(item, dict) else item)
        ]
    return depth
