"""`where grad`: the backward pass from a value as a stack, with the gradients after each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from nncdbg.dtypes import FLOATS
from nncdbg.errors import UsageError
from nncdbg.expression import resolve_name, spelled
from nncdbg.expression.operators import OperandError
from nncdbg.ir.records import tensor_only, type_of
from nncdbg.presentation.tensor_text import value_line
from nncdbg.stats import summarize
from nncdbg.target.breakpoint_syntax import split_value

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession

_HINT = "write `where grad %loss`, or `where grad %loss by %x, %w`"


def show_backward_stack(session: CommandSession, text: str) -> None:
    """Show the steps of the backward pass that `text`, ``%loss by %x, %w``, describes."""
    if not text:
        raise UsageError("`where grad` needs a value", hint=_HINT)
    scope = session.target.scope()
    first, rest = split_value(text)
    y = resolve_name(first, scope.has, scope.names)
    word, _, names = rest.strip().partition(" ")
    if word and (word != "by" or not names.strip()):
        raise UsageError(f'`where grad` cannot read "{rest.strip()}"', hint=_HINT)
    given = [each.strip() for each in names.split(",")] if word else []
    xs = [resolve_name(each, scope.has, scope.names) for each in given] or _leaves(session, y)
    try:
        stages = session.target.gradient(y, [*dict.fromkeys(xs)])
    except OperandError as error:
        raise UsageError(str(error), hint=error.hint) from None
    screen = session.screen
    screen.put_line(Text(f"the gradient of {spelled(y)} by {spelled(y)} is 1"))
    for number, stage in enumerate(stages):
        place = f"{stage.where}: " if stage.where else ""
        screen.put_line(Text(f"#{number} {place}").append(stage.text, "dim"))
        for name, gradient in stage.cotangents.items():
            for part, array in _tensors(gradient):
                shown = value_line(name, array, summarize(array), screen.line_layout)
                screen.put_line(Text(f"     {part}") + shown)


def _tensors(gradient: Any) -> list[tuple[str, Any]]:
    """Return the tensors of a gradient; those of a sequence with their places."""
    if isinstance(gradient, list):
        return [(f"[{index}] of ", np.asarray(each)) for index, each in enumerate(gradient)]
    return [("", np.asarray(gradient))]


def _leaves(session: CommandSession, name: str) -> list[str]:
    """Return the floats that a value depends on, and that no statement of its frame computes."""
    scope, place = session.target.scope(), session.target.state(name).place
    needed, found = {name}, []
    for node in reversed(place.graph.nodes[: place.pc + 1]):
        outputs = {value.name for value in node.outputs}
        if outputs & needed:
            needed -= outputs
            needed |= {each for each in node.inputs if isinstance(each, str)}
    order = dict.fromkeys(
        (
            *(value.name for value in place.graph.inputs),
            *(constant.value.name for constant in place.graph.constants),
            *(each for node in place.graph.nodes for each in node.inputs),
        )
    )
    for each in sorted(needed - {name}, key=[*order].index):
        known = tensor_only(type_of(scope.content(each)))
        if known is not None and known.dtype in FLOATS:
            found.append(each)
    if not found:
        raise UsageError(f"{spelled(name)} depends on no floats of its frame", hint=_HINT)
    return found
