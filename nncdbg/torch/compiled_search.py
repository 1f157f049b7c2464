"""Find the smallest part of a step that has a NaN or Inf only if it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.ops.aten.names import allocates_only
from nncdbg.engine.ops.aten.signatures import RANDOM
from nncdbg.engine.text.counting import counted
from nncdbg.ir.records import Node
from nncdbg.torch.compiled_program import ProgramRun, is_phase, stays_eager
from nncdbg.torch.finiteness import not_finite
from nncdbg.torch.recorded_step import BACKEND, RecordedStep

LONGEST_SEARCH = 60.0
"""Seconds after which a search ends with the smallest part so far."""

_LISTED = 6
"""The most operators in a sentence."""


@dataclass(frozen=True, slots=True)
class CompiledPart:
    """Statements that give a NaN or Inf if they are compiled as one graph, and none if they run eagerly.

    `counts` are those of the result of the last one: ``"2 NaN of 12"``.  `complete` is whether the search
    has ended, so that no smaller part was found.
    """

    nodes: tuple[Node, ...]
    counts: str
    complete: bool

    def __str__(self) -> str:
        """Return one sentence about the part."""
        ops = list(dict.fromkeys(node.op for node in self.nodes))
        place = self.nodes[-1].location
        listed = ", ".join(ops[:_LISTED]) + (f" and {len(ops) - _LISTED} more" if len(ops) > _LISTED else "")
        where = "" if place is None or place.file is None else f" (last at {place.file}:{place.line})"
        size = "the smallest compiled graph that has it" if self.complete else "a compiled graph that has it"
        return (
            f"{size}: {counted(len(self.nodes), 'statement')}, {listed}{where}; its result has "
            f"{self.counts}, and none if the graph runs eagerly"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the part as a JSON object."""
        places = [node.location for node in self.nodes]
        return {
            "statements": [
                {"op": node.op, "file": place and place.file, "line": place and place.line}
                for node, place in zip(self.nodes, places, strict=True)
            ],
            "counts": self.counts,
            "complete": self.complete,
        }


def smallest_compiled_part(step: RecordedStep, compiler: Any) -> CompiledPart | None:
    """Return the smallest part found of a step that only compiled code makes bad; None if there is none.

    `compiler` is the backend of `torch.compile`, a name or a function.  The forward and the backward pass are
    compiled as one graph each, then parts of the one with the bad result.
    """
    debugger = Debugger(step.program, step.inputs, backend=BACKEND, statistics=False)
    ended = monotonic() + LONGEST_SEARCH
    run = ProgramRun(debugger, compiler)
    with torch.no_grad():
        for phase in _phases(debugger, run):
            part = _Search(run, phase, compiler, ended).smallest()
            if part is not None:
                return part
    return None


@dataclass(slots=True)
class _Step:
    """A statement that ran eagerly, with its tensors."""

    place: tuple[Code, int]
    given: Sequence[Any]
    results: Sequence[Any]

    @property
    def node(self) -> Node:
        code, pc = self.place
        return code.nodes[pc]

    @property
    def is_compiled(self) -> bool:
        """Whether a compiled graph runs it: it takes random numbers and recorded results as operands."""
        return RANDOM not in self.node.attributes and not stays_eager(self.node.op)


def _phases(debugger: Debugger, run: ProgramRun) -> list[list[_Step]]:
    """Return the statements of the forward and backward pass, in the order in which they run eagerly."""
    program = debugger.loaded.program
    inputs = [debugger.backend.to_device(debugger.inputs[each.name]) for each in program.graph.inputs]
    found: list[list[_Step]] = []

    def phase(name: str, operands: Sequence[Any]) -> Sequence[Any]:
        if is_phase(name):
            found.append([])
        return run.results(name, operands, execute, phase)

    def execute(place: tuple[Code, int], given: Sequence[Any]) -> Sequence[Any]:
        results = run.execute(place, given)
        if found:
            found[-1].append(_Step(place, given, results))
        return results

    run.results(program.entry, inputs, execute, phase)
    return found


@dataclass(slots=True)
class _Search:
    run: ProgramRun
    steps: Sequence[_Step]
    compiler: Any
    ended: float
    """The time at which the search ends."""
    counts: dict[int, str] = field(default_factory=dict)
    """The counts of the last bad result, by its step."""

    def smallest(self) -> CompiledPart | None:
        """Return the smallest part with a bad result; None if none is bad."""
        kept: Sequence[int]
        every = range(len(self.steps))
        bad = self._bad(every, every)
        if not bad or not self._bad(range(bad[-1] + 1), bad[-1:]):
            return None
        # The first one that is bad after the steps before it alone.
        low, high = 0, len(bad) - 1
        while low < high:
            middle = (low + high) // 2
            if self._if_bad(range(bad[middle] + 1), bad[middle]):
                high = middle
            else:
                low = middle + 1
        last, kept = bad[high], range(bad[high] + 1)
        for smaller in (self._ancestors, self._later, self._single):
            kept = smaller(kept, last)
        self._bad(kept, [last])
        complete = monotonic() < self.ended
        return CompiledPart(tuple(self.steps[each].node for each in kept), self.counts[last], complete)

    def _ancestors(self, kept: Sequence[int], last: int) -> Sequence[int]:
        """Return those of the steps on which the last one depends, if they are bad."""
        needed, found = {id(each) for each in self.steps[last].given}, [last]
        for index in reversed(kept[:-1]):
            step = self.steps[index]
            if any(id(each) in needed for each in step.results):
                needed |= {id(each) for each in step.given}
                found.append(index)
        return self._if_bad(found[::-1], last) or kept

    def _later(self, kept: Sequence[int], last: int) -> Sequence[int]:
        """Return the steps without as many of the first ones as possible."""
        low, high = 0, len(kept) - 1  # The steps from `low` on are bad.
        while low < high:
            middle = (low + high + 1) // 2
            if self._if_bad(kept[middle:], last):
                low = middle
            else:
                high = middle - 1
        return kept[low:]

    def _single(self, kept: Sequence[int], last: int) -> Sequence[int]:
        """Return the steps without those that can be left out alone."""
        for index in kept[:-1]:
            kept = self._if_bad([each for each in kept if each != index], last) or kept
        return kept

    def _if_bad(self, kept: Sequence[int], last: int) -> Sequence[int] | None:
        return kept if monotonic() < self.ended and self._bad(kept, [last]) else None

    def _bad(self, kept: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """Return those of the wanted steps with a bad result if these steps are compiled as one graph."""
        inside = [each for each in kept if self.steps[each].is_compiled]
        made: set[int] = set()
        outside: dict[int, torch.Tensor] = {}
        for each in inside:
            for tensor in self.steps[each].given:
                if isinstance(tensor, torch.Tensor) and id(tensor) not in made:
                    outside[id(tensor)] = tensor
            made |= set(map(id, self.steps[each].results))
        outputs: list[tuple[int, torch.Tensor]] = [
            (each, result)
            for each in wanted
            if self.steps[each].is_compiled and not allocates_only(self.steps[each].node.op)
            for result in self.steps[each].results
            if isinstance(result, torch.Tensor) and result.dtype.is_floating_point
        ]

        def function(*tensors: Any) -> list[Any]:
            known: dict[int, Any] = dict(zip(outside, tensors, strict=True))
            for each in inside:
                step = self.steps[each]
                results = self.run.execute(step.place, [known.get(id(given), given) for given in step.given])
                known.update(zip(map(id, step.results), results, strict=True))
            return [known[id(result)] for _, result in outputs]

        given = [*outside.values()]
        graph = make_fx(function, tracing_mode="fake")(*given)
        compiled = torch.compile(graph, backend=self.compiler, dynamic=False)(*given)
        found = []
        for (each, eager), result in zip(outputs, compiled, strict=True):
            if bool((~torch.isfinite(result) & torch.isfinite(eager)).any()):
                self.counts[each] = not_finite(result)
                found.append(each)
        return list(dict.fromkeys(found))
