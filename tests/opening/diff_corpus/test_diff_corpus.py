"""Two programs compared with each case of a folder: verdicts, first statements, failures and workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

import nncdbg
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.corpus.engines import CaseExecution
from nncdbg.opening.corpus.source import CorpusProgram
from nncdbg.opening.diff import SideB
from nncdbg.opening.diff_corpus import DiffTask, run_diff_corpus
from nncdbg.opening.diff_corpus_report import DiffCase
from tests.nan_watch.corpus.test_corpus import CRASHING

pytestmark = pytest.mark.usefixtures("forked_processes", "forked_workers")

A = """#nncdbg 1
graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %h = Relu(%x)
  %y = Exp(%h)
  return %y
}
"""
B = A.replace("Relu(%x)", "Abs(%x)")
CLIPPED = A.replace("  %y = Exp(%h)", "  %z = Abs(%h)\n  %y = Exp(%z)")


def corpus(folder: Path, **cases: Any) -> Path:
    """Write a folder of .npz files with %x."""
    found = folder / "cases"
    found.mkdir()
    for name, x in cases.items():
        np.savez(found / f"{name}.npz", x=np.float32(x))
    return found


POSITIVE, NEGATIVE = np.arange(4), -np.arange(4)


@pytest.fixture
def threads() -> Iterator[Executor]:
    """Cases in this process: processes that run two small cases take a second to start."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.mark.parametrize("executor", ["processes", "threads", "dask"])
def test_each_case_has_the_verdict_of_its_own_diff(tmp_path: Path, executor: str) -> None:
    """The status and the first statement of a case are those of `nncdbg.diff` with its inputs."""
    given = {f"c{i:02}": np.roll(POSITIVE, i) - i for i in range(7)}
    folder = corpus(tmp_path, **given)
    a, b = nncdbg.parse(A), nncdbg.parse(B)
    with ThreadPoolExecutor(2) as threads:
        chosen = threads if executor == "threads" else executor
        report = nncdbg.diff_corpus(a, b, inputs_dir=folder, jobs=2, executor=chosen)
    assert [case.name for case in report.cases] == [f"{name}.npz" for name in given]
    for case, x in zip(report.cases, given.values(), strict=True):
        alone = nncdbg.diff(a, b, {"x": np.float32(x)})
        assert isinstance(case, DiffCase)
        assert (case.status, case.diverging, case.ops) == (alone.status, alone.diverging, sum(alone.ops))
        for mine, other in ((case.cause, alone.cause), (case.first, alone.first), (case.worst, alone.worst)):
            assert mine == other
    assert {case.status for case in report.cases} == {"equal", "diverged"}
    assert report.status == "diverged"


def test_the_report_counts_first_statements(tmp_path: Path) -> None:
    folder = corpus(tmp_path, a=POSITIVE, b=NEGATIVE, c=NEGATIVE * 2)
    np.savez(folder / "d.npz", xx=np.zeros(4, np.float32))
    (folder / "e.npz").write_bytes(b"PK\x03\x04 cut off")
    (folder / "notes.txt").write_text("")
    report = nncdbg.diff_corpus(nncdbg.parse(A), nncdbg.parse(B), inputs_dir=folder, jobs=2)
    assert report.counts == {"diverged": 2, "equal": 1, "unfit": 1, "unreadable": 1}
    assert [case.name for case in report.differing] == ["b.npz", "c.npz"]
    (group,) = report.firsts
    assert (group.site.value, group.site.op, group.count, group.case.name) == ("h", "Relu", 2, "b.npz")
    assert report.notes == ["ignored files that are not cases: notes.txt"]
    assert (report.exit_code(), report.trips(), report.equal) == (3, True, False)
    lines = str(report).splitlines()
    assert lines[0] == "2 of 5 inputs differ: 2 diverged, 1 equal, 1 unfit, 1 unreadable"
    assert lines[1].startswith(
        "b.npz: diverged: first %h f32[4] = Relu, line 3 of @main; Relu / Abs; at most"
    )
    assert lines[-1] == "first difference of 2 inputs: %h f32[4] = Relu, line 3 of @main"
    document = json.loads(json.dumps(report.as_dict()))
    assert document["firsts"] == [{"site": group.site.as_dict(), "count": 2, "case": "b.npz"}]
    assert [case["status"] for case in document["cases"]] == [case.status for case in report.cases]


def test_equal_programs_agree_in_every_case(tmp_path: Path, threads: Executor) -> None:
    folder = corpus(tmp_path, a=POSITIVE, b=NEGATIVE)
    report = nncdbg.diff_corpus(nncdbg.parse(A), nncdbg.parse(CLIPPED), inputs_dir=folder, executor=threads)
    assert (report.status, report.equal, report.exit_code(strict=True)) == ("equal", True, 0)
    assert str(report) == "0 of 2 inputs differ: 2 equal"


def test_one_program_in_two_element_types(tmp_path: Path, threads: Executor) -> None:
    """A case with large numbers overflows in f16; the tolerance applies to every case."""
    folder = corpus(tmp_path, large=POSITIVE * 5, small=POSITIVE / 8)
    program = nncdbg.parse(A)
    report = nncdbg.diff_corpus(program, inputs_dir=folder, dtype_b="f16", executor=threads)
    assert [case.status for case in report.cases] == ["diverged", "equal"]
    tight = nncdbg.diff_corpus(
        program, inputs_dir=folder, dtype_b="f16", rtol=1e-9, atol=0.0, executor=threads
    )
    assert [case.status for case in tight.cases] == ["diverged", "diverged"]


def test_inputs_that_no_case_has_are_shared_and_reported(tmp_path: Path, threads: Executor) -> None:
    text = A.replace("(%x: f32[4])", "(%x: f32[4], %k: f32[4])").replace("Exp(%h)", "Mul(%h, %k)")
    folder = corpus(tmp_path, a=POSITIVE, b=POSITIVE)
    program = nncdbg.parse(text)
    drawn = nncdbg.diff_corpus(program, inputs_dir=folder, allocator_b="arena", executor=threads)
    assert drawn.equal
    assert any("input %k f32[4] drawn at random" in note for note in drawn.notes)
    k = POSITIVE.astype(np.float32)
    given = nncdbg.diff_corpus(
        program, None, {"k": k}, inputs_dir=folder, executor=threads, allocator_b="arena"
    )
    assert (given.equal, given.notes) == (True, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend_b": "nunpy"}, "nunpy"),
        ({"allocator_b": "none"}, "none"),
        ({"dtype_b": "f15"}, "f15"),
        ({"executor": "dusk"}, 'unknown executor "dusk"'),
        ({"jobs": 0}, "invalid number of jobs: 0"),
        ({"budget": 0}, "invalid budget"),
    ],
)
def test_settings_that_fit_no_case_are_an_error(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(nncdbg.UsageError, match=message):
        nncdbg.diff_corpus(nncdbg.parse(A), nncdbg.parse(B), inputs_dir=corpus(tmp_path, a=[1]), **change)


def test_a_budget_leaves_cases_out(tmp_path: Path) -> None:
    folder = corpus(tmp_path, a=POSITIVE)
    report = nncdbg.diff_corpus(nncdbg.parse(A), nncdbg.parse(B), inputs_dir=folder, jobs=1, budget=1e-9)
    assert report.unchecked == ["cases: 1 of 1, because the budget of 1e-09 s expired: a.npz"]
    assert "no case finished" in str(report.error)
    assert report.exit_code() == 4
    assert "not compared: cases: 1 of 1, because" in str(report)


@pytest.mark.parametrize("executor", ["processes", "dask"])
def test_a_crash_on_one_side_is_that_of_its_case(tmp_path: Path, executor: str) -> None:
    library = tmp_path / "crash.py"
    library.write_text(CRASHING)
    path = tmp_path / "model.nnc"
    path.write_text(A.replace("Exp(%h)", "test.Crash(%h)").replace("%y = ", "%y: f32[4] = "))
    numbers = (10, 11, 12, 14, 16, 18)
    folder = corpus(tmp_path, **{str(number): np.full(4, number) for number in numbers})
    source = CorpusProgram(RunConfiguration(program=str(path), op_libraries=[str(library)]))
    task = DiffTask(source, side_b=SideB(allocator="arena"))
    report = run_diff_corpus(task, folder, CaseExecution(2, executor))
    statuses = [case.status for case in report.cases]
    assert statuses == ["equal", "equal", "equal", "crashed", "failed", "equal"]
    assert report.exit_code() == 4
    assert "14.npz: crashed: the" in str(report)


def test_dask_has_no_dashboard_and_prints_no_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """A second cluster on the machine does not find port 8787 in use."""
    with distributed.LocalCluster(n_workers=0, dashboard_address=":8787", silence_logs="CRITICAL"):
        recwarn.clear()
        folder = corpus(tmp_path, a=POSITIVE)
        report = nncdbg.diff_corpus(
            nncdbg.parse(A), nncdbg.parse(A), inputs_dir=folder, jobs=1, executor="dask"
        )
    assert report.equal
    assert not [warning for warning in recwarn if "already in use" in str(warning.message)]


@pytest.mark.parametrize("kernels", [{"Foo": "torch"}, {"Relu": "nothing"}])
def test_a_wrong_kernel_is_one_error_and_no_verdict_of_each_case(
    tmp_path: Path, kernels: dict[str, str], threads: Executor
) -> None:
    folder = corpus(tmp_path, a=POSITIVE, b=NEGATIVE)
    program = nncdbg.parse(A)
    with pytest.raises(nncdbg.UsageError, match="Foo|Relu"):
        nncdbg.diff_corpus(program, program, inputs_dir=folder, kernels=kernels, executor=threads)
