"""Breakpoints: the requested place or event, and the traps at the statements for it and for other goals."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.errors import UsageError
from nncdbg.escaping import printable
from nncdbg.expression import Expression
from nncdbg.ir.records import Node, Path
from nncdbg.ir.source_trace import SourceFunction
from nncdbg.text.listing import Listing
from nncdbg.text.places import place_text
from nncdbg.text.torch_names import stop_names

if TYPE_CHECKING:
    from nncdbg.engine.stopping.placement import SourceNames

Hits = Callable[[int], bool]

Place: TypeAlias = "tuple[Code | Path | Listing, int]"
"""One statement: by path in a block of the program, by code in a micro program, or by its line in every
micro program with the same listing."""


_SHOWN = 8
"""Maximum number of displayed elements of a result."""


@dataclass(slots=True)
class Changes:
    """The changes of the result of an expression: (tick, digest, text) each, oldest first."""

    entries: list[tuple[int, bytes, str]] = field(default_factory=list)

    def changed(self, tick: int, result: Any) -> bool:
        """Record the result at a tick; return whether it differs from the previous one.

        The first result is a change, unless it is false.
        """
        self.rewind(tick - 1)
        array = np.asarray(result)
        digest = blake2b(f"{array.dtype}{array.shape}".encode() + array.tobytes(), digest_size=16).digest()
        if self.entries and self.entries[-1][1] == digest:
            return False
        first = not self.entries
        self.entries.append((tick, digest, _text(array)))
        return not (first and array.dtype == np.bool_ and not array.any())

    def rewind(self, tick: int) -> None:
        """Forget the results after a tick."""
        while self.entries and self.entries[-1][0] > tick:
            self.entries.pop()

    def __str__(self) -> str:
        return " -> ".join(text for _, _, text in self.entries[-2:])


def _text(array: np.ndarray[Any, Any]) -> str:
    if array.size > _SHOWN:
        return f"{array.dtype.name}{list(array.shape)}"
    if array.dtype == np.bool_ and not array.ndim:
        return str(bool(array)).lower()
    return np.array2string(array, precision=6, separator=" ").replace("\n", "")


@dataclass(slots=True, eq=False)
class Breakpoint:
    """One stop condition.

    `kind` is line, source, op, graph, value, node, data, binding, watch, assert or site.

    `target` is the line number (as text), ``file:line`` of the user's model, or the name of an op, graph,
    value or node, or a pattern of these `names`; for a site, given by `place`, it is the displayed text.  A
    data breakpoint stops after a write of the value, a `binding` after a line of its `function` has bound
    the name `target` of the user's source.  `watch` and `assert` stop after a write of a value in
    their `expression`, if the expression changed or is false.  The others stop before the statement runs.
    If the condition or the log message reads a result of the statement itself (`reads` has all names,
    `reads_out` is for `$out`), both are evaluated after the statement.
    """

    number: int
    kind: str
    target: str
    condition: Expression | None = None
    hits: str | None = None
    log: str | None = None
    reads: frozenset[str] = frozenset()
    temporary: bool = False
    place: Place | None = None
    reads_out: bool = False
    expression: Expression | None = None
    """The expression of a `watch` or an `assert`."""
    names: frozenset[str] = frozenset()
    """The names that `target` stands for."""
    function: SourceFunction | None = None
    """The function of the user's source with the names that it watches."""
    changes: Changes = field(default_factory=Changes)
    """The results of a watched expression."""
    enabled: bool = True
    passes: array[int] = field(default_factory=lambda: array("q"))
    """The ticks of the hits: the place was reached with the condition true."""
    skipped: int = 0
    """The number of first hits that do not stop (`ignore`)."""
    lines: tuple[int, ...] = ()
    note: str = ""
    sites: list[tuple[Code, int, bool]] = field(default_factory=list)
    """(code, pc of the trap, True if the trap is after the breakpoint's statement)."""

    @property
    def after_writes(self) -> bool:
        """Return whether breakpoints of this kind stop after a write."""
        return self.kind in ("data", "binding", "watch", "assert")

    @property
    def written(self) -> frozenset[str]:
        """Return the names of the values with writes that this kind stops after."""
        return self.expression.names if self.expression is not None else self.names

    @property
    def count(self) -> int:
        """Return the number of hits so far."""
        return len(self.passes)

    def passed(self, tick: int) -> None:
        """Count a hit at `tick`, once."""
        if not self.passes or self.passes[-1] < tick:
            self.passes.append(tick)

    def rewind(self, tick: int) -> None:
        """Forget the hits after `tick`."""
        while self.passes and self.passes[-1] > tick:
            self.passes.pop()

    def due(self) -> bool:
        """Return whether the current hit, already counted, stops the program."""
        return self.count > self.skipped and (self.hits is None or hit_rule(self.hits)(self.count))

    def __repr__(self) -> str:
        state = "" if self.enabled else ", disabled"
        return printable(f"<Breakpoint {self.number}: {self}, reached {self.count} times{state}>")

    def __str__(self) -> str:
        where = place_text(self.kind, self.target)
        kind = {"data": "watch ", "binding": "watch ", "node": ""}.get(self.kind, f"{self.kind} ")
        parts = [f"{kind}{where}"]
        if self.function is not None:
            parts.append(f"in {self.function[1]}")
        if self.condition is not None:
            parts.append(f"if {self.condition.text}")
        if self.hits is not None:
            parts.append(f"hits {self.hits}")
        return " ".join(parts)


_HITS = re.compile(r"\s*(==|>=|>|<=|<|%)?\s*([0-9]{1,18})\s*\Z")


def hit_rule(text: str) -> Hits:
    """Parse a hit rule: `3` or `==3`, the third hit; `>=3`, `>3`, `<3`, `<=3`; `%3`, every third.

    Raises UsageError for anything else.
    """
    match = _HITS.match(text)
    if match is None:
        raise UsageError(
            f"hit count {text!r} is not a number of at most 18 digits",
            hint="write a number, optionally after an operator: == >= > <= < %",
        )
    sign, number = match[1] or "==", int(match[2])
    if sign == "%" and number == 0:
        raise UsageError("`%0` matches no hit", hint="write %1 or more")
    rules: dict[str, Hits] = {
        "==": lambda count: count == number,
        ">=": lambda count: count >= number,
        ">": lambda count: count > number,
        "<=": lambda count: count <= number,
        "<": lambda count: count < number,
        "%": lambda count: count % number == 0,
    }
    return rules[sign]


def matching(breakpoint: Breakpoint, code: Code) -> Iterable[tuple[int, bool]]:
    """Yield (pc of the trap, trap is after the statement) of a breakpoint at names in a block."""
    if code.formula is not None:
        return
    names = breakpoint.names
    if breakpoint.kind == "graph" and code.graph.name in names:
        yield 0, False
    for pc, node in enumerate(code.nodes):
        if breakpoint.kind in ("op", "node") and not names.isdisjoint(_names_of(breakpoint.kind, node)):
            after = reads_result(breakpoint, node)
            yield pc + after, after
        elif breakpoint.kind == "value" or breakpoint.after_writes:
            # Each statement once, even if it writes several of the values.
            everything = breakpoint.expression is not None and breakpoint.reads_out
            if any(value.name and (everything or value.name in breakpoint.written) for value in node.outputs):
                after = breakpoint.after_writes or reads_result(breakpoint, node)
                yield pc + after, after
    takes = breakpoint.kind == "value" or breakpoint.after_writes
    begun = [*code.graph.inputs]
    if breakpoint.kind == "value":
        begun += (constant.value for constant in code.graph.constants)
    if takes and any(value.name in breakpoint.written for value in begun):
        # A block's inputs, such as the carried values of a loop, are written as it begins.
        yield 0, True


def _names_of(kind: str, node: Node) -> Iterable[str]:
    if kind == "op":
        return stop_names(node.op)
    return (node.location.name,) if node.location is not None and node.location.name else ()


def reads_result(breakpoint: Breakpoint, node: Node) -> bool:
    """Return whether the condition or the log message reads a result of this statement."""
    if breakpoint.reads_out and node.outputs:
        return True
    return any(value.name in breakpoint.reads for value in node.outputs if value.name)


class Traps:
    """The breakpoints of one program, and the traps for them in `codes`: every block compiled so far.

    `names` are those of the user's source, which conditions may read.
    """

    def __init__(self, codes: Sequence[Code], names: SourceNames) -> None:
        self.codes = codes
        self.names = names
        self.breakpoints: dict[int, Breakpoint] = {}
        self._places: dict[tuple[Code, int], list[tuple[Breakpoint, bool]]] = {}
        self._destination: frozenset[tuple[Code, int]] = frozenset()
        self.heeded = True
        """False while breakpoints are ignored: only the goal, a failure, a pause or the end stops."""
        self._held = False

    def at(self, frame: Frame) -> Sequence[tuple[Breakpoint, bool]]:
        """Return the breakpoints with a trap at a frame's pc, and whether it is after their statement."""
        return self._places.get((frame.code, frame.pc), ())

    def remove(self, number: int) -> None:
        """Remove a breakpoint if it exists."""
        self.breakpoints.pop(number, None)
        self.rearm()

    def lead_to(self, places: Iterable[tuple[Code, int]]) -> None:
        """Set traps at the goal of a forward command, (block, pc) each, in place of the previous goal's."""
        destination = frozenset(places)
        if destination != self._destination:
            self._destination = destination
            self.rearm()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Delay changes of breakpoints in the body, and apply them together at its end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.rearm()

    @contextmanager
    def heeding(self, heed: bool) -> Iterator[None]:
        """Without `heed`, remove the traps of all breakpoints in the body."""
        if heed:
            yield
            return
        self.heeded = False
        self.rearm()
        try:
            yield
        finally:
            self.heeded = True
            self.rearm()

    def rearm(self) -> None:
        """Set the traps of all enabled breakpoints and of the goal of a forward command."""
        if self._held:
            return
        places: dict[tuple[Code, int], list[tuple[Breakpoint, bool]]] = {}
        for breakpoint in self.breakpoints.values():
            if breakpoint.enabled and self.heeded:
                for code, pc, after in breakpoint.sites:
                    places.setdefault((code, pc), []).append((breakpoint, after))
        self._places = places
        wanted: dict[Code, set[int]] = {}
        for code, pc in (*places, *self._destination):
            wanted.setdefault(code, set()).add(pc)
        for code in self.codes:
            traps = wanted.get(code, set())
            if traps != code.traps:
                code.traps = traps
                code.arm()
