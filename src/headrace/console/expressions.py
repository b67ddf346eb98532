"""Filters of messages that people type: `value.amount > 100 and headers.source == "till"`.

A small language, read by Python's own parser and evaluated by walking its tree: names of the message's parts, fields
and items, comparisons, `in`, and, or, not, numbers, texts, and a few functions. There is nothing in it that could run
anything else, and it is bounded in size. A field that is not there is None, and a comparison that cannot be made is
false, so that one odd message does not end a search.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

LENGTH_MAX = 2_000
NODES_MAX = 200
NAMES = ("key", "value", "headers", "offset", "partition", "timestamp")

Test: TypeAlias = Callable[[Mapping[str, Any]], Any]


class ExpressionError(ValueError):
    """The filter cannot be understood; the message says where."""


def compile_filter(text: str) -> Test:
    """A function of a message's parts (`NAMES`) that says whether the filter lets it through."""
    if len(text) > LENGTH_MAX:
        raise ExpressionError(f"the filter is longer than {LENGTH_MAX} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = getattr(error, "offset", None)
        raise ExpressionError(f"the filter cannot be read{f' at character {where}' if where else ''}") from error
    if sum(1 for _ in ast.walk(tree)) > NODES_MAX:
        raise ExpressionError(f"the filter has more than {NODES_MAX} parts")
    return _test(tree.body)


def _test(node: ast.expr) -> Test:
    for kind, make in _MAKERS.items():
        if isinstance(node, kind):
            return make(node)
    raise ExpressionError(f"{_said(node)} is nothing that a filter can have")


def _said(node: ast.AST) -> str:
    return repr(ast.unparse(node)[:60])


def _name(node: Any) -> Test:
    if node.id not in NAMES:
        raise ExpressionError(f"{node.id!r} is unknown: a filter is about {', '.join(NAMES)}")
    name: str = node.id
    return lambda message: message[name]


def _constant(node: Any) -> Test:
    if not isinstance(node.value, (str, int, float, bool, type(None))):
        raise ExpressionError(f"{_said(node)} is neither a text nor a number")
    value = node.value
    return lambda message: value


def _field(of: Test, name: str | int) -> Test:
    def get(message: Mapping[str, Any]) -> Any:
        found = of(message)
        if isinstance(found, dict):
            return found.get(name)
        if isinstance(found, list) and isinstance(name, int) and -len(found) <= name < len(found):
            return found[name]
        return None

    return get


def _attribute(node: Any) -> Test:
    return _field(_test(node.value), node.attr)


def _subscript(node: Any) -> Test:
    index = node.slice
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) and isinstance(index.operand, ast.Constant):
        index = ast.Constant(-index.operand.value) if isinstance(index.operand.value, int) else index
    if not isinstance(index, ast.Constant) or not isinstance(index.value, (str, int)):
        raise ExpressionError(f"in {_said(node)}, a text or a number stands in brackets")
    return _field(_test(node.value), index.value)


def _both(node: Any) -> Test:
    parts = [_test(part) for part in node.values]
    if isinstance(node.op, ast.And):
        return lambda message: all(part(message) for part in parts)
    return lambda message: any(part(message) for part in parts)


def _unary(node: Any) -> Test:
    of = _test(node.operand)
    if isinstance(node.op, ast.Not):
        return lambda message: not of(message)
    if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return lambda message: -of(message)
    raise ExpressionError(f"{_said(node)} is nothing that a filter can have")


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, among: one in among,
    ast.NotIn: lambda one, among: one not in among,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def _compare(node: Any) -> Test:
    first = _test(node.left)
    rest = [(_COMPARISONS[type(op)], _test(other)) for op, other in zip(node.ops, node.comparators)]

    def compare(message: Mapping[str, Any]) -> bool:
        left = first(message)
        for holds, other in rest:
            right = other(message)
            try:
                if not holds(left, right):
                    return False
            except TypeError:
                return False
            left = right
        return True

    return compare


def _several(node: Any) -> Test:
    parts = [_test(part) for part in node.elts]
    return lambda message: [part(message) for part in parts]


def _matches(text: Any, pattern: Any) -> bool:
    """Whether a text is like a pattern with `*` in it; not a regular expression, which could take for ever."""
    if not isinstance(text, str) or not isinstance(pattern, str):
        return False
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    last = rest.pop()
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in rest:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "len": (1, lambda one: len(one) if isinstance(one, (str, list, dict)) else None),
    "lower": (1, lambda one: one.lower() if isinstance(one, str) else one),
    "contains": (2, lambda one, part: isinstance(one, str) and isinstance(part, str) and part in one),
    "startswith": (2, lambda one, part: isinstance(one, str) and isinstance(part, str) and one.startswith(part)),
    "endswith": (2, lambda one, part: isinstance(one, str) and isinstance(part, str) and one.endswith(part)),
    "like": (2, _matches),
}


def _call(node: Any) -> Test:
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name not in _FUNCTIONS or node.keywords:
        raise ExpressionError(f"{_said(node)}: a filter has only the functions {', '.join(_FUNCTIONS)}")
    count, function = _FUNCTIONS[name]
    if len(node.args) != count:
        raise ExpressionError(
            f"{name} takes {count} argument{'s' if count > 1 else ''}, as in {_said(node)} it has not"
        )
    parts = [_test(part) for part in node.args]
    return lambda message: function(*(part(message) for part in parts))


_MAKERS: dict[type[ast.expr], Callable[[Any], Test]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.BoolOp: _both,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.List: _several,
    ast.Tuple: _several,
    ast.Call: _call,
}
