"""Edits of values: a variable, a part of it, or the target of an expression.

Dependents of the value are recomputed in a new branch; the branch without the change stays.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dap_server.client_recorder import target_text, value_text
from nncdbg.dap_server.events import report_change
from nncdbg.dap_server.protocol.requests import SetExpressionBody, SetVariableBody
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.children import View
from nncdbg.dap_server.variables.places import (
    ContentPlace,
    ScopePlace,
    child_place,
    content_at,
    depth_of,
    evaluate_name,
    values_from,
)
from nncdbg.dap_server.variables.results import result_fields, result_of
from nncdbg.dap_server.variables.value_text import Glance, type_text
from nncdbg.engine import dtypes
from nncdbg.engine.errors import UsageError
from nncdbg.engine.expression import evaluate, evaluate_index, split_target
from nncdbg.engine.inputs.data_specs import Plain, data_file, generated, read_spec
from nncdbg.engine.values.editing import late_decisions

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import SetExpressionArguments, SetVariableArguments
    from nncdbg.dap_server.protocol.types import ValueFormat, Variable
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.values.values import Values
    from nncdbg.ir.records import Array


@request(
    "setVariable",
    when=LIVE,
    values=True,
    capability="supportsSetVariable",
    title="Recomputing the values that depend on it",
)
def set_variable(session: Session, arguments: SetVariableArguments) -> SetVariableBody:
    container = session.handles.place(arguments.variables_reference)
    if container is None:
        raise UsageError("the variables reference has expired", hint="request the scopes again")
    if isinstance(container, (ScopePlace, ContentPlace)) and depth_of(session, container.frame) is None:
        raise UsageError("the frame of these variables no longer exists", hint="request the stack again")
    place = child_place(session, arguments.variables_reference, arguments.name)
    if place is None:
        raise UsageError(
            f"{arguments.name} cannot be set",
            hint="set a value or one of its elements",
        )
    scope = values_from(session, session.handles.number(place.frame))
    name, index = _target(scope, place)
    _set(session, scope, name, index, arguments.value, target_text(name, index))
    shown = _shown(session, place, arguments.format)
    return SetVariableBody(value=shown.value, **result_fields(shown))


def _target(scope: Values, place: ContentPlace) -> tuple[str, Any]:
    """(name, index) of the value at a place; UsageError if it cannot be set."""
    if place.kind == "previous":
        raise UsageError(
            "the value of a completed iteration cannot be set", hint="step back to the iteration"
        )
    if place.sequence:
        raise UsageError(
            "an element of a sequence cannot be set",
            hint="step back, and set the tensor before it is inserted into the sequence",
        )
    if place.kind == "value":
        return place.text, place.index or None
    if place.kind == "expression":
        name, index = split_target(place.text, scope.has, scope.names)
        if index is None:
            return name, place.index or None
    raise UsageError(
        f"{evaluate_name(place) or 'this value'} cannot be set",
        hint="set an element of a value, as in %h[0, 2]",
    )


@request(
    "setExpression",
    when=LIVE,
    values=True,
    capability="supportsSetExpression",
    title="Recomputing the values that depend on it",
)
def set_expression(session: Session, arguments: SetExpressionArguments) -> SetExpressionBody:
    scope = values_from(session, arguments.frame_id)
    name, index = split_target(arguments.expression, scope.has, scope.names)
    place = None if index is None else evaluate_index(index, scope)
    _set(session, scope, name, place, arguments.value, arguments.expression)
    shown = result_of(session, scope, arguments.expression, arguments.format)
    hint = shown.presentation_hint
    return SetExpressionBody(value=shown.value, presentation_hint=hint, **result_fields(shown))


def _set(session: Session, scope: Values, name: str, index: Any, text: str, target: str) -> None:
    """Set a value, or the part at a NumPy index, to the result of an expression, generated data or a file.

    Text in the form in which the value is displayed is accepted too.  `target` is the value and its part as
    text.  The console names decisions that have already used the value.  Raises ExpressionError, NotComputed,
    and UsageError where shape or type do not fit.
    """
    debugger = session.program.debugger
    awaited = name in debugger.awaited
    given = _given(session, scope, name, index, text)
    debugger.set_value(name, given, index, scope=scope)
    written = value_text(given) if is_displayed(text) else text
    session.program.recorder.edit(scope.depth, target, written)
    sentences = [] if awaited else late_decisions(debugger.values)
    session.defer(lambda: report_change(session))
    for sentence in sentences:
        session.client.say(sentence, "important")


def _given(session: Session, scope: Values, name: str, index: Any, text: str) -> Any:
    """The new value in a text; the text itself for generated data and files."""
    if (generated(text) or data_file(text)) and not scope.has(text):
        return text
    if is_displayed(text):
        glance = View(session).glance
        whole = glance.host(scope.content(name))
        return from_display(text, whole if index is None else whole[index], glance)
    return evaluate(scope.read(text), scope)


def _shown(session: Session, place: ContentPlace, format: ValueFormat | None) -> Variable:
    """A value of a frame as its variable shows it, or an element as its row does."""
    view = View(session, format)
    content = content_at(session, place)
    if place.index and content.ndim == 0:
        element = view.glance.element(view.glance.host(content)[()])
        return view.variable("", element, type=str(view.content("", place, content).type))
    return view.content("", place, content)


_TYPED = re.compile(r"\s*(\w+)\[([\d,\s]*)\]\s+(\S.*)", re.DOTALL)
_ELEMENT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s\[\],]+""")


def is_displayed(text: str) -> bool:
    """Return whether a text begins with the type of a tensor, as displayed values do."""
    found = _TYPED.fullmatch(text)
    return found is not None and found[1] in dtypes.NUMPY


def from_display(text: str, before: Array, glance: Glance) -> Array:
    """Return the array, of the type and shape of `before`, that an edited display of it describes.

    Elements whose text has not changed keep their exact value, as the display is rounded.  Raises
    UsageError for another type or shape, and for a display that has statistics instead of elements.
    """
    found = _TYPED.fullmatch(text)
    assert found is not None, "`is_displayed` has accepted it"
    before = np.asarray(before)
    known, given = type_text(before), f"{found[1]}[{found[2].replace(' ', '')}]"
    if given != known:
        raise UsageError(f"the value is {known}, but the text is {given}", hint="keep the type and shape")
    shown = _ELEMENT.findall(glance.text(before).removeprefix(f"{known} "))
    elements = _ELEMENT.findall(found[3])
    if len(shown) != before.size:
        raise UsageError(
            "this text cannot be edited: it shows statistics instead of all elements",
            hint="enter a number, zeros, FILE.npy or an expression; or open the value and edit an element",
        )
    if len(elements) != before.size:
        raise UsageError(f"{known} has {before.size} elements, but the text has {len(elements)}")
    pairs = zip(before.reshape(-1), shown, elements, strict=True)
    values = [old if new == text else _element(new) for old, text, new in pairs]
    return np.array(values, dtype=object if before.dtype.kind == "O" else None).reshape(before.shape)


def _element(text: str) -> Any:
    """Parse the number, bool or string in a text.  Raises UsageError."""
    spec = read_spec(text)
    if not isinstance(spec, Plain):
        raise UsageError(f"{text} is not a valid element", hint="use a number, true, false, nan or inf")
    return spec.data
