"""Run one statement in a narrower float type, with its actual operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nncdbg.engine.backends.fallback import Fallback
from nncdbg.engine.comparison.measure import measure
from nncdbg.engine.comparison.report import NOWHERE
from nncdbg.engine.comparison.tolerance import Tolerance
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.casting import cast_array
from nncdbg.engine.divergence.mixing import Place, fixed, narrow_node
from nncdbg.engine.divergence.narrow_causes import operand_words, overflow_of
from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.execution.linking import Allocation, Linker
from nncdbg.ir.records import Node, Value
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.records import FindingSite
from nncdbg.nan_watch.reduction.case import ReducedCase


@dataclass(frozen=True, slots=True)
class Kept:
    """A statement that has to stay wide, and why.

    `reason` is overflow, not a number, unsupported or error; `detail` gives the numbers, `hint` another fix.
    `factor` is the error of an output without it, in tolerances; infinite for a non-finite output.
    """

    place: Place
    site: FindingSite
    reason: str
    detail: str
    hint: str
    factor: float

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        site = self.site
        return {
            "line": site.line,
            "graph": site.graph,
            "node": site.node,
            "op": site.op,
            "value": site.value,
            "location": site.location(),
            "reason": self.reason,
            "detail": self.detail,
            "hint": self.hint,
            "factor": self.factor if np.isfinite(self.factor) else None,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The error of a mixed program's outputs against the wide ones: at most `factor` tolerances."""

    factor: float
    words: str

    @property
    def fine(self) -> bool:
        return self.factor <= 1


@dataclass(slots=True)
class Alone:
    """A statement run alone: its worst error in tolerances, and the reason if it is too large."""

    factor: float = 0.0
    reason: str = ""
    detail: str = ""
    hint: str = ""
    times: int = 0


@dataclass(slots=True)
class Trial:
    """Executes statements of the program that `debugger` runs, in `dtype`."""

    debugger: Debugger
    configuration: WatchConfiguration
    dtype: str
    tolerance: Tolerance

    def __call__(self, code: Code, pc: int, operands: Sequence[Any], results: Sequence[Any]) -> Alone:
        """Run a statement with these operands on the host, and compare with its wide results."""
        tried = self._narrowed(code, pc, operands, results)
        return tried if tried.reason or np.isfinite(tried.factor) else self._beyond(code, pc, operands)

    def _narrowed(self, code: Code, pc: int, operands: Sequence[Any], results: Sequence[Any]) -> Alone:
        """Run once with the operands cast, and compare with the results of the wide run."""
        debugger, node = self.debugger, code.nodes[pc]
        to_device = debugger.backend.to_device
        cast = [
            content if fixed(node, index, code.opsets) else cast_array(content, self.dtype)
            for index, content in enumerate(operands)
        ]
        try:
            binding = self._linker().bind(code, pc, narrow_node(node, self.dtype, code.opsets))
            with np.errstate(all="ignore"):
                found = binding.kernel(*(each if each is None else to_device(each) for each in cast))
        except Exception as error:  # noqa: BLE001  a kernel may raise anything; the statement stays wide
            said = error.message if isinstance(error, NncdbgError) else str(error)
            return Alone(np.inf, "unsupported", f"{node.op} does not run in {self.dtype}: {said}")
        narrow = [*map(debugger.backend.to_host, found if binding.several else [found])]
        pairs = [pair for pair in zip(results, narrow, strict=False) if pair[0] is not None]
        return Alone(max((self._factor(pair) for pair in pairs), default=0.0))

    def _linker(self) -> Linker:
        debugger, backend = self.debugger, self.debugger.backend
        covers = [Fallback(backend).cover] if self.configuration.fallback else []
        return Linker(backend, Allocation(), debugger.loaded.linker.generator, covers)

    def _factor(self, pair: tuple[Any, Any]) -> float:
        return measure(NOWHERE, NOWHERE, "name", pair, self.tolerance).excess.factor

    def _beyond(self, code: Code, pc: int, operands: Sequence[Any]) -> Alone:
        """Return why a result is not finite in the narrow type."""
        node, dtype = code.nodes[pc], self.dtype
        for index, content in enumerate(operands):
            words = overflow_of(operand_words(node.inputs, index), content, dtype)
            if words:
                return Alone(np.inf, "overflow", words)
        case = _alone(node, operands, code.opsets, dtype)
        configuration = replace(self.configuration, fail_on=["nan", "inf"], strict=True)
        report = configuration.watch(case.program(), case.inputs)
        found = next(iter(report.tripping), None)
        if found is None:
            return Alone(np.inf, "not a number", f"{node.op} gives different infinities or NaN in {dtype}")
        reason = "overflow" if found.kind == "inf" else "not a number"
        said = ": ".join(part for part in (found.cause, found.evidence) if part)
        return Alone(np.inf, reason, said or f"{node.op} gives {found.kind} in {dtype}", found.hint)


def _alone(node: Node, operands: Sequence[Any], opsets: Mapping[str, int], dtype: str) -> ReducedCase:
    """Return a statement as its own program, with its operands cast."""
    inputs = {
        operand: content if fixed(node, index, opsets) else cast_array(content, dtype)
        for index, (operand, content) in enumerate(zip(node.inputs, operands, strict=True))
        if isinstance(operand, str)
    }
    narrow = narrow_node(node, dtype, opsets)
    nodes = (replace(narrow, outputs=tuple(Value(each.name) for each in node.outputs)),)
    return ReducedCase(nodes, tuple(each.name for each in node.outputs if each.name), inputs, {}, opsets)
