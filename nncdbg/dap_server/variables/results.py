"""Results of expressions, as a client shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dap_server.protocol.types import VariablePresentationHint
from nncdbg.dap_server.variables.children import View
from nncdbg.dap_server.variables.memory_references import memory_reference
from nncdbg.dap_server.variables.places import ContentPlace, computed, frame_place
from nncdbg.dap_server.variables.value_text import type_text
from nncdbg.engine.expression import evaluate
from nncdbg.engine.expression.nodes import Name

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.types import ValueFormat, Variable
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.values.values import Values


def result_of(
    session: Session, scope: Values, text: str, format: ValueFormat | None, *, keep: bool = False
) -> Variable:
    """The value of an expression seen from a frame, as a variable that can be expanded.

    With `keep` it becomes the value of `$_`.  Raises ExpressionError, NotComputed.
    """
    expression = scope.read(text)
    name = expression.root.name if isinstance(expression.root, Name) else None
    # A value given by its name alone is read in place, however large it is.
    content = evaluate(expression, scope) if name is None else scope.content(name)
    if keep:
        scope.convenience["_"] = content if name is None else scope.value(name)
    debugger = session.program.debugger
    depth = scope.depth if scope.depth >= 0 else len(debugger.control.stack) - 1
    frame, place = debugger.control.stack[depth], frame_place(session, depth)
    view = View(session, format)
    slot = frame.code.slot_at(name, frame.pc) if name is not None else None
    if name is not None and slot is not None and computed(frame, slot, debugger.ended):
        return view.content(text, ContentPlace(place, name), content, (frame.code, slot))
    whole = ContentPlace(place, text.strip(), kind="expression")
    return view.variable(
        text,
        _text(view, content),
        type=type_text(content),
        place=whole,
        opens=view.opens(whole, content),
        evaluate_name=text,
        hint=VariablePresentationHint(kind="data" if name is not None else "virtual"),
        memory=_memory(session, place, name, content),
    )


def result_fields(shown: Variable) -> dict[str, Any]:
    """The fields of a value that all responses with one value have."""
    names = "type", "variables_reference", "named_variables", "indexed_variables", "memory_reference"
    return {name: getattr(shown, name) for name in names}


def _memory(session: Session, frame: Any, name: str | None, content: Any) -> str | None:
    if name is None or not session.client.arguments.supports_memory_references:
        return None
    return memory_reference(session, session.handles.number(frame), name, content)


def _text(view: View, content: Any) -> str:
    """The text of a result: scalars plain, everything else as in a variable."""
    if view.glance.hex and isinstance(content, int) and not isinstance(content, bool):
        return hex(content)
    if isinstance(content, np.generic | bool):
        return view.glance.element(content)
    return view.glance.text(content)
