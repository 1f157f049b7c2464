"""Expressions: the small, safe language of conditions, watches, `print` and `set`.

    mean(%h, axis=0)[0] > 3 and not any(isnan(%x))
    %h.std() / prev(%h).std()          stats(%h).nan          %h[0, :, 2:5].shape
    `%` marks the name of a value; plain `h` works where it is a value's name.
    np.abs(%h)          torch.softmax(%h, dim=-1)          mod(%i, 2)          %h.T @ %w

The syntax resembles Python with NumPy, but the parser is separate: its tree contains only names of
values and a fixed table of functions, and results far larger than their operands are refused before
they are computed.

Names can contain `/` and `.`, which are also the division and the method dot.  After `%`, the
longest run of name characters is shortened at its last `/` or `.` until it names a known value:
`%a/b` is the value `a/b` if it exists, otherwise `%a` divided by plain `b`.  Parsing therefore needs
the names (`has`); spaces make the division explicit.

Intentional differences from NumPy: reductions of f16 and f32 accumulate in f64 and give f64;
bf16, f8 and 4-bit types compute in f32 or i8/u8; integer `//` and `mod` by zero is an error;
`zeros`, `ones` and floats of `full` and `arange` are f32;
`a < b < c` works on tensors; `and`, `or`, `not` need scalars and give a bool; a list is a tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nncdbg.expression import nodes
from nncdbg.expression.evaluator import Evaluator, VisibleValues, unknown_variable
from nncdbg.expression.nodes import MAX_DEPTH, ExpressionNode, fault, walk
from nncdbg.expression.parser import ExpressionParser
from nncdbg.expression.tokens import spelled

__all__ = [
    "FACTS",
    "STATEMENT_VARIABLE",
    "Assignment",
    "Expression",
    "ParsedIndex",
    "VisibleValues",
    "check_condition",
    "check_variables",
    "condition",
    "evaluate",
    "evaluate_index",
    "parse",
    "parse_index",
    "resolve_name",
    "spelled",
    "split_assignment",
    "split_definition",
    "split_target",
]

FACTS = ("iter", "op", "line", "step", "epoch", "stream")
"""Variables for the current place of the program."""

STATEMENT_VARIABLE = re.compile(r"(out|in)(\d{0,4})", re.ASCII)
"""`out` and `out0` are the first result of the current statement, `in1` is its second operand."""

_DEFINITION = re.compile(r"\s*\$([A-Za-z_]\w*)\s*=(?!=)", re.ASCII)

Has: TypeAlias = Callable[[str], bool]
Names: TypeAlias = "Callable[[], Iterable[str]] | None"
Aliases: TypeAlias = Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression.

    `names` are its value names, without sigil; `plain` those written without a sigil; `variables`
    the names after a `$`.  `sourced` are the names of the user's source, as written, that have no value yet:
    the expression must be read again when they have one.
    """

    text: str
    names: frozenset[str]
    plain: frozenset[str]
    root: ExpressionNode = field(repr=False, compare=False)
    variables: frozenset[str] = frozenset()
    sourced: frozenset[str] = frozenset()

    @property
    def reads_result(self) -> bool:
        """Return whether it reads `$out`, and so must be evaluated after the statement."""
        return any(STATEMENT_VARIABLE.fullmatch(name) and name[0] == "o" for name in self.variables)


@dataclass(frozen=True, slots=True)
class ParsedIndex:
    """A parsed index such as `0, :, 2:5`; `text` is its whole source text."""

    text: str
    names: frozenset[str]
    items: nodes.Sequence = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`%target[index] = value`, which unpacks in that order.  `index` is None for the whole value."""

    target: str
    index: ParsedIndex | None
    value: Expression

    def __iter__(self) -> Any:
        return iter((self.target, self.index, self.value))


def parse(text: str, has: Has, names: Names = None, aliases: Aliases = dict) -> Expression:
    """Parse an expression.

    `has` returns whether a name is a value; `names` lists the values for hints; `aliases` returns other
    names, in Python's syntax, each with its value, "" if it has none now, or `LATER`: they come first where
    no `%` is written.  Raises ExpressionError, with the place underlined, for syntax errors, unknown names,
    texts of more than 10,000 characters, and more than 100 levels of nesting.
    """
    parser = ExpressionParser(text, has, names, aliases)
    root = parser.expression()
    parser.end()
    return _expression(text, root)


def check_variables(expression: Expression, scope: VisibleValues) -> Expression:
    """Return the expression.  Raises ExpressionError if it reads a variable missing from `scope`."""
    if not expression.variables:
        return expression
    known = set(scope.variables())
    for node, _ in walk(expression.root):
        known_later = isinstance(node, nodes.VariableExpression) and STATEMENT_VARIABLE.fullmatch(node.name)
        if isinstance(node, nodes.VariableExpression) and node.name not in known and not known_later:
            raise unknown_variable(expression.text, node, scope)
    return expression


def check_condition(condition: Expression, value: str = "$out") -> Expression:
    """Return the condition.  Raises ExpressionError for `nan` or `inf` alone, which is always true.

    `value` is the value that the hint suggests to test.
    """
    root = condition.root
    while isinstance(root, nodes.Unary):
        root = root.operand
    data = root.data if isinstance(root, nodes.LiteralExpression) else None
    if isinstance(data, float) and not math.isfinite(data):
        test = "isnan" if math.isnan(data) else "isinf"
        message = f"`{condition.text.strip()}` is a constant, not a test of a value"
        raise fault(condition.text, root.start, root.end, message, hint=f"write any({test}({value}))")
    return condition


def split_definition(text: str) -> tuple[str, str] | None:
    """Return ("x", "EXPR") for ``$x = EXPR``; None for any other text.

    Raises ExpressionError for a name that the debugger defines.
    """
    match = _DEFINITION.match(text)
    if match is None:
        return None
    name = match[1]
    if name in FACTS or STATEMENT_VARIABLE.fullmatch(name):
        message = f"`${name}` is defined by the debugger"
        raise fault(text, match.start(1) - 1, match.end(1), message, hint="choose another name: $x = EXPR")
    return name, text[match.end() :].strip()


def evaluate(expression: Expression, scope: VisibleValues) -> Any:
    """Return the value of an expression.

    It is an array, a NumPy or Python number, a bool, a str, a tuple (`%h.shape`), or a Summary
    (`stats(%h)`).  An array may share its memory with a value of the scope: do not write to it.
    Raises ExpressionError for invalid operands, and the errors of `scope` (NotComputed).
    """
    return Evaluator(expression.text, scope).evaluate(expression.root)


def condition(expression: Expression, scope: VisibleValues) -> bool:
    """Return whether an expression is true.

    Raises as `evaluate`, and ExpressionError if the value is not a single truth value: tensors of
    several elements need any() or all().
    """
    return Evaluator(expression.text, scope).truth(expression.root)


def resolve_name(text: str, has: Has, names: Names = None, aliases: Aliases = dict) -> str:
    """Return the value name for `%h`, `%"odd name"`, plain `h`, or any known name without a sigil.

    Raises ExpressionError for an unknown name, with the nearest known name as a hint.
    """
    if value := aliases().get(text.strip()):
        return value
    if has(text.strip()):
        return text.strip()
    parser = ExpressionParser(text, has, names, aliases)
    name = parser.any_name()
    parser.end()
    return name


def split_target(
    text: str, has: Has, names: Names = None, aliases: Aliases = dict
) -> tuple[str, ParsedIndex | None]:
    """Parse `%v[0, 3]` to ("v", its index), or `%v` to ("v", None).  Raises ExpressionError."""
    parser = ExpressionParser(text, has, names, aliases)
    target = _target(parser)
    parser.end()
    return target


def parse_index(text: str, has: Has, names: Names = None) -> ParsedIndex:
    """Parse an index: `0, :, 2:5` or `[0, :, 2:5]`.  Raises ExpressionError."""
    parser = ExpressionParser(text, has, names)
    bracketed = parser.at("[")
    items = parser.bracketed_items() if bracketed else parser.index_items()
    if bracketed and parser.at(","):
        # `[0, 1], :` is a list that selects along the first axis, not an index in brackets.
        parser = ExpressionParser(text, has, names)
        items = parser.index_items()
    parser.end()
    return _index(text, items)


def evaluate_index(index: ParsedIndex, scope: VisibleValues) -> tuple[Any, ...]:
    """Return an index for NumPy: ints, slices, None, `...`, tensors of integers or bools.

    Raises ExpressionError, and the errors of `scope`.
    """
    return Evaluator(index.text, scope).index(index.items)


def split_assignment(text: str, has: Has, names: Names = None, aliases: Aliases = dict) -> Assignment:
    """Parse `%v[0, 3] = EXPR`, `%v = EXPR`, or the same with `+=`, `-=`, `*=`, `/=`.

    Raises ExpressionError.
    """
    parser = ExpressionParser(text, has, names, aliases)
    parser.peek()
    start = parser.position
    name, index = _target(parser)
    end = parser.position
    symbol = parser.peek()
    augmented = symbol in ("+", "-", "*", "/") and text.startswith("=", parser.position + 1)
    if augmented:
        parser.take(symbol)
    parser.expect("=", "expected `=` and a value")
    root = parser.expression()
    parser.end()
    if augmented:
        before: ExpressionNode = nodes.Name(start, end, name, plain=False)
        if index is not None:
            before = nodes.IndexExpression(start, end, before, index.items)
        root = nodes.Binary(start, root.end, symbol, before, root)
    return Assignment(name, index, _expression(text, root))


def _target(parser: ExpressionParser) -> tuple[str, ParsedIndex | None]:
    name = parser.any_name()
    return name, _index(parser.text, parser.bracketed_items()) if parser.at("[") else None


def _expression(text: str, root: ExpressionNode) -> Expression:
    mentioned = _names(text, root)
    names = frozenset(node.name for node in mentioned if node.name)
    sourced = frozenset(text[node.start : node.end] for node in mentioned if not node.name)
    plain = frozenset(node.name for node in mentioned if node.plain)
    variables = frozenset(node.name for node, _ in walk(root) if isinstance(node, nodes.VariableExpression))
    return Expression(text, names, plain, root, variables, sourced)


def _index(text: str, items: nodes.Sequence) -> ParsedIndex:
    return ParsedIndex(text, frozenset(node.name for node in _names(text, items)), items)


def _names(text: str, root: ExpressionNode) -> list[nodes.Name]:
    """Return the names in a tree.  Raises ExpressionError for a tree that is too deep to evaluate."""
    names = []
    for node, depth in walk(root):
        if depth > MAX_DEPTH:
            message = f"the expression has more than {MAX_DEPTH} operators in a row or levels of nesting"
            raise fault(text, node.start, node.end, message)
        if isinstance(node, nodes.Name):
            names.append(node)
    return names
