"""Trouble that grows before a NaN: measurements of every result while a program runs.

The statistics are those that the inspection of each result already logs.  Only activations are read
again, and only for `dead` and `saturated` (see `units`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.dtypes import FLOATS, NUMPY, largest, name_of
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.units import alive_units, cuts, saturated, unit_axis
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.ops.influence import Content
from nncdbg.errors import UsageError
from nncdbg.ir.records import Program, type_of
from nncdbg.ir.walk import blocks
from nncdbg.nan_watch.measuring.gates import Threshold
from nncdbg.nan_watch.measuring.tracks import Track
from nncdbg.nan_watch.records import Operand
from nncdbg.nan_watch.sites import site_of
from nncdbg.stats import summarize
from nncdbg.stats.inspection import row_of, summary_of
from nncdbg.stats.summary import Summary
from nncdbg.text.lexemes import name_text, nearest


class Level(NamedTuple):
    """The largest magnitude in a tensor, the smallest one on its path, and whether a constant caused it.

    The path follows the largest operand at each statement.  If a result is no larger than a constant among
    its operands, its magnitude comes from the constant: masks of -10000 or of the lowest number are
    intentional.
    """

    high: float
    base: float
    constant: bool


_ROUNDING = 1 + 2.0**-6
"""Largest ratio of a sum to its constant operand for which its magnitude comes from the constant."""


class Levels:
    """Levels of the live tensors, by identity; the tensors are referenced weakly.

    `high_of` returns the largest magnitude of a tensor that no statement computed.
    """

    def __init__(self, high_of: Callable[[Any], float | None]) -> None:
        self._high_of = high_of
        # NumPy scalars have no weak references: they are measured at each read.
        self._known: ByIdentity[Level] = ByIdentity(weak_only=True)

    def of(self, value: Any, constant: bool) -> Level | None:
        """Return the level of an operand; None if it has no finite number except 0."""
        known = self._known.get(value)
        if known is not None:
            return known
        high = self._high_of(value)
        if not high:
            return None
        level = Level(high, high, constant)
        self._known.set(value, level)
        return level

    def follow(self, result: Any, high: float, operands: Iterable[Level]) -> Level:
        """Return the level of a result with this largest magnitude and operands of these levels."""
        origin = origin_of(high, operands)
        if origin is None or not high:
            level = Level(high, high, False)
        else:
            level = Level(high, min(origin.base, high), origin.constant and high <= origin.high * _ROUNDING)
        self._known.set(result, level)
        return level


def origin_of(high: float, operands: Iterable[Level]) -> Level | None:
    """Return the operand that the largest magnitude of a result comes from."""
    known = list(operands)
    constants = [level for level in known if level.constant]
    meant = [level for level in constants if high <= level.high * _ROUNDING]
    others = [level for level in known if not level.constant]
    return max(meant or others or constants, key=lambda level: level.high, default=None)


_GIVEN = (Content.CONSTANT, Content.GENERATED)
"""Contents of results that no operand changes."""

_NARROW = frozenset(name for name in FLOATS if NUMPY[name].itemsize <= 2)

_RELATIVE = frozenset({"growth", "depth", "headroom"})
"""Measures that need the magnitude of the operands."""

_OF_ROW: dict[str, Callable[[Sequence[float]], float]] = {
    "zeros": lambda row: row[7] / row[9],
    "subnormals": lambda row: row[8] / row[9],
    "max": lambda row: row[1],
    "min": lambda row: row[0],
    "abs": lambda row: max(abs(row[0]), abs(row[1])),
    "span": lambda row: row[1] - row[0],
    "mean": lambda row: row[2],
    "std": lambda row: row[3],
}
"""Measures computed from a row of the log, whose columns are those of `Summary`."""

_WORDS = {"zeros": "the share of zeros", "subnormals": "the share of subnormals", "abs": "max |x|"}

_FEWEST = 16
"""Least number of elements for which a share of them is measured."""

_SHARES = frozenset({"zeros", "subnormals", "saturated"})


@dataclass(frozen=True, slots=True)
class _Spot:
    """A measured statement."""

    binding: Binding
    gates: tuple[Threshold, ...]
    constants: frozenset[int]
    """The indices of constant operands."""
    measured: bool
    """Whether the statement is measured, or only passes levels on."""


class GrowthMetrics:
    """Measures every float result of a debugger's run against gates; `tracks` holds the measurements.

    The debugger must be at its start, and made with `statistics=True`.  Without gates only the statistics are
    kept, for a recording.  Raises UsageError for a gate whose pattern matches nothing.
    """

    def __init__(self, debugger: Debugger, gates: Sequence[Threshold]) -> None:
        assert debugger.observers.log is not None
        check_patterns(debugger.program, gates)
        self._debugger = debugger
        self._log = debugger.observers.log
        self._to_host = debugger.backend.to_host
        self._gates = tuple(gates)
        self._levels = Levels(self._high_of)
        self._relative = any(gate.kind in _RELATIVE for gate in gates)
        self._tracks: dict[tuple[Code, int, int], Track] = {}
        debugger.observers.measure(self.wrap)

    @property
    def tracks(self) -> list[Track]:
        """The measurements, in execution order."""
        return list(self._tracks.values())

    # -- while it runs -----------------------------------------------------------------------------

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return an instruction that also measures its results."""
        content = binding.op.content
        if content in _GIVEN or (content is Content.MOVED and not self._relative):
            return execute
        spot = self._spot(binding)

        def measured(*inputs: Any) -> Any:
            results = execute(*inputs)
            if not self._debugger.timeline.replaying:
                for index, result in enumerate(results if binding.several else (results,)):
                    self._measure_result(spot, inputs, index, result)
            return results

        return measured

    def _spot(self, binding: Binding) -> _Spot:
        code, pc = binding.code, binding.pc
        place = binding.node.location
        node = place.name or "" if place is not None else ""
        names = [value.name for value in binding.node.outputs]
        chosen = [gate for gate in self._gates if gate.concerns(code.graph.name, node, *names)]
        constants = {
            index
            for index, slot in enumerate(code.operands[pc])
            if code.definition[slot] < 0 and isinstance(code.template[slot], np.ndarray)
        }
        return _Spot(binding, tuple(chosen), frozenset(constants), binding.op.content is not Content.MOVED)

    def _measure_result(self, spot: _Spot, inputs: Sequence[Any], index: int, result: Any) -> None:
        dtype = _float_name(result)
        if dtype is None or 0 in result.shape:
            return
        row = self.row(result)
        level = None
        if self._relative:
            high = 0.0 if math.isnan(row[0]) else max(abs(row[0]), abs(row[1]))
            level = self._levels.follow(result, high, self._operand_levels(spot, inputs))
        if not spot.measured:
            return
        summary = summary_of(row, dtype)
        track = self.track(spot.binding.code, spot.binding.pc, index, dtype)
        track.see(summary)
        for gate in spot.gates:
            measured = self._measure(gate, spot, inputs, result, row, level, track)
            if measured is not None and gate.exceeded(measured[0]):
                self.trip(track, gate, measured, spot.binding, summary, inputs)

    def trip(
        self,
        track: Track,
        gate: Threshold,
        measured: tuple[float, str],
        at: Statement,
        summary: Summary | None = None,
        inputs: Sequence[Any] = (),
    ) -> None:
        """Record that a gate tripped at a statement; the details of the first occurrence are kept."""
        actual, fact = measured
        if gate in track.trips:
            track.trip(gate, actual)
            return
        iteration = tuple(frame.iteration for frame in self._debugger.control.stack if frame.is_loop)
        operands = tuple(self._operands(at.code, at.pc, inputs))
        track.trip(gate, actual, fact=fact, iteration=iteration, inputs=operands, stats=summary)

    def track(self, code: Code, pc: int, index: int, dtype: str) -> Track:
        """Return the track of a statement's output."""
        key = (code, pc, index)
        found = self._tracks.get(key)
        if found is None:
            node = code.nodes[pc]
            site = site_of(code, pc, node.outputs[index].name, self._debugger)
            found = Track(graph_path(code), site, dtype, len(self._tracks))
            self._tracks[key] = found
        return found

    def row(self, value: Any) -> list[float]:
        """Return the logged statistics of a tensor; computed now if the log no longer has them."""
        found = self._log.row_of(value)
        return found if found is not None else row_of(summarize(np.asarray(self._to_host(value))))

    def _operands(self, code: Code, pc: int, inputs: Sequence[Any]) -> Iterable[Operand]:
        for slot, value in zip(code.operands[pc], inputs, strict=False):
            if value is None:
                continue
            dtype = _number_name(value)
            known = type_of(self._to_host(value))
            stats = summary_of(self.row(value), dtype) if dtype is not None else None
            yield Operand(code.names[slot], str(known) if known is not None else None, stats)

    # -- the quantities ----------------------------------------------------------------------------

    def _measure(
        self,
        gate: Threshold,
        spot: _Spot,
        inputs: Sequence[Any],
        result: Any,
        row: Sequence[float],
        level: Level | None,
        track: Track,
    ) -> tuple[float, str] | None:
        """Return the quantity that a gate limits, with its description; None if it does not apply."""
        kind, name = gate.kind, track.site.value
        if kind in _SHARES and math.prod(result.shape) < _FEWEST:
            return None
        if kind in _OF_ROW:
            actual = _OF_ROW[kind](row)
            return (
                None
                if math.isnan(actual)
                else (actual, f"{_WORDS.get(kind, kind)} of %{name_text(name)} is {gate.shown(actual)}")
            )
        if kind == "saturated":
            return self._saturated(spot, result, name)
        if kind == "dead":
            code = spot.binding.code
            # In the program's text, rather than in the graph of a gradient.
            written = code.path[0] in self._debugger.program.graphs
            if written and cuts(code, spot.binding.pc, spot.binding.op):
                self._see_units(spot, result, track)
            return None
        if level is None or not level.high:
            return None
        if kind == "headroom":
            return _headroom(name, track.dtype, level)
        if kind == "depth":
            actual = level.high / level.base
            return actual, (
                f"%{name_text(name)} reaches {level.high:.4g}, {actual:.4g} times the smallest maximum "
                f"on its path, {level.base:.4g}"
            )
        return self._growth(spot, inputs, name, level) if kind == "growth" else None

    def _saturated(self, spot: _Spot, result: Any, name: str) -> tuple[float, str] | None:
        op = spot.binding.op
        if op.bounds is None:
            return None
        ends, of = saturated(op, np.asarray(self._to_host(result)), spot.binding.attributes)
        what = "elements" if op.shares is None else "rows"
        return (ends / of, f"{ends} of {of} {what} of %{name_text(name)} are at their limits") if of else None

    def _see_units(self, spot: _Spot, result: Any, track: Track) -> None:
        if track.units is not None and (track.units.alive is None or track.units.alive.all()):
            return  # A unit that was nonzero once is not dead.
        host = np.asarray(self._to_host(result))
        if host.ndim:
            axis = unit_axis(spot.binding.code, spot.binding.pc, host.ndim)
            alive = alive_units(host, axis)
            track.see_units(alive, host.size // len(alive))

    def _growth(
        self, spot: _Spot, inputs: Sequence[Any], name: str, level: Level
    ) -> tuple[float, str] | None:
        origin = origin_of(level.high, self._operand_levels(spot, inputs))
        if origin is None:
            return None
        actual = level.high / origin.high
        words = (
            f"%{name_text(name)} reaches {level.high:.4g}, {actual:.4g} times the "
            f"{origin.high:.4g} of its operands"
        )
        return actual, words

    # -- levels ------------------------------------------------------------------------------------

    def _operand_levels(self, spot: _Spot, inputs: Sequence[Any]) -> Iterable[Level]:
        for index, value in enumerate(inputs):
            if _float_name(value) is not None:
                level = self._levels.of(value, index in spot.constants)
                if level is not None:
                    yield level

    def _high_of(self, value: Any) -> float | None:
        low, high = self.row(value)[:2]
        return None if math.isnan(low) else max(abs(low), abs(high))


def _headroom(name: str, dtype: str, level: Level) -> tuple[float, str] | None:
    """Return how often the largest value fits in `dtype`; None for large constants, which are intentional."""
    if dtype not in _NARROW or level.constant:
        return None
    most = largest(dtype)
    actual = most / level.high
    fact = (
        f"%{name_text(name)} reaches {level.high:.6g}, and the largest {dtype} is {most:.6g}: "
        f"{actual:.4g} times as much"
    )
    return actual, fact


def _float_name(value: Any) -> str | None:
    name = _number_name(value)
    return name if name in FLOATS else None


def _number_name(value: Any) -> str | None:
    """Return the element type of a tensor of numbers; None for other values."""
    dtype = getattr(value, "dtype", None)
    return None if dtype is None or getattr(dtype, "hasobject", False) else name_of(dtype)


def graph_path(code: Code) -> str:
    """Return the graphs around a statement, outermost first, such as `main/refine`."""
    names = []
    each: Code | None = code
    while each is not None:
        names.append(each.graph.name or ".".join(map(str, each.path[-2:])))
        each = each.parent
    return "/".join(reversed(names))


def check_patterns(program: Program, gates: Iterable[Threshold]) -> None:
    """Raise UsageError for a gate whose pattern matches no value of a program."""
    wanted = [gate for gate in gates if gate.pattern is not None]
    if not wanted:
        return
    names: set[str] = set()
    for _, graph in blocks(program):
        names.add(graph.name)
        for node in graph.nodes:
            names.update(value.name for value in node.outputs)
            if node.location is not None and node.location.name:
                names.add(node.location.name)
    for gate in wanted:
        if not any(gate.concerns(name) for name in names):
            hint = nearest(gate.pattern or "", names) or "use a pattern for value names, such as layer*"
            raise UsageError(f'the gate "{gate}" matches no value in this program', hint=hint)
