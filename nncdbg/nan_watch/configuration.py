"""The run configuration of a watch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.frontends.program_folder import SETTINGS
from nncdbg.ir.records import Program
from nncdbg.nan_watch.call import watch
from nncdbg.nan_watch.measuring.gates import USUAL, Gates, split
from nncdbg.nan_watch.records import Report
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.programs import OpenedProgram, start


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfiguration(RunConfiguration):
    """A run configuration with gates, for programs and inputs in memory."""

    fail_on: list[str] = field(default_factory=lambda: [*USUAL])
    strict: bool = False

    def debugger(self, program: Program, inputs: Any, **changes: Any) -> Debugger:
        """Return a debugger at the start of a program.  Raises the errors of Debugger."""
        return start(program, self, inputs=inputs, statistics=False, **changes)

    def watch(self, program: Program, inputs: Any, **changes: Any) -> Report:
        """Watch one run of a program.  Raises the errors of `nncdbg.watch`."""
        names = ("backend", "fallback", "allocator", "seed", "max_ops")
        machine = {name: getattr(self, name) for name in names}
        return watch(program, inputs, fail_on=self.fail_on, strict=self.strict, **machine, **changes)

    @property
    def kept(self) -> dict[str, Any]:
        """Return the fields that repro bundles and state files store."""
        return {name: getattr(self, name) for name in (*SETTINGS, "fail_on", "strict")}

    @property
    def gates(self) -> Gates:
        return Gates.of(self.fail_on, strict=self.strict, in_place_states=self.in_place_states)


def watch_configuration(
    opened: OpenedProgram, fail_on: str | None = None, strict: bool = False
) -> WatchConfiguration:
    """Return the configuration of an opened program, for programs derived from it.

    A program folder supplies the gates unless `fail_on` is given.
    """
    own = opened.folder.configuration(WatchConfiguration) if opened.folder else WatchConfiguration()
    machine = {name: getattr(opened.configuration, name) for name in SETTINGS}
    machine["op_libraries"] = [os.path.abspath(library) for library in machine["op_libraries"]]
    machine["in_place_states"] = opened.configuration.in_place_states
    gates = own.fail_on if fail_on is None else [*split(fail_on)]
    return WatchConfiguration(**machine, fail_on=gates, strict=strict or own.strict)
