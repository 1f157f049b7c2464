"""Parse the arguments of a call: by position, by name, or spread as in `zeros(2, 3)`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nncdbg.errors import ExpressionError
from nncdbg.expression import nodes
from nncdbg.expression.declarations import Function
from nncdbg.expression.derivatives import DERIVATIVES, check_derivative
from nncdbg.expression.functions import FUNCTIONS, PARAMETERS
from nncdbg.expression.nodes import ExpressionNode
from nncdbg.expression.tokens import KEYWORD, shortened

if TYPE_CHECKING:
    from nncdbg.expression.parser import ExpressionParser


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
    parser.position = match.start(1)
    parameter = written if written in known else PARAMETERS.get(written, written)
    if parameter not in known or parameter in call.given:
        problem = "has no argument" if parameter not in known else "has two values for the argument"
        raise parser.fault(
            f"`{call.name}` {problem} `{shortened(written)}`",
            width=len(written),
            hint="use the arguments " + ", ".join(known),
        )
    parser.position = match.end()
    return parameter


def _check(parser: ExpressionParser, call: _Call, name_start: int) -> None:
    function = call.function
    missing = [
        parameter for parameter in function.parameters[: function.needed] if parameter not in call.given
    ]
    if missing:
        parser.position = name_start
        message = f"`{call.name}` needs its argument `{missing[0]}`"
        usage = f"write {call.name}({', '.join(function.parameters[: function.needed])})"
        raise parser.fault(message, width=len(call.name), hint=usage)
    if call.name in DERIVATIVES:
        check_derivative(parser.text, call.name, call.given)
    argument = call.given["x"] if call.name == "prev" else None
    if argument is not None and not isinstance(argument, nodes.Name):
        parser.position = argument.start
        raise parser.fault("`prev` needs the name of a value", width=argument.end - argument.start)


def _too_many(parser: ExpressionParser, call: _Call) -> ExpressionError:
    hint = f"use the arguments {', '.join(call.function.parameters)}"
    if call.name in ("min", "max"):
        pair = {"min": "minimum", "max": "maximum"}[call.name]
        hint = f"write {call.name}(x, axis=1), or {pair}(a, b) element by element"
    return parser.fault(f"`{call.name}` takes no more arguments", hint=hint)
