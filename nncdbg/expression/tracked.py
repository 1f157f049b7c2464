"""Parse tracked expressions: their names are values of a step, or data given for it from outside."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from nncdbg.expression import Expression, nodes, parse
from nncdbg.expression.functions import DERIVATIVES
from nncdbg.expression.nodes import fault, walk
from nncdbg.expression.tokens import nearest
from nncdbg.text.lexemes import BARE, NO_PREFIXES, PREFIX_END, STRING, Flaw, Prefixes, unquote
from nncdbg.text.short_names import Scopes

VARIABLES = ("step", "epoch")
"""The variables of a tracked expression, without the `$`."""

_marked = re.compile(rf"%(?:(?P<bare>{BARE})(?!{PREFIX_END}|{BARE})|(?P<quoted>{STRING}))")


@dataclass(frozen=True, slots=True)
class TrackedExpression:
    """An expression whose names are values of a step, apart from `data`, which are given from outside."""

    expression: Expression
    data: tuple[str, ...]


def parse_tracked(text: str, known: Collection[str], prefixes: Prefixes = NO_PREFIXES) -> TrackedExpression:
    """Parse a tracked expression over the values `known`.

    A name after `%` that no value has is the name of data.  Raises ExpressionError for syntax errors, and for
    variables and functions that a step does not have: `prev`, derivatives, `$out`.
    """
    data = dict.fromkeys(name for name in _names(text, known) if name not in known)
    names = Scopes((known, list(data)), prefixes.find)
    expression = parse(text, lambda name: name in known or name in data, lambda: names)
    _check(expression)
    return TrackedExpression(expression, tuple(name for name in data if name in expression.names))


def _names(text: str, known: Collection[str]) -> list[str]:
    """Return the names after `%`: the longest part that is known, else the part before `/` or `.`."""
    found = []
    for match in _marked.finditer(text):
        if match["quoted"] is not None:
            try:
                found.append(unquote(match["quoted"], match.start("quoted")))
            except Flaw:
                continue  # The parser reports the escape.
        else:
            run = match["bare"]
            ends = [len(run), *(at for at in range(len(run) - 1, 0, -1) if run[at] in "/.")]
            found.append(next((run[:end] for end in ends if run[:end] in known), run[: ends[-1]]))
    return found


def _check(expression: Expression) -> None:
    for node, _ in walk(expression.root):
        if isinstance(node, nodes.VariableExpression) and node.name not in VARIABLES:
            message = f"a track cannot read `${node.name}`"
            hint = nearest(node.name, VARIABLES) or "the variables of a track are $step and $epoch"
        elif isinstance(node, nodes.CallExpression) and node.function in {"prev", *DERIVATIVES}:
            message = f"a track cannot use `{node.function}`"
            hint = "compute the value in the graph, and track that value"
        else:
            continue
        raise fault(expression.text, node.start, node.end, message, hint=hint)
