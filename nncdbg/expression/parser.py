"""Parse an expression into a tree, with a Pratt parser that reads tokens on demand.

Tokens depend on the known names (`%h/2` is a name or a division), so there is no separate lexer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nncdbg.errors import ExpressionError
from nncdbg.expression import nodes
from nncdbg.expression.functions import (
    ATTRIBUTES,
    DERIVATIVES,
    FUNCTIONS,
    PARAMETERS,
    PREFIXES,
    SPELLINGS,
    check_derivative,
    function_name,
)
from nncdbg.expression.nodes import MAX_DEPTH, ExpressionNode
from nncdbg.expression.operators import Function
from nncdbg.expression.shapes import dtype_name
from nncdbg.expression.tokens import FOREIGN, KEYWORD, NUMBER, VARIABLE, WORD, Tokens, nearest, shortened

SUMMARY_FIELDS = ("min", "max", "mean", "std", "nan", "posinf", "neginf", "zero", "subnormal", "count")
_PARTS = {"topk": ("values", "indices"), "unique": ("values", "counts")}
"""The names of the tensors that a function returns, as in `topk(%h, 3).indices`."""

_METHODS = sorted(name for name in FUNCTIONS if name != "prev")
_LISTED = "`help expressions` lists the functions"

_WORDS: dict[str, Any] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "None": None,
    "inf": math.inf,
    "nan": math.nan,
    "pi": math.pi,
    "newaxis": None,
}

_CONSTANTS = ("inf", "nan", "pi", "newaxis")
"""Words that can have a module prefix, as in `np.inf`."""

_CONDITIONAL, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN, _POWER = 1, 2, 3, 4, 5, 9, 10, 11, 12
_INFIX: dict[str, int] = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _COMPARE),
    "if": _CONDITIONAL,
    "or": _OR,
    "and": _AND,
    "|": 6,
    "^": 7,
    "&": 8,
    "**": _POWER,
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/", "//", "@"), _PRODUCT),
}
"""The precedence of the operators, in Python's order."""


class ExpressionParser(Tokens):
    """Parses one text."""

    _depth = 0

    # -- expressions ---------------------------------------------------------------------------

    def expression(self, binding: int = _CONDITIONAL) -> ExpressionNode:
        """Parse an operand and all following operators that bind at least as tightly as `binding`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.fault(f"the expression is nested more than {MAX_DEPTH} levels deep")
        left = self._operand()
        while True:
            symbol = self.peek()
            power = _INFIX.get(symbol, 0)
            if symbol == "%":
                raise self.fault("`%` is not an operator", hint=FOREIGN["%"])
            if power < binding:
                break
            left = self._infix(left, symbol, power)
        self._depth -= 1
        return left

    def end(self) -> None:
        """Raise ExpressionError unless the whole text is read."""
        symbol = self.peek()
        if symbol or self.position < len(self.text):
            hint = FOREIGN.get(symbol)
            raise self.fault(f"unexpected `{symbol or self.glimpse()}`", width=len(symbol) or 1, hint=hint)

    def _infix(self, left: ExpressionNode, symbol: str, power: int) -> ExpressionNode:
        if power == _COMPARE:
            return self._comparison(left)
        self.take(symbol)
        if power == _CONDITIONAL:
            condition = self.expression(_OR)
            self.expect("else", "`a if condition else b` needs its `else`")
            otherwise = self.expression(_CONDITIONAL)
            return nodes.Conditional(left.start, otherwise.end, left, condition, otherwise)
        right = self.expression(power if symbol == "**" else power + 1)
        kind = nodes.Boolean if power in (_OR, _AND) else nodes.Binary
        return kind(left.start, right.end, symbol, left, right)

    def _comparison(self, left: ExpressionNode) -> ExpressionNode:
        symbols: list[str] = []
        operands = [left]
        while _INFIX.get(symbol := self.peek()) == _COMPARE:
            self.take(symbol)
            symbols.append(symbol)
            operands.append(self.expression(_COMPARE + 1))
        return nodes.Compare(left.start, operands[-1].end, tuple(symbols), tuple(operands))

    # -- operands ------------------------------------------------------------------------------

    def _operand(self) -> ExpressionNode:
        symbol = self.peek()
        start = self.position
        if symbol in ("-", "+", "~", "not"):
            self.take(symbol)
            operand = self.expression(_NOT if symbol == "not" else _SIGN)
            return nodes.Unary(start, operand.end, symbol, operand)
        return self._postfix(self._primary(symbol))

    def _primary(self, symbol: str) -> ExpressionNode:
        start = self.position
        if symbol == "%":
            name = self.sigil_name()
            return nodes.Name(start, self.position, name, plain=False)
        if symbol == "$":
            return self._variable()
        if symbol in ('"', "'"):
            string = self.string()
            return nodes.LiteralExpression(start, self.position, string)
        if symbol == "(":
            return self._parenthesis()
        if symbol == "[":
            self.take("[")
            items = self._items("]", self.expression)
            return nodes.Sequence(start, self.position, items, is_list=True)
        if match := NUMBER.match(self.text, start):
            return self.number(match)
        match = WORD.match(self.text, start)
        if match and match.group() not in _INFIX and match.group() != "else":
            return self._word(match)
        raise self._no_operand(symbol)

    def _parenthesis(self) -> ExpressionNode:
        start = self.position
        self.take("(")
        if self.peek() == ")":
            self.take(")")
            return nodes.Sequence(start, self.position, (), is_list=False)
        first = self.expression()
        if self.peek() != ",":
            self.expect(")", "the parenthesis is not closed")
            return first
        self.take(",")
        items = (first, *self._items(")", self.expression))
        return nodes.Sequence(start, self.position, items, is_list=False)

    def _items(self, closing: str, read: Callable[[], ExpressionNode]) -> tuple[ExpressionNode, ...]:
        """Parse comma-separated items up to and including `closing`."""
        items: list[ExpressionNode] = []
        while self.peek() != closing:
            items.append(read())
            if self.peek() != ",":
                break
            self.take(",")
        self.expect(closing, f"expected `,` or `{closing}`")
        return tuple(items)

    def _no_operand(self, symbol: str) -> ExpressionError:
        if not symbol and self.position >= len(self.text):
            return self.fault("the expression ends where an operand is expected")
        hint = FOREIGN.get(symbol)
        if symbol == "@":
            hint = "graphs are not values; `@` multiplies two matrices"
        return self.fault(
            f"expected an operand, not `{symbol or self.glimpse()}`", width=len(symbol) or 1, hint=hint
        )

    # -- after an operand ------------------------------------------------------------------------

    def _postfix(self, operand: ExpressionNode) -> ExpressionNode:
        while True:
            symbol = self.peek()
            if symbol == "[":
                operand = self._index(operand)
            elif symbol == ".":
                operand = self._attribute(operand)
            elif symbol == "(":
                raise self.fault("only functions can be called", hint=_LISTED)
            else:
                return operand

    def _index(self, operand: ExpressionNode) -> ExpressionNode:
        items = self.bracketed_items()
        return nodes.IndexExpression(operand.start, self.position, operand, items)

    def bracketed_items(self) -> nodes.Sequence:
        """Parse an index in brackets: `[0, :, 2:5]`."""
        self.peek()
        start = self.position
        self.take("[")
        items = self._items("]", self._index_item)
        if not items:
            self.position = start
            raise self.fault("the index is empty", width=2)
        return nodes.Sequence(start, self.position, items, is_list=False)

    def index_items(self) -> nodes.Sequence:
        """Parse an index without brackets, up to the end of the text: `0, :, 2:5`."""
        start = self.position
        items = [self._index_item()]
        while self.peek() == ",":
            self.take(",")
            items.append(self._index_item())
        return nodes.Sequence(start, self.position, tuple(items), is_list=False)

    def _index_item(self) -> ExpressionNode:
        self.peek()
        start = self.position
        if self.text.startswith("...", start):
            self.position += 3
            return nodes.LiteralExpression(start, self.position, ...)
        parts: list[ExpressionNode | None] = [None]
        if self.peek() != ":":
            item = self.expression()
            if self.peek() != ":":
                return item
            parts = [item]
        while len(parts) < 3 and self.peek() == ":":
            self.take(":")
            left_out = self.peek() in (":", ",", "]") or self.position == len(self.text)
            parts.append(None if left_out else self.expression())
        parts += [None] * (3 - len(parts))
        return nodes.Slice(start, self.position, *parts)

    def _attribute(self, operand: ExpressionNode) -> ExpressionNode:
        self.take(".")
        self.peek()
        start = self.position
        match = WORD.match(self.text, start)
        if match is None:
            raise self.fault("expected the name of a method after `.`")
        name = match.group()
        self.position = match.end()
        end = match.end()
        if isinstance(operand, nodes.CallExpression):
            if operand.function == "stats" and name in SUMMARY_FIELDS:
                return nodes.Field(operand.start, end, operand, name)
            if name in _PARTS.get(operand.function, ()):
                return self._part(operand, start, end, _PARTS[operand.function].index(name))
        function = function_name(name)
        if function is not None and function != "prev" and self.peek() == "(":
            return read_call(self, function, operand.start, start, (operand,))
        if name in ATTRIBUTES:
            return nodes.CallExpression(operand.start, end, name, ("x",), (operand,))
        if function is not None and function != "prev":
            message = f"`{name}` is a method and needs parentheses"
            raise self.fault_at(start, end, message, f"write .{name}()")
        message = f"there is no attribute `{shortened(name)}`"
        raise self.fault_at(start, end, message, _attribute_hint(name))

    def _part(self, call: nodes.CallExpression, start: int, end: int, number: int) -> ExpressionNode:
        if call.function == "unique" and "return_counts" not in call.parameters:
            hint = "write unique(x, return_counts=true).counts"
            raise self.fault_at(start, end, "this `unique` returns one tensor", hint)
        item = nodes.Sequence(start, end, (nodes.LiteralExpression(start, end, number),), is_list=False)
        return nodes.IndexExpression(call.start, end, call, item)

    # -- words: names, variables, functions ------------------------------------------------------

    def _word(self, match: re.Match[str]) -> ExpressionNode:
        word, (start, end) = match.group(), match.span()
        if (value := self.alias()) is not None:
            return nodes.Name(start, self.position, value, plain=True)
        if word in _WORDS:
            self.position = end
            return nodes.LiteralExpression(start, end, _WORDS[word])
        if (written := self.prefixed_name()) is not None:
            return nodes.Name(start, self.position, written, plain=True)
        self.position = end
        if function_name(word) is not None and self.peek() == "(":
            return read_call(self, function_name(word) or word, start, start, ())
        if self.has(word):
            return nodes.Name(start, end, word, plain=True)
        if word in PREFIXES and self.text.startswith(".", end):
            return self._of_library(word, start)
        if function_name(word) is None and (name := self.meant(word, start, parts=False)):
            return nodes.Name(start, end, name, plain=True)
        if function_name(word) is not None:
            raise self.fault_at(start, end, f"`{word}` is a function", f"write {word}(%x)")
        if self.has_no_value(word):
            full = "`where full` lists the names with values"
            raise self.fault_at(start, end, f"`{shortened(word)}` has no value here", full)
        hint = self.path_hint(start, end) or _word_hint(word) or self.nearest_value(word)
        raise self.fault_at(start, end, f"there is no value or function `{shortened(word)}`", hint)

    def _of_library(self, library: str, start: int) -> ExpressionNode:
        """Parse `np.abs(%h)`, `torch.softmax(%h, dim=-1)`, `np.float16` or `np.inf` as without the prefix."""
        match = WORD.match(self.text, self.position + 1)
        word = match.group() if match else ""
        end = self.position + 1 + len(word)
        function, dtype = function_name(word), dtype_name(word)
        self.position = end
        if function is not None and self.peek() == "(":
            unlike = FUNCTIONS[function].torch if library == "torch" and word not in SPELLINGS else ""
            if unlike:
                raise self.fault_at(start, end, f"{library}.{word} computes other values", unlike)
            return read_call(self, function, start, start, ())
        if word in _CONSTANTS:
            return nodes.LiteralExpression(start, end, _WORDS[word])
        if dtype is not None and function is None:
            return nodes.LiteralExpression(start, end, dtype)
        hint = f"write {word}(%x)" if function else _word_hint(word) or _LISTED
        raise self.fault_at(start, end, f"there is no function `{library}.{shortened(word)}` here", hint)

    def _variable(self) -> ExpressionNode:
        start = self.position
        match = VARIABLE.match(self.text, start + 1)
        if match is None:
            hint = "write a name such as $out, $in0 or $iter"
            raise self.fault("expected the name of a variable after `$`", hint=hint)
        name = match.group()
        self.position = match.end()
        return nodes.VariableExpression(start, self.position, name)


def _word_hint(word: str) -> str | None:
    return FOREIGN.get(word) or nearest(word, [*FUNCTIONS, *SPELLINGS])


def _attribute_hint(name: str) -> str:
    if name == "prev":
        return "write prev(%x)"
    if name in SUMMARY_FIELDS:
        return f"write stats(%x).{name}"
    return FOREIGN.get(name) or nearest(name, [*_METHODS, *SPELLINGS]) or _LISTED


# -- arguments: by position, by name, or spread as in `zeros(2, 3)` --------------------------------


@dataclass(slots=True)
class _Call:
    """The arguments read so far, by parameter; `tail` holds those of the spread parameter."""

    name: str
    function: Function
    positional: int
    """Maximum number of positional arguments."""
    given: dict[str, ExpressionNode] = field(default_factory=dict)
    tail: list[ExpressionNode] = field(default_factory=list)
    named: bool = False


def read_call(
    parser: ExpressionParser, name: str, start: int, name_start: int, first: tuple[ExpressionNode, ...]
) -> nodes.CallExpression:
    """Parse a call from its `(`; `first` holds the operand of a method call.

    Raises ExpressionError for arguments that the function does not accept.
    """
    function = FUNCTIONS[name]
    # max(%a, 0) is axis 0 in NumPy and the larger value in Python: as a function, it is refused.
    positional = 1 if name in ("min", "max") and not first else len(function.parameters)
    call = _Call(name, function, positional)
    for operand in first:
        _assign(parser, call, operand)
    parser.take("(")
    while parser.peek() != ")":
        _argument(parser, call)
        if parser.peek() != ",":
            break
        parser.take(",")
    parser.expect(")", "expected `,` or `)`")
    end = parser.position
    if len(call.tail) > 1:
        tail = tuple(call.tail)
        call.given[function.spread] = nodes.Sequence(tail[0].start, tail[-1].end, tail, is_list=False)
    _check(parser, call, name_start)
    return nodes.CallExpression(start, end, name, tuple(call.given), tuple(call.given.values()))


def _argument(parser: ExpressionParser, call: _Call) -> None:
    if match := KEYWORD.match(parser.text, parser.position):
        parameter = _keyword(parser, call, match)
        call.named = True
        call.given[parameter] = parser.expression()
        return
    if call.named:
        raise parser.fault("a positional argument follows a named argument")
    if len(call.given) >= call.positional and not call.tail:
        raise _too_many(parser, call)
    _assign(parser, call, parser.expression())


def _assign(parser: ExpressionParser, call: _Call, argument: ExpressionNode) -> None:
    """Assign an argument to the next parameter; a spread parameter takes all that follow."""
    if call.tail:
        call.tail.append(argument)
        return
    parameter = call.function.parameters[len(call.given)]
    call.given[parameter] = argument
    if parameter == call.function.spread:
        call.tail.append(argument)


def _keyword(parser: ExpressionParser, call: _Call, match: re.Match[str]) -> str:
    known = call.function.parameters
    written = match.group(1)
    parameter = written if written in known else PARAMETERS.get(written, written)
    if parameter not in known or parameter in call.given:
        problem = "has no argument" if parameter not in known else "has two values for the argument"
        message = f"`{call.name}` {problem} `{shortened(written)}`"
        raise parser.fault_at(*match.span(1), message, "use the arguments " + ", ".join(known))
    parser.position = match.end()
    return parameter


def _check(parser: ExpressionParser, call: _Call, name_start: int) -> None:
    function = call.function
    needed = function.parameters[: function.needed]
    missing = [parameter for parameter in needed if parameter not in call.given]
    if missing:
        message = f"`{call.name}` needs its argument `{missing[0]}`"
        usage = f"write {call.name}({', '.join(needed)})"
        raise parser.fault_at(name_start, name_start + len(call.name), message, usage)
    if call.name in DERIVATIVES:
        check_derivative(parser.text, call.name, call.given)
    argument = call.given["x"] if call.name == "prev" else None
    if argument is not None and not isinstance(argument, nodes.Name):
        raise parser.fault_at(argument.start, argument.end, "`prev` needs the name of a value")


def _too_many(parser: ExpressionParser, call: _Call) -> ExpressionError:
    hint = f"use the arguments {', '.join(call.function.parameters)}"
    if call.name in ("min", "max"):
        pair = {"min": "minimum", "max": "maximum"}[call.name]
        hint = f"write {call.name}(x, axis=1), or {pair}(a, b) element by element"
    return parser.fault(f"`{call.name}` takes no more arguments", hint=hint)
