"""Integer faults: the statements that have them, their reports, and `catch integer`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.nan_watch.records import WatchFinding

DIVISION = "integer division by zero"


def program(*statements: str, inputs: str = "", opset: int = 21) -> nncdbg.Program:
    lines = "\n  ".join(statements)
    return nncdbg.parse(
        f"#nncdbg 1\nopset {opset}\ngraph @main({inputs}) -> (%y) {{\n  {lines}\n  return %y\n}}\n"
    )


def faults(*statements: str, **fields: Any) -> list[WatchFinding]:
    report = nncdbg.watch(program(*statements, **fields))
    assert report.error is None
    return [finding for finding in report.findings if finding.kind == "integer"]


def cases() -> list[tuple[str, str]]:
    """The (statements, expected) of `integers.txt`."""
    text = Path(__file__).with_name("integers.txt").read_text(encoding="utf-8")
    blocks = [block.split("\n    ") for block in text.strip().split("\n\n")[1:]]
    return [(statements, expected.strip()) for statements, expected in blocks]


@pytest.mark.parametrize(("statements", "expected"), cases())
def test_integer_faults_of_a_statement(statements: str, expected: str) -> None:
    *operands, statement = statements.split("; ")
    found = faults(*operands, f"%y = {statement}")
    cause, _, evidence = expected.partition(": ")
    assert [each.cause for each in found] == ([] if cause == "-" else [cause])
    if found:
        assert found[0].site.value == "y"
        if "nan" not in statements:  # otherwise the NaN is the origin
            assert (found[0].role, found[0].trips) == ("birth", True)
        assert found[0].hint
        assert evidence in found[0].evidence


def test_division_of_opset_6_aligns_the_divisor_with_an_axis() -> None:
    (found,) = faults(
        "%a: i32[2,3] = [[1, 2, 3], [4, 5, 6]]",
        "%n: i32[2] = [0, 2]",
        "%y = Div(%a, %n, axis=0, broadcast=1)",
        opset=6,
    )
    assert (found.cause, found.evidence) == (DIVISION, "1 of 2 elements of %n is 0, the first at [0]")


def test_a_fault_without_effect_on_an_output_is_masked() -> None:
    statements = (
        "%n: i32[2] = [0, 2]",
        "%d = Div(4, %n)",
        "%y = Identity(%n)",
    )
    (found,) = faults(*statements)
    assert (found.role, found.reaches_output, found.trips) == ("masked", False, False)
    strict = nncdbg.watch(program(*statements), strict=True)
    assert [each.trips for each in strict.findings] == [True]
    assert not nncdbg.watch(program(*statements, "%y2 = Cast(%d, to=1)"), fail_on="nan").findings[0].trips


STOPPING = """#nncdbg 1
opset 21
graph @main(%n: i32[]) -> (%y) {
  %zero: i32[] = 0
  while @count (%d: i32[] = %n) count %i: i64[] times 4 {
    %k = Cast(%i, to=6)
    %left = Sub(%n, %k)
    %d.1 = Div(6, %left)
    next %d = %d.1
  } -> (%d.last = %d)
  %y = Identity(%d.last)
  return %y
}
"""


@pytest.mark.parametrize("allocator", ["debug", "plain", "arena", "poison"])
def test_catch_integer_stops_forward_and_backward(allocator: str) -> None:
    inputs = {"n": np.array(2, np.int32)}
    debugger = nncdbg.Debugger(nncdbg.parse(STOPPING), inputs=inputs, allocator=allocator)
    debugger.catch("integer")
    stop = debugger.run()
    assert (stop.reason, stop.node.op if stop.node else None) == ("exception", "Div")
    assert debugger.evaluate("$iter") == 2
    assert stop.detail == ("integer division by zero: %d.1 is wrong: Div does not accept %left")
    assert debugger.run().reason == "end"
    back = debugger.reverse_continue()
    assert (back.reason, back.detail, back.line) == ("exception", stop.detail, stop.line)
    debugger.uncatch("integer")
    assert debugger.restart().reason == "entry"
    assert debugger.run().reason == "end"


def test_an_earlier_nan_is_the_origin_and_its_cast_to_an_integer_is_propagated() -> None:
    statements = ("%z: f32[2] = [0.0, 1.0]", "%n = Div(%z, %z)", "%i = Cast(%n, to=6)", "%y = Add(%n, 1.0)")
    report = nncdbg.watch(program(*statements))
    roles = [(each.kind, each.role, each.site.value) for each in report.findings]
    assert roles[0] == ("nan", "birth", "n")
    assert ("integer", "propagated", "i") in roles
    assert [each.kind for each in report.tripping] == ["nan"]
    mixed = nncdbg.watch(program(*statements, "%w = Where([true, false], %n, 3e9)", "%k = Cast(%w, to=6)"))
    roles = [(each.kind, each.role, each.site.value) for each in mixed.findings]
    assert ("integer", "masked", "k") in roles


def test_iterations_and_counts_of_a_fault() -> None:
    report = nncdbg.watch(nncdbg.parse(STOPPING), {"n": np.array(1, np.int32)})
    (found,) = [each for each in report.findings if each.kind == "integer"]
    assert (found.iteration, found.count, found.site.value) == ((1,), 1, "d.1")


def test_a_division_by_zero_that_the_backend_refuses_is_reported() -> None:
    pytest.importorskip("onnxruntime")
    divided = program("%y = Div(6, %n)", inputs="%n: i32[1]")
    report = nncdbg.watch(divided, {"n": np.zeros(1, np.int32)}, backend="onnxruntime")
    assert report.error is not None
    (found,) = report.findings
    assert (found.cause, found.first, found.trips, found.stats) == (DIVISION, True, True, None)


def test_checking_integers_changes_no_result() -> None:
    """The checks only read operands; a run with them gives the same bits."""
    source = program("%i = Cast(%x, to=2)", "%d = Div(%i, %i)", "%y = Cast(%d, to=1)", inputs="%x: f32[64]")
    x = np.random.default_rng(0).normal(0, 300, 64).astype(np.float32)
    plain = nncdbg.Debugger(source, inputs={"x": x})
    plain.run()
    caught = nncdbg.Debugger(source, inputs={"x": x})
    caught.catch("integer")
    while caught.run().reason != "end":
        pass
    assert plain.outputs is not None
    assert caught.outputs is not None
    assert plain.outputs["y"].tobytes() == caught.outputs["y"].tobytes()


def test_the_hint_for_an_unknown_kind_lists_integer() -> None:
    debugger = nncdbg.Debugger(program("%y = Identity(1)"))
    with pytest.raises(nncdbg.NncdbgError) as refused:
        debugger.catch("integers")
    assert re.search(r"one of: .*\binteger\b", refused.value.hint or "")
