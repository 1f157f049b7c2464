"""The memory watch reports kernels that misuse memory and wrong plans, without false alarms."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import nncdbg
from nncdbg.comparison.launches import PlacedPlan
from nncdbg.engine.memory.plan_file import parse_plan, plan_text
from nncdbg.nan_watch.memory.comparison import CAUSES, memory_plan, watch_memory, write_plan
from nncdbg.nan_watch.records import Report, WatchFinding
from tests.bugs.nets import random_net
from tests.engine.programs import runnable
from tests.laws import examples

X = np.array([0.5, -1.0, 2.0], np.float32)
FEW = examples(25)

LIBRARY = """
import numpy as np
import nncdbg
from nncdbg.engine.ops.types import same_as

kept = []
calls = [0]

@nncdbg.op("memory.test.Spoil")
def spoil(xp, x):
    result = x * 2
    x[...] = 7
    return result

@nncdbg.op("memory.test.Remember")
def remember(xp, x):
    kept[:] = [x]
    return x + 1

@nncdbg.op("memory.test.Recall")
def recall(xp, x):
    return x + kept[0]

@nncdbg.op("memory.test.WriteLater")
def write_later(xp, x):
    kept[0][0] = 99
    return x + 1

@nncdbg.op("memory.test.Partial", infer=same_as(0), accepts_out=True)
def partial(xp, x, *, out=None):
    out = np.empty_like(x) if out is None else out
    out[:-1] = x[:-1]
    return out

@nncdbg.op("memory.test.Beside", infer=same_as(0), accepts_out=True)
def beside(xp, x, *, out=None):
    out = np.empty_like(x) if out is None else out
    out[...] = x
    if out.base is not None:
        np.lib.stride_tricks.as_strided(out, (len(x) + 1,), out.strides)[-1] = 5
    return out

@nncdbg.op("memory.test.Accumulate", infer=same_as(0), accepts_out=True)
def accumulate(xp, x, *, out=None):
    out = np.zeros_like(x) if out is None else out
    out += x
    return out

@nncdbg.op("memory.test.Count")
def count(xp, x):
    calls[0] += 1
    return x + calls[0]

@nncdbg.op("memory.test.View")
def view(xp, x):
    return x[::-1]
"""


@pytest.fixture(scope="session", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("library") / "kernels.py"
    file.write_text(LIBRARY)
    nncdbg.load_op_library(file)


def watched(body: str, plan: PlacedPlan | None = None) -> Report:
    """Return the report of the memory watch over statements that end in %y, with %x f32[3]."""
    return watch_memory(program(body), {"x": X}, plan=plan)


def program(body: str) -> nncdbg.Program:
    lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
    return nncdbg.parse(f"opset 18\ngraph @main(%x: f32[3]) -> (%y: f32[3]) {{\n{lines}\n  return %y\n}}\n")


def summary_of(finding: WatchFinding) -> tuple[Any, ...]:
    """Return (kind, cause, victim's line and op, culprit's line and op)."""
    other = finding.other
    return (
        finding.kind,
        finding.cause,
        (finding.site.line, finding.site.op),
        None if other is None else (other.line, other.op),
    )


T = "memory.test."
KERNELS = {
    "writes into its operand": (
        f"%h = Neg(%x)\n%s = {T}Spoil(%h)\n%t = Exp(%x)\n%y = Add(%h, %s)",
        ("reuse", "write into foreign memory", (6, "Add"), (4, f"{T}Spoil")),
    ),
    "writes later into an operand that it kept": (
        f"%h = Neg(%x)\n%r = {T}Remember(%h)\n%s = {T}WriteLater(%r)\n%y = Add(%h, %s)",
        ("reuse", "write into foreign memory", (6, "Add"), (5, f"{T}WriteLater")),
    ),
    "keeps an operand, and reads it after its bytes are reused": (
        f"%h = Neg(%x)\n%r = {T}Remember(%h)\n%s = Exp(%x)\n%t = Mul(%s, %r)\n%y = {T}Recall(%t)",
        ("reuse", "kept reference", (7, f"{T}Recall"), (5, "Exp")),
    ),
    "writes partially": (
        f"%h = Neg(%x)\n%p = {T}Partial(%h)\n%y = Add(%p, %h)",
        ("uninitialized", "partial write", (4, f"{T}Partial"), None),
    ),
    "writes out of bounds": (
        f"%p = {T}Beside(%x)\n%y = Neg(%p)",
        ("guard", "write out of bounds", (3, f"{T}Beside"), None),
    ),
    "adds to the old content of its buffer": (
        f"%d = Mul(%x, 4.0)\n%i = Cast(%d, to=6)\n%j = Neg(%i)\n%k = Neg(%j)\n"
        f"%s = {T}Accumulate(%k)\n%y = Cast(%s, to=1)",
        ("reuse", "read before write", (7, f"{T}Accumulate"), (7, f"{T}Accumulate")),
    ),
    "counts its calls": (
        f"%c = {T}Count(%x)\n%y = Neg(%c)",
        ("state", "state between runs", (3, f"{T}Count"), None),
    ),
    "reads uninitialized memory": (
        '%e = nncdbg.Empty(dtype="f32", shape=[3], init="none")\n%y = Add(%e, %x)',
        ("uninitialized", "uninitialized read", (4, "Add"), (3, "nncdbg.Empty")),
    ),
}


@pytest.mark.parametrize(("body", "expected"), KERNELS.values(), ids=KERNELS.keys())
def test_a_kernel_that_misuses_memory_is_reported_with_its_victim(
    body: str, expected: tuple[Any, ...]
) -> None:
    report = watched(body)
    assert report.findings, report
    assert summary_of(report.findings[0]) == expected
    assert report.findings[0].first
    assert report.status == "tripped"
    assert all(finding.cause in CAUSES and finding.trips and finding.hint for finding in report.findings)
    json.dumps(report.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "body",
    [
        # A kernel may return a view of its operand.
        f"%h = Neg(%x)\n%v = {T}View(%h)\n%t = Exp(%x)\n%u = Mul(%t, %t)\n%y = Add(%v, %u)",
        "%h = Neg(%x)\n%y = RandomNormalLike(%h)",
        '%e = nncdbg.Empty(dtype="f32", shape=[3], init="zeros")\n%y = Add(%e, %x)',
        "%n = Log(%x)\n%m = Sub(%n, %n)\n%y = Add(%m, %x)",
    ],
    ids=["view", "random", "zeros", "nan"],
)
def test_a_correct_kernel_is_not_reported(body: str) -> None:
    report = watched(body)
    assert (report.status, report.findings, report.unchecked) == ("ok", [], [])


def test_the_evidence_names_victim_culprit_and_both_live_ranges() -> None:
    body = "%h = Neg(%x)\n%a = Exp(%x)\n%b = Abs(%a)\n%y = Add(%h, %b)"
    plan = placed(program(body), h=0, a=64, b=0, y=128)
    (finding,) = [each for each in watched(body, plan).findings if each.kind == "reuse"]
    assert summary_of(finding) == ("reuse", "wrong reuse", (6, "Add"), (5, "Abs"))
    assert (finding.site.value, finding.other.value if finding.other else None) == ("h", "b")
    assert finding.evidence == (
        "%h is live from line 3 to line 6; %b reused its bytes 0..12 at line 5 "
        "and is live from line 5 to line 6"
    )
    assert finding.hint == "place %b at other bytes, or free %h only after its last reader"
    assert [(each.name, each.type) for each in finding.inputs] == [("h", "f32[3]"), ("b", "f32[3]")]
    assert finding.reaches_output


def placed(model: nncdbg.Program, **offsets: int) -> PlacedPlan:
    rows = {name: {"offset": offset, "size": 12} for name, offset in offsets.items()}
    return parse_plan(json.dumps({"nncdbg_plan": 1, "graphs": {"main": rows}}), model)


BRANCH = """%no = Greater([1.0], 2.0)
if %no @then {
%h = Neg(%x)
%a = Exp(%x)
%b = Abs(%a)
%t = Add(%h, %b)
yield %t
} else @else {
yield %x
} -> (%y: f32[3])"""

WRONG_PLANS = {
    "right": ({}, []),
    "live at the same time": (
        {"a": [8, 12]},
        ["%h (live from line 5 to line 8) and %a (live from line 6 to line 7) share bytes 8..12"],
    ),
    "too small": ({"h": [0, 8]}, ["%h needs 12 bytes, but its place has 8"]),
    "not a multiple of the element size": ({"h": [2, 12]}, ["%h is at byte 2, which is not a multiple of 4"]),
    "in place, but shifted": (
        {"b": [68, 12]},
        [
            "Abs writes %b over its operand %a (live from line 6 to line 7) while it reads the operand: "
            "they share bytes 68..76"
        ],
    ),
}


@pytest.mark.parametrize(("changes", "evidence"), WRONG_PLANS.values(), ids=WRONG_PLANS.keys())
def test_a_wrong_plan_is_reported_for_statements_that_do_not_run(
    changes: dict[str, list[int]], evidence: list[str]
) -> None:
    # The branch is not taken, so none of its statements runs.
    model = program(BRANCH)
    right = {"h": [0, 12], "a": [64, 12], "b": [64, 12], "t": [128, 12]}
    entries = {name: {"offset": offset, "size": size} for name, (offset, size) in (right | changes).items()}
    plan = parse_plan(json.dumps({"nncdbg_plan": 1, "graphs": {"main/1/0": entries}}), model)
    report = watch_memory(model, {"x": X}, plan=plan)
    assert [finding.evidence for finding in report.findings] == evidence
    assert all(summary_of(finding)[:2] == ("plan", "wrong plan") for finding in report.findings)
    assert any("not computed in this run" in note for note in report.unchecked)


def test_a_plan_that_frees_a_value_too_early_is_reported() -> None:
    model = program("%h = Neg(%x)\n%a = Exp(%x)\n%y = Add(%h, %a)")
    row = {"offset": 0, "size": 12, "lives": [3, 4]}
    plan = parse_plan(json.dumps({"nncdbg_plan": 1, "graphs": {"main": {"h": row}}}), model)
    report = watch_memory(model, {"x": X}, plan=plan)
    evidence = "%h is live from line 3 to line 5; the plan frees it after line 4"
    assert [finding.evidence for finding in report.findings] == [evidence]
    assert report.unchecked == [
        "plan: values without a place in the plan, which used separate memory: %a of main, %y of main"
    ]


def test_a_layer_called_twice_overwrites_its_first_result() -> None:
    model = nncdbg.parse("""opset 18
graph @main(%x: f32[3]) -> (%y: f32[3]) {
  %a: f32[3] = @layer(%x)
  %b: f32[3] = @layer(%a)
  %y = Sub(%b, %a)
  return %y
}

graph @layer(%i: f32[3]) -> (%o: f32[3]) {
  %o = Tanh(%i)
  return %o
}
""")
    rows = {"layer": {"o": {"offset": 0, "size": 12}}}
    plan = parse_plan(json.dumps({"nncdbg_plan": 1, "graphs": rows}), model)
    finding = watch_memory(model, {"x": X}, plan=plan).findings[0]
    assert summary_of(finding) == ("reuse", "wrong reuse", (5, "Sub"), (10, "Tanh"))
    assert finding.evidence.startswith("%o (read as %a) is live from line 10 to line ")


def test_a_wrong_read_in_a_loop_has_its_iteration() -> None:
    model = nncdbg.parse("""opset 18
graph @main(%x: f32[3]) -> (%y: f32[3]) {
  %h = Neg(%x)
  while @w (%s: f32[3] = %x) times 3 {
    %t = Add(%s, %h)
    %u = Tanh(%t)
    next %s = %u
  } -> (%y: f32[3] = %s)
  return %y
}
""")
    rows = {"main": {"h": {"offset": 0, "size": 12}}, "main/1/0": {"u": {"offset": 0, "size": 12}}}
    plan = parse_plan(json.dumps({"nncdbg_plan": 1, "graphs": rows}), model)
    finding = watch_memory(model, {"x": X}, plan=plan).findings[0]
    assert summary_of(finding) == ("reuse", "wrong reuse", (5, "Add"), (6, "Tanh"))
    assert (finding.iteration, finding.count, finding.site.value) == ((1,), 2, "h")


def test_a_write_into_an_input_is_an_error_of_the_run() -> None:
    report = watched(f"%s = {T}Spoil(%x)\n%y = Add(%x, %s)")
    assert report.status == "failed"
    assert "read-only" in str(report.error)
    assert report.unchecked == [
        "statements after line 3, reuse, uninitialized, guard, state: the run did not finish"
    ]


def test_the_memory_watch_accepts_no_allocator() -> None:
    with pytest.raises(nncdbg.UsageError, match="cannot be used with --allocator"):
        watch_memory(program("%y = Neg(%x)"), {"x": X}, allocator="arena")


# -- no false alarms -----------------------------------------------------------------------------


@FEW
@given(runnable())
def test_a_correct_program_without_a_plan_has_no_finding(text: str) -> None:
    report = watch_memory(nncdbg.parse(text), {"x": X, "z": X[::-1].copy()})
    assert (report.findings, report.error) == ([], None)


@FEW
@given(runnable())
def test_a_generated_plan_reads_back_and_has_no_finding(text: str) -> None:
    model, inputs = nncdbg.parse(text), {"x": X, "z": X[::-1].copy()}
    plan = memory_plan(model, inputs)
    assert parse_plan(plan_text(plan), model).places == plan.places
    report = watch_memory(model, inputs, plan=plan)
    assert (report.findings, report.error) == ([], None)


@pytest.mark.parametrize("seed", range(12))
def test_generated_plans_of_random_nets_have_no_finding(seed: int, tmp_path: Path) -> None:
    random, numbers = Random(seed), np.random.default_rng(seed)
    model = nncdbg.parse(random_net(random, 7))
    shapes = {"x": (4, 6), "y": (4, 6), "m": (6, 6)}
    inputs = {name: numbers.standard_normal(shape).astype("f") for name, shape in shapes.items()}
    for reuse in (True, False):
        write_plan(memory_plan(model, inputs, reuse=reuse), tmp_path / "plan.json")
        report = watch_memory(model, inputs, plan=tmp_path / "plan.json")
        assert (report.findings, report.error) == ([], None)
