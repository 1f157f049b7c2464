"""Reduction: the smallest program and data with the same finding, the state file, and interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.frontends.program_folder import open_program_folder
from nncdbg.errors import LoadError, RunError, UsageError
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.reduction.case import ReducedCase
from nncdbg.nan_watch.reduction.finding_identity import FindingSignature, Probe, found_first
from nncdbg.nan_watch.reduction.reducing import ReductionJob, load_state, origin_of, save_state, verify
from nncdbg.nan_watch.reduction.reduction import minimized

pytestmark = pytest.mark.usefixtures("forked_processes")

HEAD = "#nncdbg 1\nopset 21\n"

CHAIN = (
    HEAD
    + """graph @main(%x: f32[N,16]) -> (%y) {
  %w: f32[16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
  %a = Mul(%x, %w)
  %b = Relu(%a)
  %m = ReduceMean(%b, [1], keepdims=1)
  %c = Sub(%b, %m)
  %d = Mul(%c, 0.0)
  %l = Log(%d)
  %e = Neg(%l)
  %y = Softmax(%e)
  return %y
}
"""
)

LOOP = (
    HEAD
    + """graph @main(%x: f32[4]) -> (%y) {
  while @loop (%i: i64[] = 0, %s = %x) {
    %go = Less(%i, 10)
    break unless %go
    %d = Sub(%s, 1.0)
    %r = Sqrt(%d)
    %m = Mul(%r, 0.0)
    %s1 = Add(%d, %m)
    %i1 = Add(%i, 1)
    next %i = %i1, %s = %s1
  } -> (%y = %s)
  return %y
}
"""
)

BRANCH = (
    HEAD
    + """graph @main(%x: f32[4], %up: bool[]) -> (%y) {
  %z = Sub(%x, %x)
  if %up {
    %a = Div(%z, %z)
    yield %a
  } else {
    %b = Identity(%x)
    yield %b
  } -> (%y)
  return %y
}
"""
)

LAYERS = (
    HEAD
    + """graph @main(%x: f32[4]) -> (%y) {
  %a = @half(%x)
  %b = @half(%a)
  %y = Neg(%b)
  return %y
}
graph @half(%v) -> (%h) {
  %s = Sub(%v, 0.5)
  %h = Log(%s)
  return %h
}
"""
)

UNINITIALIZED = (
    HEAD
    + """graph @main(%x: f32[8]) -> (%y) {
  %a = Relu(%x)
  %buffer = nncdbg.Empty(dtype="f32", init="none", shape=[8])
  %b = Neg(%a)
  %c = Add(%b, %buffer)
  %y = Exp(%c)
  return %y
}
"""
)

BAD_INPUT = (
    HEAD
    + """graph @main(%x: f32[8,4], %k: f32[4]) -> (%y) {
  %a = Mul(%x, %k)
  %b = Add(%a, 1.0)
  %c = Relu(%b)
  %y = Neg(%c)
  return %y
}
"""
)

UNINITIALIZED_CONDITION = (
    HEAD
    + """graph @main(%x: f32[8]) -> (%y) {
  %go = nncdbg.Empty(dtype="bool", init="none", shape=[])
  %a = Relu(%x)
  %b = Neg(%a)
  if %go {
    %c = Exp(%b)
    yield %c
  } else {
    %d = Tanh(%b)
    yield %d
  } -> (%y)
  return %y
}
"""
)


def nan_in(*shape: int, at: tuple[int, ...]) -> Any:
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    array[at] = np.nan
    return array


RANDOM = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)

PROGRAMS: dict[str, tuple[str, dict[str, Any], str, list[str], int]] = {
    # name: text, inputs, kind, remaining ops, maximum bytes of data
    "chain": (CHAIN, {"x": RANDOM}, "inf", ["Log"], 4),
    "loop": (LOOP, {"x": np.full(4, 2.0, np.float32)}, "nan", ["Sqrt"], 4),
    "branch": (BRANCH, {"x": np.ones(4, np.float32), "up": True}, "nan", ["Div"], 4),
    "layers": (LAYERS, {"x": np.array([0.6, 3, 3, 3], np.float32)}, "nan", ["Log"], 4),
    "uninitialized": (UNINITIALIZED, {"x": RANDOM[0, :8]}, "uninitialized", ["nncdbg.Empty", "Add"], 4),
    "bad input": (BAD_INPUT, {"x": nan_in(8, 4, at=(5, 2)), "k": np.ones(4, np.float32)}, "nan", ["Mul"], 8),
    "condition": (
        UNINITIALIZED_CONDITION,
        {"x": RANDOM[0, :8]},
        "uninitialized",
        ["nncdbg.Empty", "if"],
        32,
    ),
}


def job_of(text: str, inputs: dict[str, Any], state: Path | None = None, **fields: Any) -> ReductionJob:
    program, settings = nncdbg.parse(text), WatchConfiguration(**fields)
    return ReductionJob(program, settings.debugger(program, inputs).inputs, settings, state)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_smallest_program_and_data_are_found(tmp_path: Path, name: str) -> None:
    text, inputs, kind, ops, size = PROGRAMS[name]
    job = job_of(text, inputs)
    before = found_first(job.program, job.inputs, job.configuration)
    reduced = job.run(tmp_path / "b")
    assert (before.kind, reduced.finding.kind) == (kind, kind)
    assert reduced.signature == FindingSignature.of(before) == FindingSignature.of(reduced.finding)
    opened = open_program_folder(tmp_path / "b")
    assert [node.op for node in opened.program.graphs["main"].nodes] == ops
    assert reduced.case.bytes <= size
    again = found_first(opened.program, opened.inputs, opened.configuration(WatchConfiguration))
    assert FindingSignature.of(again) == FindingSignature.of(before)


@pytest.mark.parametrize("allocator", ["plain", "arena", "poison"])
def test_a_finding_is_reduced_with_any_allocator(tmp_path: Path, allocator: str) -> None:
    reduced = job_of(CHAIN, {"x": RANDOM}, allocator=allocator).run(tmp_path / "b")
    assert [node.op for node in reduced.case.nodes] == ["Log"]
    assert open_program_folder(tmp_path / "b").supplied["allocator"] == allocator


def test_the_value_of_the_finding_keeps_its_name(tmp_path: Path) -> None:
    reduced = job_of(CHAIN, {"x": RANDOM}).run(tmp_path / "b")
    assert reduced.finding.site.value == "l"


def test_the_finding_of_a_custom_gate_is_reduced(tmp_path: Path) -> None:
    text = (
        HEAD
        + """graph @main(%x: f32[4]) -> (%y) {
  %a = Mul(%x, 100.0)
  %b = Exp(%a)
  %y = Neg(%b)
  return %y
}
"""
    )
    reduced = job_of(text, {"x": np.full(4, 0.1, np.float32)}, fail_on=["max>1e4"]).run(tmp_path / "b")
    assert reduced.signature.kind == "max"
    assert [node.op for node in reduced.case.nodes] == ["Exp"]


def test_a_finding_of_several_statements_is_reduced(tmp_path: Path) -> None:
    """The gate `depth` needs the statements that cause the growth."""
    statements = "\n".join(f"  %h{i + 1} = Mul(%h{i}, 30.0)\n  %s{i} = Neg(%h{i})" for i in range(6))
    text = HEAD + f"graph @main(%h0: f32[4]) -> (%h6) {{\n{statements}\n  return %h6\n}}\n"
    reduced = job_of(text, {"h0": np.ones(4, np.float32)}, fail_on=["depth:1e5"]).run(tmp_path / "b")
    assert {node.op for node in reduced.case.nodes} == {"Mul"}
    assert 2 <= reduced.case.statements <= 5


def test_a_program_without_a_finding_is_an_error() -> None:
    text = HEAD + "graph @main(%x: f32[4]) -> (%y) {\n  %y = Relu(%x)\n  return %y\n}\n"
    with pytest.raises(UsageError, match="nothing to reduce|no finding"):
        job_of(text, {"x": np.ones(4, np.float32)}).run(Path("nowhere"))


# -- the state ---------------------------------------------------------------------------------------


class Stopped(KeyboardInterrupt):
    """Ctrl-C at a chosen number of runs."""


def interrupted_after(runs: int, job: ReductionJob) -> None:
    def report_progress(progress: Any) -> None:
        if progress.runs == runs:
            raise Stopped

    job.on_progress = report_progress


@pytest.mark.parametrize("runs", [3, 6, 9])
def test_a_reduction_continues_from_its_state(tmp_path: Path, runs: int) -> None:
    whole = job_of(CHAIN, {"x": RANDOM}).run(tmp_path / "whole")
    state = tmp_path / "state"
    first = job_of(CHAIN, {"x": RANDOM}, state)
    interrupted_after(runs, first)
    so_far = first.run(tmp_path / "b")
    assert so_far.interrupted
    assert so_far.signature == whole.signature
    assert so_far.case.bytes > whole.case.bytes
    assert open_program_folder(tmp_path / "b").program.graphs["main"].nodes[-1].op == "Log"
    second = job_of(CHAIN, {"x": RANDOM}, state).run(tmp_path / "b")
    assert not second.interrupted
    assert second.case.bytes == whole.case.bytes
    assert second.runs > so_far.runs


def test_a_finished_state_is_not_reduced_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = job_of(CHAIN, {"x": RANDOM}, state).run(tmp_path / "b")
    second = job_of(CHAIN, {"x": RANDOM}, state).run(tmp_path / "b")
    assert second.runs == first.runs + 1


def test_an_interruption_before_the_first_finding_writes_nothing(tmp_path: Path) -> None:
    job = job_of(CHAIN, {"x": RANDOM}, tmp_path / "state")
    interrupted_after(0, job)
    with pytest.raises(KeyboardInterrupt):
        job.run(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["program", "inputs", "settings"])
def test_the_state_of_another_reduction_is_an_error(tmp_path: Path, change: str) -> None:
    state = tmp_path / "state"
    job_of(CHAIN, {"x": RANDOM}, state).run(tmp_path / "b")
    text = CHAIN.replace("Softmax", "Relu") if change == "program" else CHAIN
    inputs = {"x": RANDOM + 1 if change == "inputs" else RANDOM}
    fields = {"seed": 1} if change == "settings" else {}
    with pytest.raises(UsageError, match="is for a different model, inputs or options"):
        job_of(text, inputs, state, **fields).run(tmp_path / "b")


@pytest.mark.parametrize("content", [b"", b"text", b"\xff" * 200])
def test_a_damaged_state_is_an_error(tmp_path: Path, content: bytes) -> None:
    state = tmp_path / "state"
    state.write_bytes(content)
    with pytest.raises(LoadError):
        job_of(CHAIN, {"x": RANDOM}, state).run(tmp_path / "b")


def test_another_safetensors_file_is_an_error(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.ones(3)}, tmp_path / "w.safetensors")
    with pytest.raises(LoadError, match="is not the state file of a reduction"):
        job_of(CHAIN, {"x": RANDOM}, tmp_path / "w.safetensors").run(tmp_path / "b")


def test_a_state_contains_the_whole_case(tmp_path: Path) -> None:
    job = job_of(LAYERS, {"x": np.array([0.6, 3, 3, 3], np.float32)})
    finding = found_first(job.program, job.inputs, job.configuration)
    weights = {"w": np.arange(100, dtype=np.float32)}
    program = nncdbg.parse(HEAD + "graph @main(%x: f32[100]) -> (%y) {\n  %y = Log(%x)\n  return %y\n}\n")
    case = ReducedCase(program.graphs["main"].nodes, ("y",), {}, {"x": weights["w"]}, program.opsets)
    origin = origin_of(job.program, job.inputs, job.configuration)
    save_state(tmp_path / "s", origin, case, FindingSignature.of(finding), 5)
    saved, document = load_state(tmp_path / "s", origin)
    assert (document.signature, document.runs, document.done) == (FindingSignature.of(finding), 5, False)
    assert saved.program() == case.program()
    assert saved.constants["x"].tobytes() == weights["w"].tobytes()


# -- the command -------------------------------------------------------------------------------------


@pytest.fixture
def command(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> Callable[..., tuple[int, str, str]]:
    (tmp_path / "chain.nnc").write_text(CHAIN)
    np.save(tmp_path / "x.npy", RANDOM)

    return partial(command, "reduce")


def test_the_command_prints_the_reduced_program(command: Any, tmp_path: Path) -> None:
    code, out, err = command("chain.nnc", "--input", "x=x.npy")
    assert code == 0
    assert "Log(%d)" in out
    assert "1 statement and 4 bytes of data" in out
    assert err.splitlines()[-1] == "note: `nncdbg chain.reduced` opens the bundle at the finding"


def test_the_command_prints_json(command: Any, tmp_path: Path) -> None:
    code, out, err = command("chain.nnc", "--input", "x=x.npy", "--json", "-o", "out")
    document = json.loads(out)
    assert (code, document["status"], document["statements"], document["bytes"]) == (0, "ok", 1, 4)
    assert document["bundle"] == "out"
    assert document["finding"]["op"] == "Log"


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (["none.nnc"], 3, "there is no file"),
        (["chain.nnc", "--input", "q=zeros"], 2, 'has no input "q"'),
        (["chain.nnc", "--fail-on", "nann"], 2, "did you mean nan"),
        (["chain.nnc", "--fail-on", "guard"], 2, "nothing to reduce"),
        (["chain.nnc", "-o", "x.npy"], 2, "the path is a file"),
        (["chain.nnc", "--state", "x.npy"], 3, "x.npy"),
        (["chain.nnc", "--state", "none/state"], 3, "cannot write"),
        ([], 2, "MODEL"),
    ],
)
def test_wrong_use_is_an_error(command: Any, arguments: list[str], expected: int, message: str) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (expected, "")
    assert message in err


def test_a_bundle_that_does_not_reproduce_the_finding_is_an_error(tmp_path: Path) -> None:
    job = job_of(CHAIN, {"x": RANDOM})
    reduced = job.run(tmp_path / "b")
    verify(tmp_path / "b", reduced.signature, job.configuration)
    other = FindingSignature("nan", "Sqrt", "square root of a negative number")
    with pytest.raises(RunError, match="does not reproduce the finding in a new process"):
        verify(tmp_path / "b", other, job.configuration)


SLOW = (
    HEAD
    + """graph @main(%x: f32[64,64]) -> (%y) {
  %n = Sub(%x, %x)
  %l = Log(%n)
  while @spin (%i: i64[] = 0) {
    %go = Less(%i, 30000)
    break unless %go
    %i1 = Add(%i, 1)
    next %i = %i1
  } -> ()
  %y = Neg(%l)
  return %y
}
"""
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_reduction(tmp_path: Path, number: int) -> None:
    (tmp_path / "slow.nnc").write_text(SLOW.replace("30000", "30000000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "nncdbg", "reduce", "slow.nnc"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    process.stderr.readline()  # the note on the random input: the reduction has started
    time.sleep(1)
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in out + err


SLOW_KERNEL = """
import time
import nncdbg

@nncdbg.op("com.example.Slow")
def slow(xp, x):
    # the logarithm, after a while
    time.sleep(0.3)
    return xp.log(x)
"""


def test_a_kill_leaves_the_best_state_so_far(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_KERNEL)
    (tmp_path / "slow.nnc").write_text(
        HEAD + "graph @main(%x: f32[64,64]) -> (%y) {\n  %a = Neg(%x)\n  %y = com.example.Slow(%a)\n"
        "  return %y\n}\n"
    )
    np.save(tmp_path / "x.npy", np.ones((64, 64), np.float32))
    arguments = ["slow.nnc", "--input", "x=x.npy", "--op-library", "slow.py", "--state", "s", "--json"]
    command = [sys.executable, "-m", "nncdbg", "reduce", *arguments]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "s").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert (tmp_path / "s").exists()
    assert not (tmp_path / "slow.reduced").exists()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    document = json.loads(done.stdout)
    assert (done.returncode, document["status"], document["bytes"]) == (0, "ok", 4), done.stderr
    assert document["finding"]["op"] == "com.example.Slow"


# -- delta debugging -----------------------------------------------------------------------------------


@pytest.mark.parametrize("needed", [[], [0], [9], [0, 9], [3, 4], [1, 4, 8], list(range(10))])
def test_minimized_keeps_the_needed_elements(needed: list[int]) -> None:
    assert minimized(range(10), lambda part: {*needed} <= {*part}) == needed


def test_minimized_ends_after_the_given_number_of_tests() -> None:
    tests = 0

    def test(part: Any) -> bool:
        nonlocal tests
        tests += 1
        return {3, 77} <= {*part}

    found = minimized(range(100), test, most=7)
    assert tests == 7
    assert {3, 77} <= {*found}


def test_a_case_that_cannot_run_has_no_finding() -> None:
    program = nncdbg.parse(HEAD + "graph @main(%x: f32[2]) -> (%y) {\n  %y = Log(%x)\n  return %y\n}\n")
    probe = Probe(FindingSignature("inf", "Log", ""), WatchConfiguration())
    case = ReducedCase(program.graphs["main"].nodes, ("y",), {"x": np.ones(2, bool)}, {}, program.opsets)
    assert not probe(case)
