"""Breakpoints and catches of a running script: where it stops, before any program of it exists."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from os.path import realpath
from typing import Any

from nncdbg.engine.ops.aten.internals import all_operator_names, next_sequence_number
from nncdbg.engine.ops.aten.signatures import signature_of
from nncdbg.engine.stopping.breakpoints import hit_rule
from nncdbg.engine.stopping.placement import braced
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.expression import Expression, check_condition, condition, evaluate, parse
from nncdbg.ir.search import same_file
from nncdbg.target.breakpoint_syntax import parse_stop, split_source
from nncdbg.text.torch_names import stop_names, text_name
from nncdbg.torch.live.operators import Operator, OperatorScope
from nncdbg.torch.recording import BACKWARD, FORWARD, OPTIMIZER

PHASES = (FORWARD, BACKWARD, OPTIMIZER)
KINDS = ("nan", "inf")
"""The findings that a running script can be stopped at."""


@dataclass(eq=False)
class LiveBreakpoint:
    """A place in the running script.

    `kind` is op, phase, module, module backward, parameter or source.  `target` is the name of an operator,
    a phase, the path of a module, the name of a parameter or gradient, or ``file:line``.
    """

    number: int
    kind: str
    target: str
    condition: Expression | None = None
    hits: str | None = None
    log: str | None = None
    temporary: bool = False
    enabled: bool = True
    count: int = 0
    """The number of times that the place was reached with the condition true."""
    skipped: int = 0
    """The number of first hits that do not stop (`ignore`)."""
    inside: int = 0
    """The call of the module, or 1, if the last operator was at this place: another one reaches it again."""
    sequences: dict[int, int] = field(default_factory=dict)
    """For a module's backward: the operators of its latest forward passes, with the calls of the module."""

    def __str__(self) -> str:
        return " ".join([self.kind.partition(" ")[0], self.place, *self._terms])

    @property
    def place(self) -> str:
        """The place, as `break` takes it."""
        sigil = {"op": "", "source": "", "parameter": "%"}.get(self.kind, "@")
        return f"{sigil}{self.target}{'.backward' if self.kind == 'module backward' else ''}"

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands of the prompt that set an equal breakpoint."""
        if self.log is None:
            return (" ".join(["tbreak" if self.temporary else "break", self.place, *self._terms]),)
        if self.hits is not None:
            return (f"note a logpoint was set that the prompt cannot set: {self}",)
        log = f"log {self.place} {' '.join(self.log.split())}"
        return (log,) if self.condition is None else (log, f"condition $bpnum {self.condition.text}")

    @property
    def _terms(self) -> list[str]:
        terms = [f"if {self.condition.text}"] if self.condition is not None else []
        return terms + ([f"hits {self.hits}"] if self.hits is not None else [])

    def due(self) -> bool:
        """Return whether the current hit, already counted, stops the script."""
        return self.count > self.skipped and (self.hits is None or hit_rule(self.hits)(self.count))

    def matches(self, overload: Any) -> bool:
        """Return whether the operators of an overload can be at this place."""
        return self.kind != "op" or self.target in stop_names(signature_of(overload).name)

    def reached(self, operator: Operator, names: Mapping[int, str], calls: Mapping[int, int]) -> bool:
        """Return whether an operator is the first one at this place, which is no line.

        `names` maps identities to names, `calls` those of modules to the number of their calls so far.
        """
        if self.kind == "op":
            return True  # Only operators that match come here.
        if self.kind == "parameter":
            # It writes the parameter, or adds to its gradient.
            if _accumulates(operator):
                return f"{names.get(id(operator.node.variable))}.grad" == self.target
            return any(names.get(id(each)) == self.target for each in operator.written)
        if self.kind == "phase":
            there = int(operator.phase == self.target)
        elif self.kind == "module":
            there = self._call_of_module(operator, names, calls)
        else:
            there = self._call_of_derived_module(operator, names, calls)
        first = there and there != self.inside
        self.inside = there
        return bool(first)

    def is_at(self, file: str, line: int) -> bool:
        """Return whether this is the breakpoint of a line."""
        place = split_source(self.target) if self.kind == "source" else None
        return place is not None and place[1] == line and _is_file(file, place[0])

    def _call_of_module(self, operator: Operator, names: Mapping[int, str], calls: Mapping[int, int]) -> int:
        """Return the number of the call of the module that an operator is in; 0 outside of it."""
        around = map(id, operator.modules if operator.node is None else ())
        return next((calls.get(each) or 1 for each in around if names.get(each) == self.target), 0)

    def _call_of_derived_module(
        self, operator: Operator, names: Mapping[int, str], calls: Mapping[int, int]
    ) -> int:
        """Return the number of the call of the module that an operator derives; 0 for other operators.

        A gradient that is added to that of a parameter does not leave the call.
        """
        if operator.node is not None:
            return self.inside if _accumulates(operator) else self.sequences.get(operator.sequence, 0)
        if call := self._call_of_module(operator, names, calls):
            self.sequences[next_sequence_number() - 1] = call
        elif operator.phase == OPTIMIZER:
            self.sequences.clear()
        return 0


def _accumulates(operator: Operator) -> bool:
    return operator.node is not None and operator.node.name().endswith("AccumulateGrad")


@cache
def _is_file(known: str, asked: str) -> bool:
    return same_file(realpath(known), asked)


def parse_breakpoint(
    number: int, text: str, *, temporary: bool = False, log: str | None = None
) -> LiveBreakpoint:
    """Return the breakpoint for ``PLACE [if EXPR] [hits N]``; raises as `live_breakpoint` does."""
    spec = parse_stop(text, streams=False)
    found = live_breakpoint(number, spec.kind, spec.name, spec.when, spec.hits, log)
    found.temporary = temporary
    return found


def live_breakpoint(
    number: int, kind: str, target: str, when: str | None, hits: str | None, log: str | None
) -> LiveBreakpoint:
    """Return the breakpoint for a place of `StopSpec`.

    Raises UsageError for a place that cannot be reached in a running script, for an unknown operator and for
    an invalid hit count; ExpressionError for an invalid condition.
    """
    if kind == "line":
        raise UsageError(
            f"line {target} of which file? A running script has no program text yet",
            hint=f"break train.py:{target}",
        )
    if kind == "node":
        raise UsageError(
            "a running script has no nodes", hint="use an operator such as aten.addmm, or @module"
        )
    if kind == "name":
        kind = "op"
        if target not in _all_names():
            near = difflib.get_close_matches(target, _all_names(), 1)
            hint = f"did you mean {near[0]}?" if near else "name it as in a recorded step: aten.addmm"
            raise UsageError(f"torch has no operator {target}", hint=hint)
    elif kind == "graph":
        kind = "phase" if target in PHASES else "module"
        if target.endswith(".backward"):
            kind, target = "module backward", target.removesuffix(".backward")
    elif kind == "value":
        kind = "parameter"
    if hits is not None:
        hit_rule(hits)
    if log is not None:
        braced(log)
    condition = parse_condition(when) if when is not None else None
    return LiveBreakpoint(number, kind, target, condition, hits, log)


def parse_condition(text: str) -> Expression:
    """Parse a condition on an operator.  Raises ExpressionError."""
    # A name with a dot may be that of a parameter, which are unknown before the script has made them.
    return check_condition(parse(text, lambda name: "." in name))


def holds(found: LiveBreakpoint, operator: Operator, named: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether the condition is true, and why it failed: a condition that fails counts as true."""
    if found.condition is None:
        return True, ""
    try:
        return condition(found.condition, OperatorScope(operator, named)), ""
    except NncdbgError as error:
        return True, f"its condition failed: {error.message}"


def message_of(found: LiveBreakpoint, operator: Operator, named: Mapping[str, Any]) -> str:
    """Return the message of a logpoint, with each expression in braces replaced by its value."""
    scope = OperatorScope(operator, named)
    rest, text = found.log or "", ""
    for part in braced(rest):
        try:
            shown = str(evaluate(parse(part, scope.has, scope.names), scope))
        except NncdbgError as error:
            shown = f"<{error.message}>"
        before, _, rest = rest.partition("{" + part + "}")
        text += before + shown
    return text + rest


# -- names ---------------------------------------------------------------------------------


@cache
def _all_names() -> frozenset[str]:
    names: set[str] = set()
    for registered in all_operator_names():
        namespace, _, rest = registered.partition("::")
        name, _, overload = rest.partition(".")
        names |= stop_names(text_name(namespace, name, overload))
    return frozenset(names)
