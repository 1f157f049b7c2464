"""Children of a variable: a tensor along its first axis, a sequence item by item, a map by its keys.

Named children come first, then the elements.  Those of a tensor are `shape`, `dtype`, `statistics` and, for a
value carried by a loop, `prev`; a slice has statistics only, unless it shows its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.dap_server import protocol
from nncdbg.dap_server.sources.addresses import definition_reference, model_reference
from nncdbg.dap_server.variables.places import (
    NOTHING,
    Container,
    ContentPlace,
    DeferredPlace,
    StatisticsPlace,
    content_at,
    evaluate_name,
    frame_of,
    memory_reference,
)
from nncdbg.dap_server.variables.value_text import (
    GLANCE,
    UNKNOWN,
    Glance,
    is_tensor,
    statistics_text,
    type_text,
)
from nncdbg.errors import NotComputed
from nncdbg.expression import spelled
from nncdbg.ir.records import Map
from nncdbg.presentation.elements import SMALL, count_of, is_text

if TYPE_CHECKING:
    import msgspec

    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import Place, ValueState

Listed: TypeAlias = "protocol.Variable | msgspec.Raw"
"""A variable, or one as it was sent before."""

Make: TypeAlias = "Callable[[int, int], Iterator[Listed]]"

READ_ONLY = protocol.VariablePresentationHint(kind="virtual", attributes=["readOnly"])
LAZY = protocol.VariablePresentationHint(kind="virtual", attributes=["readOnly"], lazy=True)


def _none(start: int, stop: int) -> Iterator[protocol.Variable]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Children:
    """The number of children of each kind, and functions that make those from `start` to `stop`."""

    named: int = 0
    make_named: Make = _none
    indexed: int = 0
    make_indexed: Make = _none


@dataclass(slots=True)
class View:
    """Makes the variables of one answer."""

    session: Session
    format: protocol.ValueFormat | None = None
    glance: Glance = field(init=False)
    typed: bool = field(init=False)
    """Whether the client shows types."""
    addressed: bool = field(init=False)
    """Whether the client supports memory references."""

    def __post_init__(self) -> None:
        base16 = self.format is not None and bool(self.format.hex)
        client = self.session.client.arguments
        self.typed = bool(client.supports_variable_type)
        self.addressed = bool(client.supports_memory_references)
        self.glance = Glance(self.session.program.shown, base16, self.session.queue.check_cancelled)

    # -- variables -----------------------------------------------------------------------------

    def variable(
        self,
        name: str,
        value: str,
        *,
        type: str | None = None,
        place: Container | None = None,
        opens: tuple[int, int] = (0, 0),
        evaluate_name: str | None = None,
        hint: protocol.VariablePresentationHint | None = READ_ONLY,
        memory: str | None = None,
        defined: tuple[int | None, int | None] = (None, None),
    ) -> protocol.Variable:
        """Make a variable; `opens` is the number of named and indexed children of `place`."""
        named, indexed = opens
        number = self.session.handles.number(place) if place is not None and (named or indexed) else 0
        return protocol.Variable(
            name=name,
            value=value,
            type=type if self.typed else None,
            presentation_hint=hint,
            evaluate_name=evaluate_name,
            variables_reference=number,
            named_variables=named or None,
            indexed_variables=indexed or None,
            memory_reference=memory,
            declaration_location_reference=defined[0],
            value_location_reference=defined[1],
        )

    def state(self, state: ValueState, place: ContentPlace, name: str, block: Place) -> protocol.Variable:
        """A value of a frame, which runs `block`."""
        if state.status == "dropped":
            declared = state.type
            type_prefix = f"{declared} " if declared is not None else ""
            return self.variable(
                name,
                f"{type_prefix}was evicted to stay within the history budget: open it to recompute it",
                type=str(declared) if declared is not None else None,
                place=DeferredPlace(place),
                opens=(1, 0),
                evaluate_name=evaluate_name(place),
                hint=LAZY,
            )
        if state.status == "gone":
            kind = type_text(state.content)
            return self.variable(name, f"{kind} {state.reason}", type=kind)
        return self.content(name, place, state.content, (block, state.name))

    def content(
        self, name: str, place: ContentPlace, content: Any, origin: tuple[Place, str] | None = None
    ) -> protocol.Variable:
        """The value at a place; `origin` is its block and its name, if it is a whole value with a name."""
        return self.variable(
            name,
            self.glance.text(content),
            type=type_text(content),
            place=place,
            opens=self.opens(place, content),
            evaluate_name=evaluate_name(place),
            hint=protocol.VariablePresentationHint(kind="data"),
            memory=self._memory(place, content),
            defined=self._defined(*origin) if origin is not None and origin[1] else (None, None),
        )

    def _defined(self, block: Place, name: str) -> tuple[int, int | None]:
        """For `locations`: the line that defines a value, and the one in the user's model."""
        return definition_reference(self.session, block, name), model_reference(self.session, block, name)

    def _memory(self, place: ContentPlace, content: Any) -> str | None:
        if place.index or place.kind != "value" or not self.addressed:
            return None
        return memory_reference(self.session, self.session.handles.number(place.frame), place.text, content)

    # -- children --------------------------------------------------------------------------------

    def opens(self, place: ContentPlace, content: Any) -> tuple[int, int]:
        """The number of named and indexed children of a value."""
        if isinstance(content, list):
            return 0, len(content.items if isinstance(content, Map) else content)
        if not is_tensor(content):
            return 0, 0
        return len(self._named(place, content)), content.shape[0] if content.shape else 0

    def _named(self, place: ContentPlace, content: Any) -> list[str]:
        """The names of a tensor's named children."""
        found = [] if place.index or not content.shape else ["shape", "dtype"]
        if (
            content.shape
            and not is_text(content)
            and count_of(content)
            and (not place.index or count_of(content) > SMALL)
        ):
            found.append("statistics")
        if self._has_previous(place):
            found.append("prev")
        return found

    def _has_previous(self, place: ContentPlace) -> bool:
        """Return whether it is carried by a loop that is in its second iteration or a later one."""
        if place.kind != "value" or place.index:
            return False
        frame = frame_of(self.session, place.frame)
        return frame is not None and frame.iteration > 0 and place.text in frame.inputs

    def children(self, place: ContentPlace) -> Children:
        """The children of a value; none if it is gone."""
        content = content_at(self.session, place)
        if isinstance(content, Map):
            return Children(
                indexed=len(content.items),
                make_indexed=lambda start, stop: self._entries(content, start, stop),
            )
        if isinstance(content, list):
            return Children(
                indexed=len(content),
                make_indexed=lambda start, stop: self._items(place, content, start, stop),
            )
        if not is_tensor(content):
            return Children()
        names = self._named(place, content)
        return Children(
            len(names),
            lambda start, stop: (self._child(place, content, name) for name in names[start:stop]),
            content.shape[0] if content.shape else 0,
            lambda start, stop: self._slices(place, content, start, stop),
        )

    def _items(self, place: ContentPlace, content: Any, start: int, stop: int) -> Iterator[protocol.Variable]:
        for index, item in enumerate(content[start:stop], start):
            inner = replace(place, index=(*place.index, index), sequence=True)
            yield self.content(f"[{index}]", inner, item)

    def _entries(self, content: Map, start: int, stop: int) -> Iterator[protocol.Variable]:
        """The entries of a map, named by their keys."""
        keys, values = (self.glance.host(each[start:stop]) for each in content)
        for key, value in zip(keys, values, strict=True):
            yield self.variable(str(key), self.glance.element(value), type=content.type.value)

    def _slices(
        self, place: ContentPlace, content: Any, start: int, stop: int
    ) -> Iterator[protocol.Variable]:
        part = content[start:stop]
        if count_of(part) <= GLANCE:
            # One transfer for all of them if the tensor is on a device.
            part = self.glance.host(part)
        element_type = type_text(content).partition("[")[0]
        if content.ndim > 1:
            for index, inner in enumerate(part, start):
                yield self.content(f"[{index}]", replace(place, index=(*place.index, index)), inner)
            return
        path = evaluate_name(replace(place, index=(*place.index, 0)))
        stem = path.removesuffix("0]") if path is not None else None
        for index, element in enumerate(part, start):
            yield self.variable(
                f"[{index}]",
                self.glance.element(element),
                type=element_type,
                evaluate_name=f"{stem}{index}]" if stem is not None else None,
                hint=None,
            )

    def _child(self, place: ContentPlace, content: Any, name: str) -> protocol.Variable:
        whole = evaluate_name(place)
        path = f"{whole}.{name}" if whole is not None else None
        if name == "shape":
            return self.variable(name, str(list(content.shape)), evaluate_name=path)
        if name == "dtype":
            return self.variable(name, type_text(content).partition("[")[0], evaluate_name=path)
        if name == "statistics":
            return self.statistics(place, content, self.glance.summary(content))
        return self._previous(replace(place, kind="previous"))

    def _previous(self, place: ContentPlace) -> protocol.Variable:
        try:
            content = content_at(self.session, place)
        except NotComputed as error:
            return self.variable("prev", error.message)
        return self.content("prev", place, content)

    def statistics(self, place: ContentPlace, content: Any, summary: Any) -> protocol.Variable:
        """The statistics of a tensor; if `summary` is None, computed when they are expanded."""
        of = StatisticsPlace(place)
        if summary is None:
            return self.variable("statistics", UNKNOWN, place=DeferredPlace(of), opens=(1, 0), hint=LAZY)
        whole = evaluate_name(place)
        return self.variable(
            "statistics",
            statistics_text(content, summary),
            place=of,
            opens=(10, 0),
            evaluate_name=f"stats({whole})" if whole is not None else None,
        )

    # -- values on request -------------------------------------------------------------------------

    def deferred_value(self, place: DeferredPlace) -> Children:
        """The one child with the value that was not computed; none, if it is gone."""
        of = place.of if isinstance(place.of, ContentPlace) else place.of.of
        try:
            content = content_at(self.session, of)
        except NotComputed as error:
            found = self.variable(_title(of), error.message)
        else:
            if content is NOTHING:
                return Children()
            if isinstance(place.of, ContentPlace):
                found = self.content(_title(of), of, content)
            else:
                found = self.statistics(of, content, self.glance.full_summary(content))
        return Children(1, lambda start, stop: iter([found][start:stop]))

    def numbers(self, place: StatisticsPlace) -> Children:
        """The ten numbers of a tensor."""
        content = content_at(self.session, place.of)
        if not is_tensor(content):
            return Children()
        whole = evaluate_name(place.of)
        numbers = list(self.glance.full_summary(content).as_dict().items())
        found = [
            self.variable(
                name,
                "none" if number is None else str(number) if isinstance(number, int) else f"{number:.9g}",
                evaluate_name=f"stats({whole}).{name}" if whole is not None else None,
            )
            for name, number in numbers
        ]
        return Children(len(found), lambda start, stop: iter(found[start:stop]))


def _title(place: ContentPlace) -> str:
    """The name of the variable at a place."""
    if place.index:
        return f"[{place.index[-1]}]"
    return spelled(place.text) if place.kind == "value" else place.text
