"""Expressions, commands and edits: hover, watches, the debug console, the clipboard, completion.

The dependents of an edited value are recomputed in a new branch; the branch without the change stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nncdbg import dtypes
from nncdbg.commands.command_lines import is_expression
from nncdbg.commands.completion import candidates
from nncdbg.dap_server import protocol
from nncdbg.dap_server.client_recorder import target_text, value_text
from nncdbg.dap_server.console import Console, bounded, console_of
from nncdbg.dap_server.events import report_change
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.children import View
from nncdbg.dap_server.variables.places import (
    ContentPlace,
    ScopePlace,
    child_place,
    computed,
    content_at,
    depth_of,
    evaluate_name,
    frame_place,
    memory_reference,
    values_from,
)
from nncdbg.dap_server.variables.scopes import with_loss_gradient
from nncdbg.dap_server.variables.value_text import Glance, type_text
from nncdbg.engine.inputs.data_specs import Plain, data_file, generated, read_spec
from nncdbg.engine.values.editing import late_decisions
from nncdbg.errors import UsageError
from nncdbg.expression import evaluate as value_of
from nncdbg.expression import evaluate_index, split_definition, split_target
from nncdbg.expression.nodes import Name
from nncdbg.ir.records import Array
from nncdbg.presentation.elements import type_of
from nncdbg.presentation.times.margin import time_of

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.values.values import Values


def result_of(
    session: Session, scope: Values, text: str, format: protocol.ValueFormat | None, *, keep: bool = False
) -> protocol.Variable:
    """The value of an expression seen from a frame, as a variable that can be expanded.

    With `keep` it becomes the value of `$_`.  Raises ExpressionError, NotComputed.
    """
    expression = scope.read(text)
    name = expression.root.name if isinstance(expression.root, Name) else None
    # A value given by its name alone is read in place, however large it is.
    content = value_of(expression, scope) if name is None else scope.content(name)
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
        hint=protocol.VariablePresentationHint(kind="data" if name is not None else "virtual"),
        memory=_memory(session, place, name, content),
    )


def result_fields(shown: protocol.Variable) -> dict[str, Any]:
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


MAX_ELEMENTS = 10_000
"""Elements of a tensor that is copied whole."""

_TYPES = {"bool": "np.bool_", "object": "object"}


def python_text(text: str, content: Any) -> str:
    """Return a value as exact Python text; `text` is its expression.

    For a tensor of more than `MAX_ELEMENTS` elements, its edges, and how to get it whole.
    """
    if isinstance(content, np.ndarray):
        return _array(text, content)
    if isinstance(content, np.generic):
        return _speller(np.asarray(content))(content)
    if isinstance(content, list):
        return f"[{', '.join(python_text(f'{text}[{i}]', item) for i, item in enumerate(content))}]"
    return _real(content) if isinstance(content, float) else repr(content)


def _array(text: str, array: Array) -> str:
    if array.size > MAX_ELEMENTS:
        edges = np.array2string(array, separator=", ", threshold=0)
        return (
            f"# {text}: {type_of(array)}, {array.size} elements, too many to copy; "
            f"`save {text} FILE.npy` writes them\n{edges}"
        )
    dtype = _dtype(array.dtype)
    if array.size == 0:
        return f"np.empty({array.shape}, dtype={dtype})"
    return f"np.array({_nested(array, _speller(array))}, dtype={dtype})"


def _dtype(dtype: np.dtype[Any]) -> str:
    if dtype.isbuiltin != 1:
        return f"ml_dtypes.{dtype.name}"
    return _TYPES.get(dtype.name, f"np.{dtype.name}")


def _nested(array: Array, spell: Callable[[Any], str]) -> str:
    if array.ndim == 0:
        return spell(array[()])
    # With `...` the selected part stays an array, of strings too.
    return f"[{', '.join(_nested(array[position, ...], spell) for position in range(len(array)))}]"


def _speller(array: Array) -> Callable[[Any], str]:
    """Return the formatter for one element of the array."""
    kind = array.dtype.kind
    if kind == "c":
        return lambda each: f"complex({_real(each.real)}, {_real(each.imag)})"
    if kind in "OUST":
        return lambda each: repr(str(each))
    if kind in "biu":
        return str
    return _real


def _real(number: Any) -> str:
    """The shortest digits that restore the number in its own type."""
    text = str(number)
    bare = text.lstrip("+-")
    return text.replace(bare, f"np.{bare}") if bare in ("nan", "inf") else text


def with_time(session: Session, scope: Values, text: str, shown: protocol.Variable) -> protocol.Variable:
    """Return the hover over a value with the median time of its statement and its share of all kernels.

    Without measured times, and for an expression that is not a name, return the hover unchanged.
    """
    debugger = session.program.debugger
    root = scope.read(text).root if debugger.times.on else None
    if not isinstance(root, Name):
        return shown
    place = next(scope.places(root.name), None)
    if place is None or (pc := place.code.definition[place.slot]) < 0 or place.code.formula is not None:
        return shown
    target = session.program.target
    time = time_of(target.times(), target.place(place.code.path, pc))
    return msgspec.structs.replace(shown, value=f"{shown.value} ({time})") if time else shown


MAX_COMPLETIONS = 200


class _Context(msgspec.Struct):
    context: str | None = None


def _is_read(arguments: bytes | None) -> bool:
    """Return whether the request may be dropped: console input is always executed."""
    try:
        return msgspec.json.decode(arguments or b"{}", type=_Context).context != "repl"
    except (msgspec.DecodeError, RecursionError):
        return False


@request(
    "evaluate",
    when=LIVE,
    capability={
        "supportsEvaluateForHovers": True,
        "supportsClipboardContext": True,
        "supportsANSIStyling": True,
    },
    reads=_is_read,
    title="Evaluating",
)
def evaluate(session: Session, arguments: protocol.EvaluateArguments) -> protocol.EvaluateBody:
    text = arguments.expression
    if arguments.context == "repl":
        console = console_of(session)
        console.select_frame(arguments.frame_id)
        line = text.strip()
        if line[:1] in ("", "#") or console.collecting or not is_expression(console.target, line):
            return protocol.EvaluateBody(result=console.enter(text), variables_reference=0)
        return _console_expression(session, console, line, arguments.format)
    scope = values_from(session, arguments.frame_id)
    session.check_settled()
    if arguments.context == "clipboard":
        content = value_of(scope.read(text), scope)
        return protocol.EvaluateBody(result=python_text(text, content), variables_reference=0)
    shown = result_of(session, scope, text, arguments.format)
    if arguments.context == "hover":
        shown = with_time(session, scope, text, with_loss_gradient(session, scope, text, shown))
    return _body(shown)


def _console_expression(
    session: Session, console: Console, line: str, format: protocol.ValueFormat | None
) -> protocol.EvaluateBody:
    """Evaluate and record a line of the console that is an expression or defines a name."""
    session.check_settled()
    definition = split_definition(line)
    if definition is not None:
        console.debugger.evaluate(line)
    text = line if definition is None else f"${definition[0]}"
    shown = result_of(session, console.debugger.values, text, format, keep=True)
    console.record_expression(line, text)
    return _body(shown)


def _body(shown: protocol.Variable) -> protocol.EvaluateBody:
    hint = shown.presentation_hint
    return protocol.EvaluateBody(result=bounded(shown.value), presentation_hint=hint, **result_fields(shown))


@request(
    "completions",
    when=LIVE,
    capability={
        "supportsCompletionsRequest": True,
        "completionTriggerCharacters": ["%", "@", "$", ".", "/", '"'],
    },
    reads=True,
)
def completions(session: Session, arguments: protocol.CompletionsArguments) -> protocol.CompletionsBody:
    lines = arguments.text.split("\n")
    row = 0 if arguments.line is None else session.client.incoming_line(arguments.line) - 1
    line = lines[min(max(0, row), len(lines) - 1)]
    first = session.client.outgoing_column(1)
    units = line.encode("utf-16-le", "surrogatepass")[: 2 * max(0, arguments.column - first)]
    before = units.decode("utf-16-le", "ignore")
    word, names = candidates(console_of(session), before)
    start = _units(before) - _units(word) + first
    return protocol.CompletionsBody(
        targets=[
            protocol.CompletionItem(label=name, type=_kind(name), start=start, length=_units(word))
            for name in names[:MAX_COMPLETIONS]
        ]
    )


def _units(text: str) -> int:
    """The length in the protocol's unit, UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _kind(name: str) -> protocol.CompletionItemType:
    if name.startswith("%"):
        return "value"
    if name.startswith("@"):
        return "module"
    if name.startswith("$"):
        return "variable"
    return "function" if name.endswith("(") else "keyword"


@request(
    "setVariable",
    when=LIVE,
    values=True,
    capability="supportsSetVariable",
    title="Recomputing the values that depend on it",
)
def set_variable(session: Session, arguments: protocol.SetVariableArguments) -> protocol.SetVariableBody:
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
    return protocol.SetVariableBody(value=shown.value, **result_fields(shown))


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
        name, index = split_target(place.text, scope.has, scope.names, scope.aliases)
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
def set_expression(
    session: Session, arguments: protocol.SetExpressionArguments
) -> protocol.SetExpressionBody:
    scope = values_from(session, arguments.frame_id)
    name, index = split_target(arguments.expression, scope.has, scope.names, scope.aliases)
    place = None if index is None else evaluate_index(index, scope)
    _set(session, scope, name, place, arguments.value, arguments.expression)
    shown = result_of(session, scope, arguments.expression, arguments.format)
    hint = shown.presentation_hint
    return protocol.SetExpressionBody(value=shown.value, presentation_hint=hint, **result_fields(shown))


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
    return value_of(scope.read(text), scope)


def _shown(session: Session, place: ContentPlace, format: protocol.ValueFormat | None) -> protocol.Variable:
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
