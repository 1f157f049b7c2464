"""Numbers that a program on the host read while it was recorded, and that differ in this run."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.expression import spelled


def is_host_read(statement: Statement) -> bool:
    """Return whether the host read a number at a statement."""
    op = statement.code.nodes[statement.pc].op
    found = lookup(op, version_of(op, statement.code.opsets))
    return found is not None and found.host_read


def changed_read(statement: Statement, content: Any) -> str | None:
    """Return a sentence about a host read that gives another number now; None for the recorded one.

    `content` is the result of the statement as a NumPy array of no axes.
    """
    node = statement.code.nodes[statement.pc]
    # The schema requires the attribute, a number or the text of a complex one.
    recorded, now = cast("int | float | str", node.attributes["value"]), np.asarray(content)
    number = complex(recorded) if isinstance(recorded, str) else recorded
    if now.size != 1 or number == now.item() or (number != number and now.item() != now.item()):
        return None
    place = node.location
    where = f" at {place.file}:{place.line}" if place is not None and place.file else ""
    source = node.inputs[0]
    name = f" from {spelled(source)}" if isinstance(source, str) else ""
    return (
        f"Python read {recorded}{name}{where} in the recorded run, and would read {now.item()} now: "
        "it might take another path"
    )
