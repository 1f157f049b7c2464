"""Check the claimed effect of a label by experiment: change the values at the origin, compare the outputs.

The watch is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import nncdbg
from tests.bugs.labels import Bug

SIZES = (0.0, 0.01, 1.0, -1.0, 90.0, -90.0, 3e4, -3e4, 6e4)
"""Scales of the values that replace nonfinite elements."""


def outputs_differ(bug: Bug) -> bool:
    """Return whether an output changes when the offending elements at the label's origin get other values."""
    with bug.kernels():
        program, inputs = bug.program, bug.inputs()
        given = _outputs(_started(program, inputs))
        return any(not _same(given, outputs) for outputs in _interventions(bug, program, inputs))


def _interventions(bug: Bug, program: nncdbg.Program, inputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    origin = bug.label.origin
    for size in SIZES:
        if origin in inputs:
            yield _outputs(_started(program, {**inputs, origin: _replaced(inputs[origin], size)}))
            continue
        debugger = _started(program, inputs)
        value = origin or _at_the_origin(bug, debugger)
        debugger.set_value(value, _replaced(debugger.value(value), size))
        yield _outputs(debugger)


def _started(program: nncdbg.Program, inputs: dict[str, Any]) -> nncdbg.Debugger:
    return nncdbg.Debugger(program, inputs, allocator="plain", statistics=False)


def _outputs(debugger: nncdbg.Debugger) -> dict[str, Any]:
    debugger.delete()
    stop = debugger.run()
    assert debugger.outputs is not None, stop.error
    return dict(debugger.outputs)


def _at_the_origin(bug: Bug, debugger: nncdbg.Debugger) -> str:
    """Run until after the statement of the origin in the label's iteration; return its result's name."""
    line, wanted = bug.label.lines["origin"][0], bug.label.iteration
    name = _result(bug, line)
    debugger.break_at(line=line)
    stop = debugger.control.here("entry")
    while stop.reason != "end":
        loops = tuple(frame.iteration for frame in debugger.frames[::-1][1:] if frame.iteration is not None)
        if stop.line == line and loops[: len(wanted)] == wanted:
            debugger.step_over()
            if not _harmless(bug, debugger.value(name)):
                return name
        stop = debugger.run()
    raise AssertionError("the statement of the origin never has the result of the label")


def _result(bug: Bug, line: int) -> str:
    statement = bug.path.read_text(encoding="utf-8").splitlines()[line - 1]
    return statement.partition(" = ")[0].partition(":")[0].strip()


def _harmless(bug: Bug, value: Any) -> bool:
    """Return whether this execution of the statement is without the bug."""
    return bug.label.expect in ("nan", "inf") and not _is(bug.label.expect, value).any()


def _is(kind: str, value: Any) -> Any:
    wide = np.asarray(value).astype(np.float64)
    return np.isnan(wide) if kind == "nan" else np.isinf(wide)


def _replaced(value: Any, size: float) -> Any:
    """Return the value with other numbers in its nonfinite elements, or in all elements if all are finite."""
    array = np.array(value)
    if array.dtype.kind in "biu":
        return np.where(array > 0, array - np.asarray(1, array.dtype), np.asarray(1, array.dtype))
    bad = ~np.isfinite(array.astype(np.float64))
    drawn = np.random.default_rng(0).uniform(0.5, 1.0, array.shape) * size
    return np.where(bad if bad.any() else True, drawn.astype(array.dtype), array)


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(
        np.shape(a) == np.shape(b) and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(first.values(), second.values(), strict=True)
    )
