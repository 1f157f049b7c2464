"""One executed statement as the NaN tracker sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nncdbg.engine.diagnosis.marks import Marks
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.observers.nonfinite import array_of, bad_in
from nncdbg.engine.ops.influence import Application, Marked
from nncdbg.stats.inspection import bad


class Position(Protocol):
    """Where a program is: its stack, outermost first, and the number of executed statements."""

    @property
    def frames(self) -> Sequence[Frame]: ...

    @property
    def tick(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Step:
    """An executed statement: its operands and results, also on the host, and the operands' marks."""

    binding: Binding
    inputs: Sequence[Any]
    results: Sequence[Any]
    application: Application
    known: Sequence[Marks | None]
    influences: dict[Any, Sequence[Marked]] = field(default_factory=dict)
    """What depends on marked elements, by `marks_key`: origins often mark the same elements."""


def marks_key(application: Application, marked: Sequence[Marked], *, exact: bool) -> Any:
    """Return a key that is equal for marks of the same elements; `exact` matters only for infinities."""
    infinite = exact and any(map(_marks_infinity, application.operands, marked))
    return infinite, *map(_content, marked)


def _marks_infinity(value: Any, marks: Marked) -> bool:
    if marks is None or not isinstance(value, np.ndarray) or value.dtype.kind in "biuSUO":
        return marks is not None and isinstance(marks, list)
    return bool((marks & bad(value, "inf")).any())


def _content(marks: Marked) -> Any:
    if isinstance(marks, list):
        return tuple(map(_content, marks))
    return marks if marks is None or marks is True else np.asarray(marks).tobytes()


def step_of(
    binding: Binding,
    inputs: Sequence[Any],
    results: Sequence[Any],
    known: Sequence[Marks | None],
    to_host: Callable[[Any], Any] = lambda value: value,
) -> Step:
    """Return the step of a statement that has run; `to_host` converts its values to NumPy arrays."""
    operands = [array_of(to_host(value)) for value in inputs]
    hosts = [array_of(to_host(value)) for value in results]

    def run(values: Sequence[Any]) -> Sequence[Any]:
        found = binding.kernel(*values)
        return [array_of(to_host(value)) for value in (found if binding.several else (found,))]

    unmarked = [None] * len(operands)
    application = Application(
        binding.op, binding.attributes, operands, hosts, unmarked, values=inputs, kernel=run
    )
    return Step(binding, inputs, results, application, known)


def either(a: Marked, b: Marked) -> Marked:
    if isinstance(a, list):
        return [either(x, y) for x, y in zip(a, b, strict=True)]
    return a | b


def alone(finding: Finding, application: Application, born: Any) -> Finding:
    """Return the finding with only its own bad elements: those that came in are replaced by 1."""
    kind = finding.kind
    operands = [_finite(value, bad_in(value, kind)) for value in application.operands]
    host = application.results[finding.output or 0]
    result = _finite(host, bad(host, kind) & ~born)
    return Finding(kind, finding.binding, "", operands, finding.output, result=result)


def _finite(value: Any, there: Marked) -> Any:
    if there is None or isinstance(value, (list, tuple)) or not there.any():
        return value
    cleaned = np.array(value)
    cleaned[there] = 1
    return cleaned
