"""Inspection of results while a program runs: statistics, and findings that stop it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nncdbg.engine.backends import Backend
from nncdbg.engine.execution.findings import RACE, STATE_RESET, Report
from nncdbg.engine.execution.linking import Allocation, Instrument, Wrap
from nncdbg.engine.execution.loaded import Loaded
from nncdbg.engine.execution.statistics_log import StatisticsLog
from nncdbg.engine.memory import allocation
from nncdbg.engine.observers.catching import Catches
from nncdbg.engine.observers.nonfinite import KINDS
from nncdbg.engine.observers.observation import Observer
from nncdbg.engine.observers.statement_checks import (
    FAULTS,
    DeviceChecks,
    EntranceUses,
    HostReads,
    OperandChecks,
    OverflowChecks,
    Races,
    Remarks,
    StateResets,
)
from nncdbg.engine.ops.causes import RuleFailed
from nncdbg.errors import UsageError
from nncdbg.expression import Expression
from nncdbg.stats.inspection import Flag

GUARDS = Flag.GUARD_BEFORE | Flag.GUARD_AFTER

_FAULTS = {*FAULTS, "inf", "overflow"}
"""Kinds of findings that the checks of single ops report."""

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.nan_tracker import NanTracker
    from nncdbg.engine.observers.oracle import MicroCheck
    from nncdbg.engine.stopping.control import Control


class Instrumentation:
    """Inspects results in the allocation of a program, or in an observer that is linked in on demand.

    `report` is called with findings; with `statistics` the summary of every result is logged.
    """

    def __init__(self, loaded: Loaded, report: Report, statistics: bool) -> None:
        self.loaded = loaded
        self.linker = linker = loaded.linker
        self.report = report
        self.catches = Catches(to_host=linker.backend.to_host)
        self.trail: NanTracker | None = None
        self.log, self._observer = _statistics_on(linker.backend, report, statistics)
        self.failed_rules: dict[str, None] = {}
        """The failures of rules of ops: what these rules find was not checked."""
        self._operands = OperandChecks(report, linker.backend.to_host, self._rule_failed)
        self._overflows = OverflowChecks(report, linker.backend.to_host, self._rule_failed)
        self._entrances = EntranceUses(report, linker.backend.to_host)
        self.resets = StateResets(loaded.program, report, linker.backend.to_host)
        self.remarks = Remarks(self._rule_failed)
        self.races = Races(loaded.program, report)
        self._devices = DeviceChecks(linker.backend)
        self.micro: MicroCheck | None = None
        linker.allocation.connect(report, self.log)
        linker.instrument({Instrument.HOST_READS: HostReads(report, linker.backend.to_host).wrap})
        self._link()

    def __repr__(self) -> str:
        caught = ", ".join(self.catches.conditions) or "nothing"
        logged = "not logged" if self.log is None else "logged"
        return f"<Instrumentation: statistics {logged}, catches {caught}>"

    def _rule_failed(self, failure: RuleFailed) -> None:
        self.failed_rules[str(failure)] = None

    def check_devices(self, inputs: Iterable[Any]) -> None:
        """Check the devices of operands, if values of a run with these inputs can be on several devices."""
        if not self.linker.backend.on_host:
            needed = self._devices.needed(self.loaded.program, inputs)
            self.linker.instrument({Instrument.DEVICES: self._devices.wrap if needed else None})

    def check(self, name: str, quiet: Callable[[], bool]) -> None:
        """Run micro programs beside the kernels; `quiet` returns whether to skip the check.

        Raises UsageError for a check other than "micro".
        """
        if name != "micro":
            raise UsageError(f"unknown check {name!r}", hint="use micro")
        from nncdbg.engine.observers.oracle import MicroCheck

        self.micro = MicroCheck(
            self.loaded.program, self.loaded.listing, self.report, self.linker.backend.to_host, quiet
        )
        self.linker.instrument({Instrument.MICRO_CHECK: self.micro.wrap})
        self.catches.add("micro")

    def catch(self, kinds: Iterable[str], condition: Expression | None, given: Iterable[Any] = ()) -> None:
        """Also stop at these kinds; `given` are the values that the program begins with.

        Raises UsageError for an unknown kind, or one that cannot be found here.
        """
        beyond = self.beyond()
        for kind in kinds:
            if kind in beyond:
                why, hint = beyond[kind]
                raise UsageError(why, hint=hint)
            self.catches.add(kind, condition)
        if self.catches.conditions.keys() & KINDS and self._entrances.look(given, self.linker.codes):
            self.linker.instrument({Instrument.ENTRANCES: self._entrances.wrap})
        self._link()

    def catch_only(self, conditions: Mapping[str, Expression | None]) -> None:
        """Catch exactly these kinds."""
        if self.catches.conditions != conditions:
            self.catches.conditions = dict(conditions)
            self._link()

    def uncatch(self, kinds: Iterable[str]) -> None:
        """Stop catching these kinds."""
        caught = self.catches.conditions.keys() & set(kinds)
        for kind in caught:
            del self.catches.conditions[kind]
        if caught:
            self._link()

    def follow(self, control: Control) -> NanTracker:
        """Track NaN and Inf from here on: where they originate, propagate and end.

        Tracking stops nothing; catches work as before.
        """
        from nncdbg.engine.diagnosis.diagnosing import Diagnosing
        from nncdbg.engine.diagnosis.nan_tracker import NanTracker

        outermost, backend = control.stack[0], self.linker.backend
        names = [value.name for value in outermost.code.graph.inputs]

        def begin(first: Callable[[], None]) -> None:
            def begin_here() -> None:
                first()
                self._follow_statements()

            control.between_statements(begin_here)

        self.trail = NanTracker(
            control.machine,
            dict(zip(names, outermost.slots[1 : 1 + len(names)], strict=True)),
            backend.to_host,
            self.linker.allocation.whole,
            Diagnosing(self.loaded),
            begin,
            lambda: control.timeline.replaying,
        )
        control.machine.listeners.append(self.trail.hear)
        self._link()
        if self.trail.start():
            self._follow_statements()
        return self.trail

    def unfollow(self) -> None:
        """Remove the NaN tracker; another one may be set."""
        self.trail = None
        self.linker.instrument({Instrument.TRACKER: None})

    def _follow_statements(self) -> None:
        """Pass each statement's operands and results to the NaN tracker from now on."""
        assert self.trail is not None
        self.linker.instrument({Instrument.TRACKER: self.trail.wrap})

    def measure(self, wrap: Wrap) -> None:
        """Measure each statement's results with the instruction that `wrap` returns."""
        self.linker.instrument({Instrument.MEASUREMENT: wrap})

    def beyond(self) -> dict[str, tuple[str, str]]:
        """Return the kinds of findings that cannot be found here, each with the reason and a hint."""
        found = {}
        if self.micro is None:
            found["micro"] = "micro programs are not compared with the kernels", "use --check micro"
        backend, inspecting = self.linker.backend, self.linker.allocation
        if not inspecting.inspects:
            why = backend.unchecked or f"the allocator {inspecting.name} does not check memory"
            hint = "use the allocator debug, arena or poison"
            if not backend.on_host:
                hint += f", with another backend than {backend.name}"
            found |= dict.fromkeys(("uninitialized", "guard"), (why, hint))
        if not inspecting.retains:
            why = f"the allocator {inspecting.name} reuses the memory of old states"
            found[STATE_RESET] = why, "use the allocator debug or plain"
        return found

    def _link(self) -> None:
        """Link the inspection for the kinds that are caught now."""
        inspecting = self.linker.allocation
        followed = 0 if self.trail is None else int(Flag.NAN | Flag.INF | Flag.UNWRITTEN | GUARDS)
        inspecting.watched = self._observer.watched = self.catches.flags | followed
        wanted = not inspecting.inspects and (self.log is not None or bool(self._observer.watched & 3))
        inspected = self.log is not None or followed
        wrap = self._observer.wrap if inspected else self._observer.wrap_origins
        checked = self.trail is not None or bool(_FAULTS & self.catches.conditions.keys())
        self.linker.instrument(
            {
                Instrument.FINDINGS: wrap if wanted else None,
                Instrument.OPERAND_CHECKS: self._operands.wrap if checked else None,
                Instrument.OVERFLOW_CHECKS: self._overflows.wrap if checked else None,
                Instrument.REMARKS: self.remarks.wrap if self.trail and self.linker.backend.on_host else None,
                Instrument.STATE_RESETS: self.resets.wrap if STATE_RESET in self.catches.conditions else None,
                Instrument.RACES: self.races.wrap if RACE in self.catches.conditions else None,
            }
        )


def allocation_on(
    backend: Backend, allocator: str | Allocation | None, in_place: Collection[str] = ()
) -> Allocation:
    """Return the requested allocation; by default `debug`, or `plain` for device memory.

    `in_place` are the states that updates overwrite; with such states, the default is `arena`.
    """
    if in_place and not backend.on_host:
        raise UsageError(
            f"states in place need NumPy arrays, but the backend {backend.name} has its own",
            hint="use --backend numpy or onnxruntime",
        )
    usual = "plain" if not backend.on_host else "arena" if in_place else "debug"
    chosen = allocation(usual if allocator is None else allocator, backend, in_place)
    if not backend.on_host and chosen.inspects:
        raise UsageError(
            f"the allocator {chosen.name} manages host memory, but {backend.name} uses device memory",
            hint="use --allocator plain, or --backend numpy or onnxruntime",
        )
    return chosen


def _statistics_on(backend: Backend, report: Report, wanted: bool) -> tuple[StatisticsLog | None, Observer]:
    """Return the log, if requested, and the observer for results that no allocation inspects."""
    if backend.on_host:
        log = StatisticsLog() if wanted else None
        return log, Observer(report, log)
    from nncdbg.engine.observers.device_observation import DeviceObserver, DeviceStatisticsLog

    on_device = DeviceStatisticsLog(backend) if wanted else None
    return on_device, DeviceObserver(backend, report, on_device)
