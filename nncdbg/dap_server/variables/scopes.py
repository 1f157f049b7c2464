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
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nncdbg.dap_server import protocol
from nncdbg.dap_server.sources.calls import call_at
from nncdbg.dap_server.variables.children import Children, View
from nncdbg.dap_server.variables.places import (
    NAMES,
    ContentPlace,
    FramePlace,
    HoverPlace,
    ScopePlace,
    frame_at,
    frame_of,
    number_in,
    place_of,
    statement_of,
)
from nncdbg.dap_server.variables.value_text import UNKNOWN, is_tensor
from nncdbg.errors import ExpressionError, NotComputed
from nncdbg.expression import spelled
from nncdbg.expression.functions import Budget, BudgetExceeded, DerivativeRequest
from nncdbg.expression.nodes import Name
from nncdbg.expression.operators import OperandError
from nncdbg.presentation.buffers import buffer_text
from nncdbg.stats import summarize

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.variables.children import Listed
    from nncdbg.ir.records import Program
    from nncdbg.target.records import Frame, ValueState
    from nncdbg.target.target import Group, Scope, Target
    from nncdbg.text.short_names import ProgramNames


@dataclass(frozen=True, slots=True)
class EncodedValue:
    """How a value was shown: `encoded` as it was sent, with the `numbers` of the places in it.

    `stamp` holds everything besides array and number that affects its text.
    """

    content: Callable[[], Any]
    stamp: tuple[bool, ...]
    encoded: msgspec.Raw
    numbers: tuple[int, ...]


NOT_COMPUTED: Any = object()
"""Stands for the content of a value that is not computed."""


class EncodedVariables:
    """The variables sent for one frame, as one view shows it."""

    def __init__(self, view: View, place: FramePlace, frame: Frame) -> None:
        self._known = view.glance.shown.encoded.setdefault(place, {})
        self._stamp = view.glance.hex, view.typed, view.addressed, frame.iteration > 0
        self._handles = view.session.handles
        self._keeps = view.glance.shown.keeps_content

    def again(self, number: int, content: Any) -> msgspec.Raw | None:
        """The encoded variable of the array of a value, if it was sent and is still valid."""
        known = self._known.get(number)
        if known is None or known.content() is not content or known.stamp != self._stamp:
            return None
        return known.encoded if self._handles.refresh(known.numbers) else None

    def keep(self, number: int, content: Any, variable: protocol.Variable) -> Listed:
        """Store how an array is shown, as long as it is live, or that a value is NOT_COMPUTED.

        Variables with pending statistics are not stored.
        """
        if content is NOT_COMPUTED:
            encoded = msgspec.Raw(msgspec.json.encode(variable))
            self._known[number] = EncodedValue(lambda: NOT_COMPUTED, self._stamp, encoded, ())
            return encoded
        keeps = self._keeps and is_tensor(content) and not isinstance(content, np.generic)
        if keeps and not variable.value.endswith(UNKNOWN):
            gone = partial(self._known.pop, number)
            encoded = msgspec.Raw(msgspec.json.encode(variable))
            self._known[number] = EncodedValue(
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
    session: Session, scope: Scope, text: str, shown: protocol.Variable
) -> protocol.Variable:
    """Return the hover over a value with the child `gradient of %l = norm 0.3 min -0.1 max 0.2`.

    Without a gradient (see `loss_gradient`), return the hover unchanged.
    """
    target = session.program.target
    gradient = loss_gradient(target.program, scope, text)
    frame = frame_at(target, scope.depth)
    if gradient is None or frame is None:
        return shown
    at = ContentPlace(place_of(frame), gradient.expression, kind="expression")
    opens = (0, 0) if gradient.array is None else View(session).opens(at, gradient.array)
    of = session.handles.place(shown.variables_reference)
    place = HoverPlace(of, at, spelled(gradient.loss), gradient.text, opens)
    return msgspec.structs.replace(
        shown,
        variables_reference=session.handles.number(place),
        named_variables=(shown.named_variables or 0) + 1,
    )


def loss_gradient(program: Program, scope: Scope, text: str) -> LossGradient | None:
    """Return the gradient of the loss with respect to the value named `text`.

    None for an expression that is not a name, and for a value on which no computed loss depends.  If the
    gradient needs more than `BUDGET`, the text gives the reason.  The run does not change.
    """
    root = scope.read(text).root
    loss = scope.loss(program) if isinstance(root, Name) else None
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
    """The inspected frame: the statement `pc`, which has run (`done`) or is next."""

    view: View
    place: FramePlace
    frame: Frame
    pc: int
    done: bool
    encoded: EncodedVariables

    @property
    def target(self) -> Target:
        return self.view.session.program.target

    @property
    def names(self) -> ProgramNames:
        return self.target.names(self.frame.number)

    def cells(self, group: Group, pc: int | None = None) -> Sequence[int]:
        """The numbers of values of the frame."""
        return self.target.cells(group, self.frame.number, pc)


@dataclass(frozen=True, slots=True)
class ScopeKind:
    """`hint` is the protocol's presentation hint; `fits` returns whether a frame has this scope."""

    children: Callable[[FrameAtStop], Children]
    hint: str | None = None
    expensive: bool = False
    fits: Callable[[FrameAtStop], bool] = lambda here: True


def here(view: View, place: FramePlace) -> FrameAtStop | None:
    """The frame at a place; None if it is gone."""
    frame = frame_of(view.session, place)
    if frame is None:
        return None
    encoded = EncodedVariables(view, place, frame)
    return FrameAtStop(view, place, frame, *statement_of(view.session, frame), encoded)


def scope_children(view: View, place: ScopePlace) -> Children:
    """The content of a scope; empty if its frame is gone, or does not have it any more."""
    found = here(view, place.frame)
    if found is None:
        return Children()
    if place.scope == BUFFERS:
        return _buffers(found)
    if place.scope == NAMES:
        return names_of_call(found, place.call)
    kind = SCOPES.get(place.scope)
    return kind.children(found) if kind is not None and kind.fits(found) else Children()


# -- names of the user's source ------------------------------------------------------------------


def names_of_call(here: FrameAtStop, number: int) -> Children:
    """The names of a call of the user's source, with the tensors that they hold."""
    call = call_at(here.view.session, number)
    if call is None:
        return Children()
    names = [*call.names.items()]

    def make(start: int, stop: int) -> Iterator[Listed]:
        for name, value in names[start:stop]:
            place = ContentPlace(here.place, spelled(value), kind="expression")
            try:
                content = here.target.scope(here.frame.number).content(value)
            except NotComputed as error:
                yield here.view.variable(name, error.message, evaluate_name=name)
            else:
                yield here.view.content(name, place, content)

    return Children(len(names), make)


# -- values by their numbers ---------------------------------------------------------------------


def _listed(here: FrameAtStop, numbers: Sequence[int]) -> Children:
    """The computed values with these numbers, each once."""
    target, frame = here.target, here.frame.number
    states = (target.state(number, frame) for number in dict.fromkeys(numbers) if number)
    shown = [state.number for state in states if state.status not in ("waiting", "awaited")]
    return _children(here, shown)


def _children(here: FrameAtStop, numbers: Sequence[int]) -> Children:
    return Children(len(numbers), lambda start, stop: _values_of(here, numbers[start:stop]))


def _values_of(here: FrameAtStop, numbers: Sequence[int]) -> Iterator[Listed]:
    """The values with these numbers: as they were sent, while they would be shown the same."""
    names, contents = here.names, here.target.contents(numbers, here.frame.number)
    for number, content in zip(numbers, contents, strict=True):
        encoded = here.encoded.again(number, content)
        yield _value(here, number, names) if encoded is None else encoded


def _value(here: FrameAtStop, number: int, names: ProgramNames) -> Listed:
    state = here.target.state(number, here.frame.number)
    if not state.present:
        return _present(here, state.name)
    if state.name:
        place = ContentPlace(here.place, state.name)
        variable = here.view.state(state, place, names.spelled(state.name), here.frame.place)
        return here.encoded.keep(number, state.content, variable)
    operands = [*here.cells("operands", here.pc)]
    position = operands.index(number) if number in operands else 0
    place = ContentPlace(here.place, str(number), kind="slot")
    return here.view.state(state, place, f"operand {position + 1}", here.frame.place)


def _inputs(here: FrameAtStop) -> Children:
    """The values that the statement reads, in its blocks too."""
    return _listed(here, here.cells("read", here.pc))


def _outputs(here: FrameAtStop) -> Children:
    """The results of the last statement of this frame; at the frame's beginning its inputs.

    Before a statement without a kernel: its results, which can be set.
    """
    ended = here.target.now.ended
    if ended and here.frame.depth == 0:
        return _listed(here, here.cells("returned"))
    if here.frame.number == 0 and not ended:
        results = (here.target.state(number, 0) for number in here.cells("results"))
        awaited = [state for state in results if state.status in ("awaited", "computed")]
        if awaited:
            return Children(len(awaited), lambda start, stop: _awaited(here, awaited[start:stop]))
    pc = here.pc if here.done else here.frame.place.pc - 1
    return _listed(here, here.cells("inputs") if pc < 0 else here.cells("results", pc))


def _awaited(here: FrameAtStop, states: Sequence[ValueState]) -> Iterator[Listed]:
    """Results that the user provides, because their op has no kernel."""
    names = here.names
    for state in states:
        title = names.spelled(state.name)
        if state.status == "awaited":
            text = "not set: its op has no kernel"
            yield here.view.variable(title, text, evaluate_name=spelled(state.name))
        else:
            yield here.view.content(title, ContentPlace(here.place, state.name), state.content)


def _values(here: FrameAtStop) -> Children:
    """The values of this frame: computed ones, the newest first, then given ones, then future ones."""
    computed, given, to_come = here.cells("computed"), here.cells("given"), here.cells("waiting")
    done = len(computed) + len(given)

    def make(start: int, stop: int) -> Iterator[Listed]:
        yield from _values_of(here, _newest_first(computed, given, start, stop))
        yield from _to_come(here, to_come[max(start - done, 0) : max(stop - done, 0)])

    return Children(done + len(to_come), make)


def _newest_first(computed: Sequence[int], given: Sequence[int], start: int, stop: int) -> list[int]:
    """The numbers from `start` to `stop` of the computed values in reverse, and then the given ones."""
    count = len(computed)
    newest = computed[max(count - stop, 0) : max(count - start, 0)]
    return [*reversed(newest), *given[max(start - count, 0) : max(stop - count, 0)]]


def _to_come(here: FrameAtStop, numbers: Sequence[int]) -> Iterator[Listed]:
    """Values that later statements of the frame compute."""
    names = here.names
    for number in numbers:
        encoded = here.encoded.again(number, NOT_COMPUTED)
        if encoded is None:
            state = here.target.state(number, here.frame.number)
            kind = None if state.type is None else str(state.type)
            variable = here.view.variable(names.spelled(state.name), "<not computed>", type=kind)
            yield here.encoded.keep(number, NOT_COMPUTED, variable)
        else:
            yield encoded


def _parameters(here: FrameAtStop) -> Children:
    return _children(here, here.cells("constants"))


def _loop(here: FrameAtStop) -> Children:
    """The state of the loop: its iteration, the carried values, the number of collected ones."""
    frame, view = here.frame, here.view
    times = [] if frame.times is None else [("times", str(frame.times))]
    facts = [
        *times,
        *((f"collect[{n}]", f"{len(items)} values so far") for n, items in enumerate(frame.collected)),
    ]
    carried = here.cells("carried")

    def rows() -> Iterator[Listed]:
        yield view.variable("iteration", str(frame.iteration), evaluate_name="$iter")
        yield from _values_of(here, carried)
        yield from (view.variable(*fact) for fact in facts)

    return Children(1 + len(carried) + len(facts), lambda start, stop: islice(rows(), start, stop))


def _has_states(here: FrameAtStop) -> bool:
    return bool(here.target.program.states)


def _states(here: FrameAtStop) -> Children:
    """The states of the program, in the order of the text."""
    names = [state.value.name for state in here.target.program.states]
    return Children(len(names), lambda start, stop: (_present(here, name) for name in names[start:stop]))


def _present(here: FrameAtStop, name: str) -> Listed:
    """A state at this moment, which is the same in each frame."""
    title = here.names.spelled(name)
    try:
        content = here.target.scope(here.frame.number).content(name)
    except NotComputed:
        declared = str(here.frame.types.get(name) or "")
        return here.view.variable(title, "<not computed>", type=declared or None)
    return here.view.content(title, ContentPlace(here.place, spelled(name), kind="expression"), content)


# -- memory --------------------------------------------------------------------------------------


def _memory(here: FrameAtStop) -> Children:
    view, buffers = here.view, _buffers(here)

    def rows() -> Iterator[protocol.Variable]:
        target = here.target
        memory, now = target.memory(), target.now
        yield view.variable("allocator", memory.allocator)
        yield view.variable("backend", target.setup.backend)
        yield view.variable("live", f"{memory.results} bytes in buffers")
        yield view.variable("budget", f"{memory.budget} bytes for old values")
        yield view.variable("undo", f"{now.undoable} of {now.tick} statements without a replay")
        place = ScopePlace(here.place, BUFFERS)
        yield view.variable(BUFFERS, f"of {buffers.named} values", place=place, opens=(buffers.named, 0))

    return Children(6, lambda start, stop: islice(rows(), start, stop))


def _buffers(here: FrameAtStop) -> Children:
    computed, given = here.cells("computed"), [*here.cells("given"), *here.cells("constants")]

    def make(start: int, stop: int) -> Iterator[protocol.Variable]:
        names = here.names
        for number in _newest_first(computed, given, start, stop):
            buffer = next(here.target.buffers(number, here.frame.number))
            yield here.view.variable(names.spelled(buffer.name), buffer_text(buffer))

    return Children(len(computed) + len(given), make)


SCOPES = {
    "States": ScopeKind(_states, expensive=True, fits=_has_states),
    "Inputs": ScopeKind(_inputs, "arguments"),
    "Outputs": ScopeKind(_outputs, "returnValue"),
    "Values": ScopeKind(_values, "locals"),
    "Loop": ScopeKind(_loop, fits=lambda here: here.frame.is_loop),
    "Parameters": ScopeKind(_parameters, expensive=True, fits=lambda here: bool(here.frame.graph.constants)),
    "Memory": ScopeKind(_memory, "registers", expensive=True),
}
"""By displayed name, in display order.

Editors expand the first scope that is not expensive.  So the states are one row, above the expanded values of
the statement.
"""
