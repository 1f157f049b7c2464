"""Follows what is not a number through a run: where it is born, who hands it on, where it ends.

The allocation or observer that inspects every result reports those with NaN or Inf, and misused
memory; a trail gets these reports.  As long as all is well it costs nothing.  From the first report
on each statement is followed (`wrap`), so that one that turns NaN into a number is seen too.

A tensor that is not a number is known by its identity.  One that nobody reported was bad when it came:
an input, a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.engine.catching import holds_any
from nncdbg.engine.code import Code, Statement
from nncdbg.engine.diagnosis.cause import Cause
from nncdbg.engine.diagnosis.entrance import bad_on_purpose, cause_of_constant, cause_of_input
from nncdbg.engine.diagnosis.register import MEMORY, NONE, Origins, Register
from nncdbg.engine.diagnosis.sightings import ENTRANCE, Seen, Sighting
from nncdbg.engine.events import Event, Popped
from nncdbg.engine.findings import Finding
from nncdbg.engine.integer_checks import holds_finite
from nncdbg.engine.linking import Binding, Execute
from nncdbg.engine.machine import Machine
from nncdbg.engine.memory.lifetimes import target_slots
from nncdbg.engine.ops.moving import SIZES
from nncdbg.engine.values import type_of
from nncdbg.stats import summarize
from nncdbg.stats.finiteness import is_finite

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.diagnosing import Diagnosis

Diagnose: TypeAlias = "Callable[[Finding, Sequence[Any]], Diagnosis | None]"
"""Why a birth happened, and where in the op's micro program; None if it is legal by definition (see
`Diagnosing`)."""

LEGAL: Origins = frozenset({-1})
"""The origin of an infinity that is there on purpose."""

KINDS = ("nan", "inf")


@dataclass(slots=True)
class Trail:
    """`machine` runs the program; `inputs` are its inputs by name, as they are in its slots.

    `blocks` gives all compiled blocks, `whole` tells whether somebody wrote all of a tensor.  `begin` has its
    argument called before the next statement, from which on all have to be followed; `quiet` says when
    nothing is to be noted, as the past is being computed again.
    """

    machine: Machine
    inputs: Mapping[str, Any]
    blocks: Sequence[Code]
    to_host: Callable[[Any], Any]
    whole: Callable[[Any], bool]
    diagnose: Diagnose
    begin: Callable[[Callable[[], None]], None]
    quiet: Callable[[], bool] = lambda: False
    sightings: list[Sighting] = field(default_factory=list)
    _bad: Register = field(default_factory=Register)
    _looked: Register = field(default_factory=Register)
    """Tensors that nobody reported and that were looked at."""
    _known: dict[tuple[Any, ...], Sighting] = field(default_factory=dict)
    _following: bool = False
    _unfollowed: list[tuple[Statement, Origins]] | None = field(default_factory=list)
    """Statements that read what nobody wrote before they were followed; None once they are."""

    def __post_init__(self) -> None:
        self.machine.listeners.append(self._hear)

    # -- what is reported ------------------------------------------------------------------------

    def found(self, finding: Finding) -> None:
        """A result holds NaN or Inf, or memory was misused."""
        if self.quiet() or finding.kind == "micro":
            return
        self._follow()
        if finding.kind in KINDS:
            self._not_a_number(finding)
        elif finding.kind == "integer":
            self._bad.mark(finding.result, MEMORY, self._integer_fault(finding))
        else:
            self._misused(finding)

    def _not_a_number(self, finding: Finding) -> None:
        kind, statement = finding.kind, finding.binding
        if self._bad.origins(finding.result, kind):
            return  # What nobody wrote is NaN too, and that is told already.
        origins = self._union(finding.inputs, kind, statement)
        if not origins:
            origins = self._birth(finding)
        elif origins != LEGAL:
            origins = frozenset({self._note("propagated", finding, origins).number})
        self._bad.mark(finding.result, kind, origins)

    def _integer_fault(self, finding: Finding) -> Origins:
        """Where the wrong integers of a result come from; NaN and Inf found before have their own origin."""
        origins = NONE.union(*(self._union(finding.inputs, kind, finding.binding) for kind in KINDS)) - LEGAL
        if not origins or holds_finite(finding.binding, [*map(self.to_host, finding.inputs)]):
            return self._birth(finding)
        diagnosed = self.diagnose(finding, self.machine.frames[-1].slots)
        self._note("propagated", finding, origins, cause=diagnosed[0] if diagnosed else None)
        return NONE

    def _misused(self, finding: Finding) -> None:
        cause = Cause(
            "uninitialized read" if finding.kind == "uninitialized" else finding.kind, finding.detail, ""
        )
        sighting = self._note("birth", finding, cause=cause, other=finding.other)
        origins = frozenset({sighting.number})
        if finding.result is not None:
            self._bad.mark(finding.result, MEMORY, origins)
            return
        if self._unfollowed is not None:
            self._unfollowed.append((finding.binding, origins))
        # It is about an operand: whatever is read of it from now on comes from there.
        for value in finding.inputs:
            if not self.whole(value) and not self._bad.origins(value, MEMORY):
                self._bad.mark(value, MEMORY, origins)

    def _birth(self, finding: Finding) -> Origins:
        kind, statement = finding.kind, finding.binding
        key = _key("birth", kind, statement, finding.output)
        known = self._known.get(key)
        if known is not None:
            known.count += 1
            return frozenset({known.number})
        diagnosed = self.diagnose(finding, self.machine.frames[-1].slots)
        if diagnosed is None:
            return LEGAL
        cause, within = diagnosed
        parents = self._union(finding.inputs, "inf", statement) if kind == "nan" else NONE
        sighting = self._note("birth", finding, parents, cause=cause, within=within)
        return frozenset({sighting.number})

    # -- what is followed ------------------------------------------------------------------------

    def _follow(self) -> None:
        if not self._following:
            self._following = True
            self.begin(self._catch_up)

    def _catch_up(self) -> None:
        """What a statement gave while it was not followed yet comes from what it read."""
        frame, unfollowed = self.machine.frames[-1], self._unfollowed or ()
        self._unfollowed = None
        for statement, origins in unfollowed:
            if statement.code is frame.code and statement.pc < frame.pc:
                for slot in target_slots(frame.code.targets[statement.pc]):
                    self._bad.mark(frame.slots[slot], MEMORY, origins)

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """An instruction after which is seen what became of bad operands."""
        if binding.node.op in SIZES:
            return execute

        def followed(*inputs: Any) -> Any:
            results = execute(*inputs)
            if self._bad and not self.quiet():
                self._after(binding, inputs, results if binding.several else (results,))
            return results

        return followed

    def _after(self, binding: Binding, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        spoilt = self._bad.union(inputs, MEMORY)
        if spoilt:
            for result in results:
                self._bad.mark(result, MEMORY, spoilt | self._bad.origins(result, MEMORY))
        bad = {kind: self._bad.union(inputs, kind) for kind in KINDS}
        if any(bad.values()):
            self._handed_on(binding, inputs, results)
        for kind, origins in bad.items():
            origins -= LEGAL
            if origins and not any(self._bad.union(results, each) for each in KINDS):
                self._note("healed", Finding(kind, binding, "", inputs, 0, result=results[0]), origins)

    def _handed_on(self, statement: Statement, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Results that nobody reports, as their statement only moves elements."""
        for index, result in enumerate(results):
            if result is None or isinstance(result, (list, tuple)) or self._bad.knows(result):
                continue
            host = self.to_host(result)
            for kind in KINDS if not is_finite(host) else ():
                if holds_any(host, kind):
                    self._not_a_number(Finding(kind, statement, "", inputs, index, result=result))

    def _hear(self, event: Event) -> None:
        """The values that a loop has collected are stacked when it is over."""
        if not self._bad or not isinstance(event, Popped) or not event.frame.collected:
            return
        loop, outer = event.frame, self.machine.frames[-1]
        carried = len(loop.code.graph.inputs) - 1
        targets = target_slots(outer.code.targets[outer.pc - 1])[carried:]
        latest = loop.code.operands[len(loop.code.nodes)][carried:]
        for slot, items, last in zip(targets, loop.collected, latest, strict=False):
            for kind in (*KINDS, MEMORY):
                self._bad.mark(outer.slots[slot], kind, self._bad.union([*items, loop.slots[last]], kind))

    # -- what is known of a tensor -----------------------------------------------------------------

    def _union(self, operands: Sequence[Any], kind: str, statement: Statement) -> Origins:
        """Where the trouble of a kind in some operands comes from; what came with it is looked at now."""
        found = [self._origins_of(value, kind, statement, index) for index, value in enumerate(operands)]
        return NONE.union(*found)

    def _origins_of(self, value: Any, kind: str, statement: Statement, index: int) -> Origins:
        if isinstance(value, (list, tuple)):
            return NONE.union(*(self._origins_of(item, kind, statement, index) for item in value))
        known = self._bad.origins(value, kind)
        if known or value is None:
            return known
        if not self._looked.origins(value, kind):
            for each in KINDS:
                self._looked.mark(value, each, LEGAL)
            self._look(value, statement, index)
        return self._bad.origins(value, kind)

    def _look(self, value: Any, statement: Statement, index: int) -> None:
        """A tensor that no statement was reported for: an input, a constant, or one of these moved."""
        host = self.to_host(value)
        for kind in KINDS if not is_finite(host) else ():
            if not self._bad.origins(value, kind) and holds_any(host, kind):
                made = self._moved(value, kind)
                self._bad.mark(value, kind, made or self._entrance(value, host, kind, statement, index))

    def _moved(self, value: Any, kind: str) -> Origins:
        """Where it comes from if a statement on the stack made it; that one only moves elements."""
        for frame in reversed(self.machine.frames):
            code = frame.code
            for slot, content in enumerate(frame.slots):
                pc = code.definition[slot] if content is value else -1
                if pc < 0 or code.instructions[pc][0] is None:
                    continue
                statement, operands = Statement(code, pc), code.instructions[pc][1](frame.slots)
                origins = self._union(operands, kind, statement)
                if origins and origins != LEGAL:
                    finding = Finding(kind, statement, "", operands, 0, result=value)
                    return frozenset({self._note("propagated", finding, origins).number})
                return origins
        return NONE

    def _entrance(self, value: Any, host: Any, kind: str, statement: Statement, index: int) -> Origins:
        given = next((name for name, array in self.inputs.items() if array is value), None)
        code, name = self._home(value) or (statement.code, _operand(statement, index))
        if kind == "inf" and bad_on_purpose(host):
            return LEGAL
        if given is not None:
            code, name = self.machine.frames[0].code, given
            cause = cause_of_input(given, host, kind)
        else:
            cause = cause_of_constant(name, host, kind)
        return frozenset({self._enter(Statement(code, ENTRANCE), name, kind, host, cause).number})

    def _home(self, value: Any) -> tuple[Code, str] | None:
        """The outermost block that has this constant, and its name there."""
        for code in self.blocks:
            for slot, each in enumerate(code.template):
                if each is value:
                    return code, code.names[slot]
        return None

    # -- noting ------------------------------------------------------------------------------------

    def _enter(self, statement: Statement, name: str, kind: str, host: Any, cause: Cause) -> Sighting:
        sighting = Sighting(
            len(self.sightings), kind, "propagated", statement, name, stats=_stats(host), cause=cause, tick=-1
        )
        self.sightings.append(sighting)
        return sighting

    def _note(self, role: str, finding: Finding, parents: Origins = NONE, **fields: Any) -> Sighting:
        """The sighting of a statement in a role, a new one or the one that tells of it already."""
        statement, output = finding.binding, finding.output
        key = _key(role, finding.kind, statement, output)
        known = self._known.get(key)
        if known is not None:
            known.count += 1
            known.parents |= parents - LEGAL
            return known
        code, pc = statement.code, statement.pc
        sighting = Sighting(
            len(self.sightings),
            finding.kind,
            role,
            statement,
            _value(finding),
            self._iteration(),
            operands=tuple(self._seen(code, pc, finding.inputs)),
            stats=_stats(self.to_host(finding.result)),
            tick=self.machine.tick,
            parents=parents - LEGAL,
            **fields,
        )
        self.sightings.append(sighting)
        self._known[key] = sighting
        return sighting

    def _iteration(self) -> tuple[int, ...]:
        return tuple(frame.iteration for frame in self.machine.frames if frame.is_loop)

    def _seen(self, code: Code, pc: int, inputs: Sequence[Any]) -> Iterable[Seen]:
        for slot, value in zip(code.operands[pc], inputs, strict=False):
            if value is not None:
                host = self.to_host(value)
                known = type_of(host)
                yield Seen(code.names[slot], str(known) if known is not None else None, _stats(host))

    # -- at the end --------------------------------------------------------------------------------

    def conclude(self, *, ended: bool) -> None:
        """Tell what reaches an output; where the program did not come to its end, all may."""
        if not ended:
            for sighting in self.sightings:
                sighting.reaches_output = True
            return
        frame = self.machine.frames[0]
        outputs = frame.code.instructions[-1][1](frame.slots)
        returned = Statement(frame.code, len(frame.code.nodes))
        found = [self._union(outputs, kind, returned) for kind in KINDS]
        waiting = NONE.union(*found, self._bad.union(outputs, MEMORY))
        reaching: set[int] = set()
        pending = list(waiting - LEGAL)
        while pending:
            number = pending.pop()
            if number not in reaching:
                reaching.add(number)
                pending.extend(self.sightings[number].parents)
        for sighting in self.sightings:
            sighting.reaches_output = sighting.number in reaching


def _key(role: str, kind: str, statement: Statement, output: int | None) -> tuple[Any, ...]:
    return role, kind, id(statement.code), statement.pc, output


def _operand(statement: Statement, index: int) -> str:
    slots = statement.code.operands[statement.pc]
    return statement.code.names[slots[index]] if index < len(slots) else ""


def _value(finding: Finding) -> str:
    """The name of the result concerned; of what another statement made, where it is about an operand."""
    statement, output = finding.binding, finding.output
    if output is None and finding.other is not None:
        statement, output = finding.other, 0
    code, pc = statement.code, statement.pc
    outputs = code.nodes[pc].outputs if pc < len(code.nodes) else ()
    return outputs[output].name if output is not None and output < len(outputs) else ""


def _stats(host: Any) -> Any:
    if isinstance(host, (np.ndarray, np.generic)) and not host.dtype.hasobject:
        return summarize(np.asarray(host))
    return None
