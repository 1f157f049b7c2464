"""Four ways to run a case, and the comparison of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

import nncdbg
from nncdbg.dtypes import FLOATS, NUMPY, name_of
from nncdbg.ir.records import Program
from nncdbg.textual_repr.parser import parse
from tests.conformance.cases import Case

MEMORY = ("uninitialized", "guard")
EVERY = 7
"""Stepping steps back and forward again after this many statements."""

NARROW = {"bf16": 2.0**-6}
"""Relative tolerances of onnx's runner: two units in the last place."""


def free_run(case: Case) -> None:
    """Run to the end without observers."""
    program = nncdbg.load(case.model)
    for inputs, wanted in case.sets:
        compare(_run(program, inputs, "plain"), wanted, case)


def printed_run(case: Case) -> None:
    """Print the program, parse the text, compare both programs, and run the parsed one."""
    program = nncdbg.load(case.model)
    text = str(program)
    again = parse(text)
    assert again == program, "the parsed text is a different program"
    assert str(again) == text
    for inputs, wanted in case.sets:
        compare(_run(replace(again, readers=program.readers), inputs, "plain"), wanted, case)


def stepped_run(case: Case) -> None:
    """Step through every statement, every seventh twice, with the debug allocator and all observers."""
    program = nncdbg.load(case.model)
    for inputs, wanted in case.sets:
        debugger = nncdbg.Debugger(
            program, inputs_by_name(program, inputs), allocator="debug", statistics=True
        )
        debugger.catch(*MEMORY)
        _step_to_end(debugger)
        assert not debugger.control.machine.problems, debugger.control.machine.problems
        compare(_outputs(debugger), wanted, case)


def exported_run(case: Case) -> None:
    """Write the program as an ONNX model again, check that, and run it."""
    model = nncdbg.to_onnx(case.model)
    onnx.checker.check_model(model)
    program = nncdbg.load(model)
    for inputs, wanted in case.sets:
        compare(_run(program, inputs, "plain"), wanted, case)


def watched_run(case: Case, allocator: str) -> None:
    """Run to the end with an allocator, and catch findings about memory."""
    program = nncdbg.load(case.model)
    for inputs, _ in case.sets:
        debugger = nncdbg.Debugger(program, inputs_by_name(program, inputs), allocator=allocator)
        debugger.catch(*MEMORY)
        stop = debugger.run()
        assert stop.reason == "end", f"{stop.reason}: {stop.detail}"


WAYS: dict[str, Callable[[Case], None]] = {
    "free": free_run,
    "stepped": stepped_run,
    "printed": printed_run,
    "exported": exported_run,
}


def _step_to_end(debugger: nncdbg.Debugger) -> None:
    count = 0
    while True:
        before = _position(debugger)
        stop = debugger.step_into()
        if stop.reason == "end":
            return
        assert stop.reason == "step", f"{stop.reason}: {stop.detail}"
        count += 1
        if count % EVERY == 0:
            after = _position(debugger)
            debugger.step_back_into()
            assert _position(debugger) == before, "a step back does not restore the position before the step"
            debugger.step_into()
            assert _position(debugger) == after, "the repeated step reaches a different position"


def _position(debugger: nncdbg.Debugger) -> list[tuple[Any, ...]]:
    return [(frame.code.path, frame.pc, frame.iteration) for frame in debugger.control.machine.frames]


def _run(program: Program, inputs: Sequence[Any], allocator: str) -> list[Any]:
    debugger = nncdbg.Debugger(
        program, inputs_by_name(program, inputs), allocator=allocator, statistics=False
    )
    stop = debugger.run()
    assert stop.reason == "end", f"{stop.reason}: {stop.detail}"
    return _outputs(debugger)


def _outputs(debugger: nncdbg.Debugger) -> list[Any]:
    outputs = debugger.outputs
    assert outputs is not None
    return list(outputs.values())


def inputs_by_name(program: Program, inputs: Sequence[Any]) -> dict[str, Any]:
    """Return input name to data; a case may omit the last inputs, which have initializers."""
    graph = program.graphs[program.entry]
    return {value.name: data for value, data in zip(graph.inputs, inputs, strict=False)}


def compare(got: Any, wanted: Any, case: Case) -> None:
    """Assert that kinds, shapes and dtypes are equal, and values are equal within the tolerance."""
    if isinstance(wanted, list):
        assert isinstance(got, (list, tuple)), f"a {type(got).__name__} instead of a sequence"
        assert len(got) == len(wanted), f"{len(got)} instead of {len(wanted)} values"
        for one, other in zip(got, wanted, strict=True):
            compare(one, other, case)
        return
    if wanted is None:
        assert got is None
        return
    got = np.asarray(got)
    assert got.shape == wanted.shape
    assert name_of(got.dtype) == name_of(wanted.dtype)
    _compare_values(got, wanted, case)


def _compare_values(got: Any, wanted: Any, case: Case) -> None:
    name = name_of(wanted.dtype)
    if name == "str":
        assert got.tolist() == wanted.tolist()
        return
    rtol = max(case.rtol, NARROW.get(name, 0.0))
    if name in FLOATS and NUMPY[name].isbuiltin == 2:
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    elif NUMPY[name].isbuiltin == 2:
        got, wanted = got.astype(np.int8), wanted.astype(np.int8)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=case.atol)
