"""A check passes only if it was made; otherwise the headline and the JSON say what was not checked."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import nncdbg
from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.reports import FORMS
from nncdbg.nan_watch.reports.wording import verdict

Kernel = Callable[..., Any]


def watched(name: str, **options: Any) -> Report:
    program = nncdbg.parse(f"""
graph @main(%x: f32[8]) -> (%y: f32[8]) {{
  %a = Abs(%x)
  %b: f32[8] = {name}(%a)
  %y: f32[8] = Neg(%b)
  return %y
}}
""")
    return nncdbg.watch(program, {"x": np.ones(8, "f4")}, **options)


def results(report: Report) -> dict[str, str]:
    return {each.check: each.result for each in report.checks}


def write_past_the_end(buffer: Any) -> None:
    ctypes.memmove(buffer.ctypes.data + buffer.nbytes, np.array([7], np.float32).ctypes.data, 4)


ALLOCATIONS = {
    "empty": lambda xp, x: xp.empty(x.shape, x.dtype),
    "empty_like": lambda xp, x: xp.empty_like(x),
    "ndarray": lambda xp, x: xp.ndarray(x.shape, x.dtype),
    "zeros": lambda xp, x: xp.zeros(x.shape, x.dtype),
    "full_like": lambda xp, x: xp.full_like(x, 3),
}


@pytest.mark.parametrize("how", ALLOCATIONS)
def test_a_write_past_a_buffer_of_xp_trips_by_default(how: str) -> None:
    @nncdbg.op(f"checks.Over_{how}")
    def over(xp: Any, x: Any) -> Any:
        out = ALLOCATIONS[how](xp, x)
        out[...] = x
        write_past_the_end(out)
        return out

    report = watched(f"checks.Over_{how}")
    (finding,) = report.findings
    assert (report.exit_code, finding.kind, finding.value) == (1, "guard", "b")
    assert finding.evidence.endswith("wrote outside %b's buffer: past the end, at element 8 of 8")
    assert results(report)["guard"] == "failed"


def test_a_write_past_a_scratch_buffer_or_the_given_one_trips() -> None:
    @nncdbg.op("checks.Scratch", infer=lambda attributes, types: [types[0]], accepts_out=True)
    def scratch(xp: Any, x: Any, *, out: Any) -> Any:
        work = xp.empty(4, x.dtype)
        work[...] = 0
        write_past_the_end(work)
        out[...] = x
        return out

    (finding,) = watched("checks.Scratch").findings
    assert finding.evidence.endswith(
        "wrote outside a buffer that it allocated: past the end, at element 4 of 4"
    )


def test_a_kernel_that_writes_inside_its_buffer_passes() -> None:
    @nncdbg.op("checks.Inside")
    def inside(xp: Any, x: Any) -> Any:
        out = xp.empty_like(x)
        out[...] = xp.zeros(8, x.dtype) + x
        return out[::-1]

    report = watched("checks.Inside")
    assert (report.status, results(report)["guard"]) == ("ok", "passed")
    assert verdict(report).startswith("ok in 4 statements")


def test_memory_that_is_not_from_xp_is_not_checked() -> None:
    @nncdbg.op("checks.Own")
    def own(xp: Any, x: Any) -> Any:
        return np.array(x)

    report = watched("checks.Own")
    assert (report.status, report.ok, report.exit_code) == ("not checked", True, 0)
    assert verdict(report).startswith("no finding in 4 statements")
    assert verdict(report).endswith("; not checked: uninitialized, guard")
    (words,) = report.unchecked
    assert words.startswith("uninitialized, guard: checks.Own returned memory that is not from xp.empty")
    document = json.loads(FORMS["json"](report, ReportContext()))
    assert document["status"] == "not checked"
    guard = next(each for each in document["checks"] if each["check"] == "guard")
    assert guard["result"] == "not checked"
    assert guard["reason"].startswith("checks.Own returned memory")


def test_checks_of_memory_do_not_apply_to_the_kernels_of_another_runtime() -> None:
    pytest.importorskip("onnxruntime")
    report = watched("Exp", backend="onnxruntime")
    found = {each.check: each for each in report.checks if each.check in ("uninitialized", "guard")}
    assert {each.result for each in found.values()} == {"not applicable"}
    assert {each.reason for each in found.values()} == {"onnxruntime allocates the memory of its kernels"}
    assert (report.status, report.unchecked) == ("ok", [])


def test_gates_without_a_statement_to_check_are_not_applicable() -> None:
    report = watched("Exp")
    assert report.status == "ok"
    assert results(report) == {
        "nan": "passed",
        "inf": "passed",
        "uninitialized": "not applicable",
        "integer": "not applicable",
        "contract": "not applicable",
        "guard": "not applicable",
        "race": "not applicable",
    }


def test_the_kernels_of_nncdbg_are_checked_in_buffers_of_debug() -> None:
    assert results(watched("Exp", allocator="debug"))["guard"] == "passed"


def test_no_gate_passes_in_a_run_that_did_not_finish() -> None:
    report = watched("Nothing.Known")
    assert report.status == "failed"
    assert {"nan", "inf"} <= {each.check for each in report.checks if each.result == "not checked"}


def test_junit_skips_what_was_not_checked() -> None:
    @nncdbg.op("checks.Skipped")
    def skipped(xp: Any, x: Any) -> Any:
        return np.array(x)

    report = watched("checks.Skipped")
    suite = ElementTree.fromstring(FORMS["junit"](report, report.watched or ReportContext()))
    states = {test.get("name"): [each.tag for each in test] for test in suite.iter("testcase")}
    assert "skipped" in states["guard"]
    assert "skipped" not in states["nan"]


def test_several_runs_are_not_checked_if_one_was_not() -> None:
    @nncdbg.op("checks.Several")
    def several(xp: Any, x: Any) -> Any:
        return np.array(x)

    report = watched("checks.Several", runs=2)
    assert report.status == "not checked"
    assert results(report)["guard"] == "not checked"
    assert results(report)["nan"] == "passed"


def test_kernels_of_the_reference_need_no_guards() -> None:
    program = nncdbg.parse(
        "opset 22\ngraph @main(%n: i64[]) -> (%y) {\n  %y = HannWindow(%n)\n  return %y\n}\n"
    )
    assert nncdbg.watch(program, {"n": np.int64(8)}).status == "ok"
