"""The groups of a frame's values, the content of each, and gradients of the loss in hovers.

Encoded variables are cached, and sent again while they would be shown the same.  A step changes few of the
values on the screen, and clients request all of them again.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nncdbg.dap_server import protocol
from nncdbg.dap_server.variables.children import Children, View
from nncdbg.dap_server.variables.places import (
    ContentPlace,
    FramePlace,
    HoverPlace,
    ScopePlace,
    computed,
    current_statement,
    depth_of,
    frame_place,
    number_in,
    value_title,
)
from nncdbg.dap_server.variables.value_text import UNKNOWN, is_tensor
from nncdbg.engine.compilation.code import UNSET
from nncdbg.engine.values.differentiation import Budget, BudgetExceeded
from nncdbg.engine.values.losses import loss_at
from nncdbg.errors import ExpressionError, NotComputed
from nncdbg.expression import spelled
from nncdbg.expression.functions import DerivativeRequest
from nncdbg.expression.nodes import Name
from nncdbg.expression.operators import OperandError
from nncdbg.presentation.buffers import buffer_text
from nncdbg.stats import summarize
from nncdbg.target.cells import Cells
from nncdbg.target.measures import buffer_of

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.variables.children import Listed
    from nncdbg.dap_server.variables.value_text import Slots
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.execution.frame import Frame
    from nncdbg.engine.values.values import Values


@dataclass(frozen=True, slots=True)
class EncodedValue:
    """How a value was shown: `encoded` as it was sent, with the `numbers` of the places in it.

    `stamp` holds everything besides array and slot that affects its text.
    """

    content: Callable[[], Any]
    stamp: tuple[bool, ...]
    encoded: msgspec.Raw
    numbers: tuple[int, ...]


class EncodedVariables:
    """The variables sent for one frame, as one view shows it."""

    def __init__(self, view: View, place: FramePlace, frame: Frame) -> None:
        self._known = view.glance.shown.encoded.setdefault(place, {})
        self._stamp = view.glance.hex, view.typed, view.addressed, frame.iteration > 0
        self._handles = view.session.handles
        # Where memory is reused, the content of an array may change.
        self._keeps = not view.session.program.debugger.timeline.overwrites

    def again(self, slot: int, content: Any) -> msgspec.Raw | None:
        """The encoded variable of an array in a slot, if it was sent and is still valid."""
        known = self._known.get(slot)
        if known is None or known.content() is not content or known.stamp != self._stamp:
            return None
        return known.encoded if self._handles.refresh(known.numbers) else None

    def keep(self, slot: int, content: Any, variable: protocol.Variable) -> Listed:
        """Store how an array is shown, as long as it is live, or that a value is not computed (UNSET).

        Variables with pending statistics are not stored.
        """
        if content is UNSET:
            encoded = msgspec.Raw(msgspec.json.encode(variable))
            self._known[slot] = EncodedValue(lambda: UNSET, self._stamp, encoded, ())
            return encoded
        keeps = self._keeps and is_tensor(content) and not isinstance(content, np.generic)
        if keeps and not variable.value.endswith(UNKNOWN):
            gone = partial(self._known.pop, slot)
            encoded = msgspec.Raw(msgspec.json.encode(variable))
            self._known[slot] = EncodedValue(
                weakref.ref(content, gone), self._stamp, encoded, _numbers(variable)
            )
            return encoded
        return variable


def _numbers(variable: protocol.Variable) -> tuple[int, ...]:
    reference = variable.memory_reference
    found = (
        variable.variables_reference or None,
        variable.declaration_location_reference,
        variable.value_location_reference,
        number_in(reference) if reference is not None else None,
    )
    return tuple(number for number in found if number is not None)


BUDGET = Budget(statements=500, seconds=0.1)
"""The most work for a hover."""


@dataclass(frozen=True, slots=True)
class LossGradient:
    """The gradient of `loss` with respect to `name`; `array` is None if it is not computed."""

    loss: str
    name: str
    text: str
    array: Any = None

    @property
    def expression(self) -> str:
        return f"grad({spelled(self.loss)}, {spelled(self.name)})"


def with_loss_gradient(
    session: Session, scope: Values, text: str, shown: protocol.Variable
) -> protocol.Variable:
    """Return the hover over a value with the child `gradient of %l = norm 0.3 min -0.1 max 0.2`.

    Without a gradient (see `loss_gradient`), return the hover unchanged.
    """
    debugger = session.program.debugger
    found = loss_gradient(debugger, scope, text)
    if found is None:
        return shown
    depth = scope.depth if scope.depth >= 0 else len(debugger.control.stack) - 1
    at = ContentPlace(frame_place(session, depth), found.expression, kind="expression")
    opens = (0, 0) if found.array is None else View(session).opens(at, found.array)
    of = session.handles.place(shown.variables_reference)
    place = HoverPlace(of, at, spelled(found.loss), found.text, opens)
    return msgspec.structs.replace(
        shown,
        variables_reference=session.handles.number(place),
        named_variables=(shown.named_variables or 0) + 1,
    )


def loss_gradient(debugger: Debugger, scope: Values, text: str) -> LossGradient | None:
    """Return the gradient of the loss with respect to the value named `text`.

    None for an expression that is not a name, and for a value on which no computed loss depends.  If the
    gradient needs more than `BUDGET`, the text gives the reason.  The run does not change.
    """
    root = scope.read(text).root
    loss = loss_at(scope, debugger.program) if isinstance(root, Name) else None
    if loss is None or not isinstance(root, Name) or root.name == loss:
        return None
    try:
        array = np.asarray(scope.derivative(DerivativeRequest("grad", loss, root.name), (), BUDGET))
    except BudgetExceeded as error:
        return LossGradient(loss, root.name, f"not computed, {error.message}")
    except (OperandError, ExpressionError, NotComputed):
        return None
    return LossGradient(loss, root.name, _described(array), array)


def hover_children(view: View, place: HoverPlace) -> Children:
    """The gradient of the loss, then the children of the value."""
    inner = view.children(place.of) if place.of is not None else Children()

    def make(start: int, stop: int) -> Iterator[Listed]:
        if start == 0 and stop > 0:
            yield view.variable(
                f"gradient of {place.loss}",
                place.text,
                place=place.gradient,
                opens=place.opens,
                evaluate_name=place.gradient.text,
            )
        yield from inner.make_named(max(start - 1, 0), max(stop - 1, 0))

    return Children(inner.named + 1, make, inner.indexed, inner.make_indexed)


def _described(gradient: np.ndarray) -> str:
    """Return the norm and the extremes; with NaN or Inf their number instead of the norm."""
    summary = summarize(gradient)
    figures = [("nan", summary.nan), ("inf", summary.posinf + summary.neginf)]
    shown = [f"{label} {count}" for label, count in figures if count]
    if summary.mean is not None and summary.std is not None and not shown:
        shown.append(f"norm {math.hypot(summary.mean, summary.std) * math.sqrt(summary.count):.4g}")
    limits = (("min", summary.min), ("max", summary.max))
    shown += [f"{label} {number:.4g}" for label, number in limits if number is not None]
    return " ".join(shown)


BUFFERS = "buffers"
"""Not a scope of its own: the memory of a frame's values."""


@dataclass(frozen=True, slots=True)
class FrameAtStop:
    """The inspected frame: the statement at `pc`, which has run or is next."""

    view: View
    place: FramePlace
    depth: int
    frame: Frame
    pc: int
    done: bool
    encoded: EncodedVariables

    @property
    def code(self) -> Code:
        return self.frame.code

    @property
    def ended(self) -> bool:
        return self.view.session.program.debugger.ended

    @property
    def slots(self) -> Slots:
        """The named slots of the block, of a state only that of its present value."""
        return self.view.session.program.shown.slots(self.code).at(self.code, self.frame.pc)


@dataclass(frozen=True, slots=True)
class ScopeKind:
    """`hint` is the protocol's presentation hint; `fits` returns whether a frame has this scope."""

    children: Callable[[FrameAtStop], Children]
    hint: str | None = None
    expensive: bool = False
    fits: Callable[[FrameAtStop], bool] = lambda here: True


def here(view: View, place: FramePlace) -> FrameAtStop | None:
    """The frame at a place; None if it is gone."""
    depth = depth_of(view.session, place)
    if depth is None:
        return None
    frame = view.session.program.debugger.control.stack[depth]
    pc, done = current_statement(view.session, depth)
    return FrameAtStop(view, place, depth, frame, pc, done, EncodedVariables(view, place, frame))


def scope_children(view: View, place: ScopePlace) -> Children:
    """The content of a scope; empty if its frame is gone, or does not have it any more."""
    found = here(view, place.frame)
    if found is None:
        return Children()
    if place.scope == BUFFERS:
        return _buffers(found)
    kind = SCOPES.get(place.scope)
    return kind.children(found) if kind is not None and kind.fits(found) else Children()


# -- values in slots -----------------------------------------------------------------------------


def _listed(here: FrameAtStop, slots: Sequence[int]) -> Children:
    """The computed values in these slots, each once."""
    shown = [slot for slot in dict.fromkeys(slots) if slot and computed(here.frame, slot, here.ended)]
    return Children(len(shown), lambda start, stop: (_value(here, slot) for slot in shown[start:stop]))


def _title(here: FrameAtStop, name: str) -> str:
    return value_title(here.view.session, here.code, name)


def _value(here: FrameAtStop, slot: int) -> Listed:
    content = here.frame.slots[slot]
    encoded = here.encoded.again(slot, content)
    if encoded is not None:
        return encoded
    name = here.code.names[slot]
    if not here.view.session.program.debugger.values.is_present(here.frame, slot):
        return _present(here, name)
    if name:
        variable = here.view.in_slot(here.frame, slot, ContentPlace(here.place, name), _title(here, name))
        return here.encoded.keep(slot, content, variable)
    place = ContentPlace(here.place, str(slot), kind="slot")
    pc = here.pc
    position = here.code.operands[pc].index(slot) if slot in here.code.operands[pc] else 0
    return here.view.in_slot(here.frame, slot, place, f"operand {position + 1}")


def _inputs(here: FrameAtStop) -> Children:
    """The values that the statement reads, in its blocks too."""
    slots = list(here.code.operands[here.pc])
    return _listed(here, [*slots, *sorted(here.code.reads(here.pc) - set(slots))])


def _outputs(here: FrameAtStop) -> Children:
    """The results of the last statement of this frame; at the frame's beginning its inputs.

    Before a statement without a kernel: its results, which can be set.
    """
    debugger = here.view.session.program.debugger
    if here.depth == len(debugger.control.stack) - 1 and debugger.awaited:
        return _awaited(here, debugger.awaited)
    if here.ended and here.depth == 0:
        return _listed(here, here.code.operands[-1])
    pc = here.pc if here.done else here.frame.pc - 1
    if pc < 0:
        inputs = enumerate(here.code.graph.inputs, 1)
        return _listed(here, [slot for slot, value in inputs if value.name])
    return _listed(here, [slot for slot in here.code.result_slots(pc) if here.code.names[slot]])


def _awaited(here: FrameAtStop, names: Sequence[str]) -> Children:
    """Results that the user provides, because their op has no kernel."""

    def make(name: str) -> Listed:
        title = _title(here, name)
        content = here.view.session.program.debugger.values.supplied(here.frame, here.code.slot_of[name])
        if content is UNSET:
            return here.view.variable(title, "not set: its op has no kernel", evaluate_name=spelled(name))
        return here.view.content(title, ContentPlace(here.place, name), content)

    return Children(len(names), lambda start, stop: map(make, names[start:stop]))


def _values(here: FrameAtStop) -> Children:
    """The values of this frame: computed ones, the newest first, then given ones, then future ones."""
    slots = here.slots
    written = len(slots.written) if here.ended else slots.before(here.frame.pc)
    given = written + len(slots.given)

    def make(start: int, stop: int) -> Iterator[Listed]:
        for index in range(start, stop):
            if index < written:
                yield _value(here, slots.written[written - 1 - index])
            elif index < given:
                yield _value(here, slots.given[index - written])
            else:
                yield _to_come(here, slots.written[index - len(slots.given)])

    return Children(len(slots.written) + len(slots.given), make)


def _to_come(here: FrameAtStop, slot: int) -> Listed:
    """A value that a later statement of the frame computes."""
    encoded = here.encoded.again(slot, UNSET)
    if encoded is not None:
        return encoded
    name = here.code.names[slot]
    declared = here.code.types.get(name)
    kind = None if declared is None else str(declared)
    return here.encoded.keep(slot, UNSET, here.view.variable(_title(here, name), "<not computed>", type=kind))


def _parameters(here: FrameAtStop) -> Children:
    return _listed(here, here.slots.constants)


def _loop(here: FrameAtStop) -> Children:
    """The state of the loop: its iteration, the carried values, the number of collected ones."""
    frame, view = here.frame, here.view
    facts = [("iteration", str(frame.iteration), "$iter")]
    if frame.times is not None:
        facts.append(("times", str(frame.times), ""))
    facts += [(f"collect[{n}]", f"{len(items)} values so far", "") for n, items in enumerate(frame.collected)]
    makers: list[Callable[[], Listed]] = [
        lambda fact=fact: view.variable(fact[0], fact[1], evaluate_name=fact[2] or None)  # type: ignore[misc]
        for fact in facts
    ]
    carried = [slot for slot, value in enumerate(here.code.graph.inputs[1:], 2) if value.name]
    makers[1:1] = [lambda slot=slot: _value(here, slot) for slot in carried]  # type: ignore[misc]
    return Children(len(makers), lambda start, stop: (make() for make in makers[start:stop]))


def _has_states(here: FrameAtStop) -> bool:
    return bool(here.view.session.program.debugger.program.states)


def _states(here: FrameAtStop) -> Children:
    """The states of the program, in the order of the text."""
    names = [state.value.name for state in here.view.session.program.debugger.program.states]
    return Children(len(names), lambda start, stop: (_present(here, name) for name in names[start:stop]))


def _present(here: FrameAtStop, name: str) -> Listed:
    """A state at this moment, which is the same in each frame."""
    title = _title(here, name)
    try:
        content = here.view.session.program.debugger.values_at(here.depth).content(name)
    except NotComputed:
        declared = str(here.code.types.get(name) or "")
        return here.view.variable(title, "<not computed>", type=declared or None)
    return here.view.content(title, ContentPlace(here.place, spelled(name), kind="expression"), content)


# -- memory --------------------------------------------------------------------------------------


def _memory(here: FrameAtStop) -> Children:
    debugger, view = here.view.session.program.debugger, here.view
    timeline = debugger.timeline
    timeline.checkpoints.recount()
    facts = [
        ("allocator", debugger.loaded.allocation.name),
        ("backend", debugger.backend.name),
        ("live", f"{timeline.checkpoints.live_bytes()} bytes in buffers"),
        ("budget", f"{timeline.checkpoints.budget} bytes for old values"),
        (
            "undo",
            f"{timeline.undoable} of {timeline.tick} statements without a replay",
        ),
    ]
    buffers = _buffers(here)

    def make(start: int, stop: int) -> Iterator[protocol.Variable]:
        for index in range(start, stop):
            if index < len(facts):
                yield view.variable(*facts[index])
            else:
                opens = (buffers.named, 0)
                place = ScopePlace(here.place, BUFFERS)
                yield view.variable(BUFFERS, f"of {buffers.named} values", place=place, opens=opens)

    return Children(len(facts) + 1, make)


def _buffers(here: FrameAtStop) -> Children:
    slots = here.slots
    written = len(slots.written) if here.ended else slots.before(here.frame.pc)
    cells = Cells(here.view.session.program.debugger)

    def make(start: int, stop: int) -> Iterator[protocol.Variable]:
        for slot in (*reversed(slots.written[:written]), *slots.given, *slots.constants)[start:stop]:
            words = buffer_text(buffer_of(cells, here.code, slot, here.frame.slots[slot]))
            yield here.view.variable(_title(here, here.code.names[slot]), words)

    return Children(written + len(slots.given) + len(slots.constants), make)


SCOPES = {
    "States": ScopeKind(_states, expensive=True, fits=_has_states),
    "Inputs": ScopeKind(_inputs, "arguments"),
    "Outputs": ScopeKind(_outputs, "returnValue"),
    "Values": ScopeKind(_values, "locals"),
    "Loop": ScopeKind(_loop, fits=lambda here: here.frame.is_loop),
    "Parameters": ScopeKind(_parameters, expensive=True, fits=lambda here: bool(here.code.graph.constants)),
    "Memory": ScopeKind(_memory, "registers", expensive=True),
}
"""By displayed name, in display order.

Editors expand the first scope that is not expensive.  So the states are one row, above the expanded values of
the statement.
"""
