"""Help on the expression language: its syntax, and its functions from the function table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from nncdbg.expression.functions import FUNCTIONS, GROUPS, function_name

SYNTAX: tuple[tuple[str, str], ...] = (
    ("%h", "a value; the name h without % also works"),
    ('%"odd name"', "a value with other characters in its name"),
    ("%h[0, 2:5]  %h[..., None]", "indices, slices and new axes, as in NumPy"),
    ("%h[%h > 0]", "the elements where a mask is true"),
    ("+ - * / // **", "arithmetic; mod(a, b) is the remainder"),
    ("%a @ %b", "the matrix product"),
    ("< <= == != > >=", "comparison; you can chain: 0 < %h < 1"),
    ("and or not", "logic with single truth values"),
    ("& | ^ ~", "bitwise logic on tensors of integers or bools"),
    ("a if c else b", "a if c is true, otherwise b"),
    ("[1, 2]  true  inf  nan  None", "literals; a list is a tensor"),
    ("mean(%h)  %h.mean(axis=0)", "a function call, also as a method"),
    ("%h.shape  %h.T", "attributes: shape dtype size ndim nbytes T"),
    ("np.abs(%h)  max(%h, dim=1)", "names from NumPy and PyTorch also work"),
    ("$out $out1  $in0 $in1", "results and operands of the current statement"),
    ("$iter $op $line", "iteration, op and line of the current statement"),
    ("$step $epoch", "step and epoch of the training, from 0"),
    ("$stream", "stream of the current statement in a schedule; -1 is the host"),
    ("$x = EXPR", "define the name $x, for later expressions"),
    ("$_", "the last printed value"),
)
"""Syntax forms and their meanings."""


def overview(width: int) -> Iterator[str]:
    """Yield the lines of `help expressions`, at most `width` characters each."""
    for example, meaning in SYNTAX:
        yield f"  {example:<29} {meaning}"
    yield "Functions (`help NAME` explains one):"
    for title, group in GROUPS.items():
        words = f"{title}: {' '.join(group)}"
        yield from textwrap.wrap(words, max(20, width), initial_indent="  ", subsequent_indent="    ")


def explained(word: str) -> list[str] | None:
    """Return the help of one function; None for other words."""
    name = function_name(word)
    if name is None:
        return None
    function = FUNCTIONS[name]
    lines = [function.usage(name), f"Return {function.help}."]
    if function.torch:
        lines.append(f"{function.torch}.")
    return lines
