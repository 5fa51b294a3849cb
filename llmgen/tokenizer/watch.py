"""Calls inserted into a template's syntax tree, so that the sandbox sees each step."""

from __future__ import annotations

from jinja2 import Environment, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer


class Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it just renders them."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's content in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Watch(NodeTransformer):
    """Inserts calls into a template's tree that report what it does."""

    def __init__(self, env: Environment) -> None:
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

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._call("used", [node.expr], node.lineno)
        for operand in node.ops:
            operand.expr = self._call("used", [operand.expr], node.lineno)
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
