"""Symbolic sizes of a `.pt2` file: a grammar of numbers, symbols and known functions.  Runs no code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy import functions

_OF_TORCH = (
    *("FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt"),
    *("CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv", "TruncToInt"),
    *("IsNonOverlappingAndDenseIndicator", "TruncToFloat", "RoundToInt", "RoundDecimal", "ToFloat"),
    "Identity",
)
_OF_SYMPY = (
    *("Integer", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Abs", "And", "Or", "Not", "Eq", "Ne", "Lt"),
    *("Le", "Gt", "Ge", "Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan"),
    *("GreaterThan", "floor", "ceiling"),
)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(sympy, name) for name in _OF_SYMPY},
    **{name: getattr(functions, name) for name in _OF_TORCH if hasattr(functions, name)},
}
_CONSTANTS: Mapping[str, Any] = {"true": sympy.true, "false": sympy.false, "oo": sympy.oo}
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: functions.FloorDiv,
    ast.Mod: functions.PythonMod,
    ast.Pow: sympy.Pow,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
}
_ASSUMPTIONS = frozenset(
    ("integer", "positive", "negative", "nonnegative", "nonpositive", "zero", "nonzero", "real", "finite")
)

_LONGEST, _DEEPEST, _LARGEST, _HIGHEST_POWER = 50_000, 100, 2**64, 64


class SizeExpressions:
    """Parses the symbolic sizes of one file; equal names are one symbol."""

    def __init__(self) -> None:
        self._parsed: dict[str, Any] = {}
        self._symbols: dict[str, Any] = {}

    def parse(self, text: str) -> Any:
        """Return the `sympy.Basic` that `text` describes.

        Raises ValueError for text outside of the grammar, and for expressions that are too long or nested
        too deeply.
        """
        if text not in self._parsed:
            if len(text) > _LONGEST:
                raise ValueError(f"a size of {len(text)} characters; the limit is {_LONGEST}")
            try:
                tree = ast.parse(text, mode="eval")
            except (SyntaxError, RecursionError, MemoryError):
                raise ValueError("the size is not an expression") from None
            self._parsed[text] = self._value(tree.body, 0)
        return self._parsed[text]

    def _value(self, node: ast.expr, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"the size is nested more than {_DEEPEST} levels deep")
        match node:
            case ast.Constant(value=bool() | int() | float() as number) if abs(number) < _LARGEST:
                return sympy.sympify(number)
            case ast.Name(id=name):
                return _CONSTANTS[name] if name in _CONSTANTS else self._symbol(name, {"integer": True})
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, depth + 1)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._applied(_BINARY[type(op)], [left, right], depth)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return self._applied(_COMPARISONS[type(op)], [left, right], depth)
            case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)]):
                return self._symbol(name, dict(map(_assumption, node.keywords)))
            case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str() as digits)]):
                if not math.isfinite(float(digits)):
                    raise ValueError("a size is not finite")
                return sympy.Float(float(digits))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
                return self._applied(_FUNCTIONS[name], arguments, depth)
        raise ValueError(f"a size may not contain {ast.unparse(node)[:40]!r}")

    def _applied(self, function: Callable[..., Any], arguments: list[ast.expr], depth: int) -> Any:
        values = [self._value(each, depth + 1) for each in arguments]
        if function in _POWERS and not (values[1:] and abs(values[-1]) <= _HIGHEST_POWER):
            raise ValueError(f"a size has a power above {_HIGHEST_POWER}")
        try:
            result = function(*values)
        except (TypeError, ArithmeticError, AttributeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"the size cannot be computed: {error}") from None
        if not isinstance(result, sympy.Basic) or (result.is_Number and abs(result) >= _LARGEST):
            raise ValueError("a size is too large")
        return result

    def _symbol(self, name: str, assumptions: dict[str, bool]) -> Any:
        if not name.isidentifier():
            raise ValueError(f"{name[:40]!r} is not the name of a size")
        return self._symbols.setdefault(name, sympy.Symbol(name, **assumptions))


_POWERS = (sympy.Pow, functions.PowByNatural, functions.FloatPow, functions.LShift)


def _assumption(given: ast.keyword) -> tuple[str, bool]:
    match given:
        case ast.keyword(arg=str() as name, value=ast.Constant(value=bool() as value)) if (
            name in _ASSUMPTIONS
        ):
            return name, value
    raise ValueError(f"a size may not contain {ast.unparse(given)[:40]!r}")
