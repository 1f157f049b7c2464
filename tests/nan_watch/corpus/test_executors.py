"""A corpus on executors: a real Dask cluster of two workers, and executors of the standard library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
from dask import config

import nncdbg
from nncdbg.nan_watch.records import Report
from nncdbg.opening.corpus import running
from nncdbg.opening.corpus.engines import PROCESSES
from tests.nan_watch.corpus.test_corpus import BAD, CRASHING, GOOD, corpus, crashing, model, statuses, watched

pytestmark = pytest.mark.usefixtures("forked_processes", "forked_workers")

RANDOM = """#nncdbg 1
graph @main() -> (%y: f32[4]) {
  %y = RandomUniform(shape=[4])
  return %y
}
"""

ONCE = """
    import pathlib
    mark = pathlib.Path({mark!r})
    if float(x.reshape(-1)[0]) == 19 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x + 0
"""


@pytest.fixture(scope="module")
def dask(forked_workers: None) -> Iterator[Executor]:
    """Return an executor on two worker processes; a lost worker is replaced, and its case is reported."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client.get_executor(pure=False)


def plain(report: Report) -> dict[str, Any]:
    """Return a report without its times."""
    fields = report.as_dict()
    del fields["seconds"]
    for case in fields["cases"]:
        del case["seconds"]
    return fields


@pytest.fixture
def spawned_workers() -> Iterator[None]:
    """Let the workers start as those of a user: they are killed and replaced, which once hung with forks."""
    with config.set({"distributed.worker.multiprocessing-method": "spawn"}):
        yield


def test_results_on_dask_equal_those_of_processes(tmp_path: Path, dask: Executor) -> None:
    cases = corpus(tmp_path, {f"{i:02}": BAD if i % 3 == 0 else GOOD * i for i in range(30)})
    (cases / "30.npz").write_bytes(b"PK\x03\x04 cut off")
    np.savez(cases / "31.npz", xx=np.float32(GOOD))
    reports, recordings = [], []
    for number, executor in enumerate((PROCESSES, dask)):
        file = tmp_path / f"{number}.json"
        report = watched(
            model(tmp_path), cases, "nan,max>1,dead:0.5", jobs=2, executor=executor, record_to=file
        )
        reports.append(plain(report))
        recordings.append(file.read_bytes())
    assert len(reports[0]["cases"]) == 32
    assert reports[0] == reports[1]
    assert recordings[0] == recordings[1]


@pytest.mark.usefixtures("spawned_workers")
def test_no_result_is_lost_when_workers_are_killed(tmp_path: Path) -> None:
    """A case that kills its worker once succeeds on the second attempt; one that always does is reported."""
    cases = corpus(tmp_path, {f"{i}": np.full((2, 4), i) for i in (10, 11, 12, 14, 18, 19, 20, 21)})
    path, library = crashing(tmp_path)
    once = ONCE.format(mark=str(tmp_path / "mark"))
    Path(library).write_text(CRASHING.replace("    return x + 0\n", once.lstrip("\n")))
    report = watched(path, cases, op_libraries=[library], jobs=2, executor="dask")
    found = statuses(report)
    assert found.pop("14.npz") == "crashed"
    assert (tmp_path / "mark").exists()
    assert found == dict.fromkeys(
        ("10.npz", "11.npz", "12.npz", "18.npz", "19.npz", "20.npz", "21.npz"), "ok"
    )
    crashed = next(case for case in report.cases if case.status == "crashed")
    assert crashed.error == "the case lost its worker 3 times (KilledWorker)"
    assert report.error is None
    assert report.exit_code == 4


def test_the_call_from_python_has_the_report_of_the_command(tmp_path: Path, dask: Executor) -> None:
    """`nncdbg.watch(executor=)` on a path and on a program in memory, as on own processes."""
    cases = corpus(tmp_path, {f"{i:02}": BAD if i % 3 == 0 else GOOD * i for i in range(12)})
    path = model(tmp_path)
    expected = plain(watched(path, cases, "nan,max>1", jobs=2))
    for source in (path, nncdbg.load(path), nncdbg.parse(Path(path).read_text())):
        for executor in ("processes", dask):
            report = nncdbg.watch(
                source, fail_on="nan,max>1", inputs_dir=cases, jobs=2, executor=executor, budget=600
            )
            assert {**plain(report), "model": path} == expected
            assert "%l" in str(report)


def test_runs_with_several_seeds_on_an_executor(dask: Executor) -> None:
    program = nncdbg.parse(RANDOM)
    alone = nncdbg.watch(program, runs=6, seed=3, fail_on="max>0.9")
    report = nncdbg.watch(program, runs=6, seed=3, fail_on="max>0.9", executor=dask, jobs=2)
    assert [case.name for case in report.cases] == [f"seed {seed}" for seed in range(3, 9)]
    assert plain(report) == plain(alone)


@pytest.mark.usefixtures("started_processes")
def test_a_script_without_a_guard_gets_a_hint(tmp_path: Path) -> None:
    """Dask workers import the script that starts their cluster."""
    corpus(tmp_path, {"a": GOOD})
    script = tmp_path / "script.py"
    script.write_text(
        f"import nncdbg\nnncdbg.watch({model(tmp_path)!r}, inputs_dir='cases', executor='dask', jobs=1)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "RunError: the local Dask cluster did not start: " in done.stderr
    assert done.stderr.rstrip().endswith("because Dask workers import the script")


def test_a_program_that_cannot_be_sent_is_an_error(tmp_path: Path) -> None:
    program = replace(nncdbg.load(model(tmp_path)), readers=(lambda: None,))
    with pytest.raises(nncdbg.UsageError, match="cannot send the program and its inputs"):
        nncdbg.watch(program, inputs_dir=corpus(tmp_path, {"a": GOOD}))


@pytest.mark.usefixtures("spawned_workers")
def test_no_result_of_a_batch_is_lost(tmp_path: Path) -> None:
    """Fast cases run in batches: after a loss, each case of the batch has the result of an own process."""
    cases = corpus(tmp_path, {f"{i}": np.full((2, 4), i) for i in range(100, 260)})
    path, library = crashing(tmp_path)
    mark = tmp_path / "mark"
    once = ONCE.format(mark=str(mark)).replace("== 19", "== 220")
    Path(library).write_text(CRASHING.replace("    return x + 0\n", once.lstrip("\n")))
    report = watched(path, cases, op_libraries=[library], jobs=2, executor="dask")
    assert mark.exists()
    assert [case.name for case in report.cases] == [f"{i}.npz" for i in range(100, 260)]
    assert statuses(report) == dict.fromkeys(statuses(report), "ok")
    assert plain(report) == plain(watched(path, cases, op_libraries=[library], jobs=2))


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_of_the_caller_stays_open(tmp_path: Path, kind: Any) -> None:
    cases = corpus(tmp_path, {f"{i}": BAD if i % 2 else GOOD for i in range(6)})
    named = {"mp_context": get_context("spawn")} if kind is ProcessPoolExecutor else {}
    with kind(2, **named) as executor:
        report = watched(model(tmp_path), cases, jobs=2, executor=executor)
        assert executor.submit(pow, 2, 3).result() == 8
    assert [*statuses(report).values()] == ["ok", "tripped"] * 3
    assert plain(report) == plain(watched(model(tmp_path), cases, jobs=2))


def test_a_broken_executor_keeps_the_finished_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_DURATION", 600.0)  # batches grow on a busy machine too
    cases = corpus(tmp_path, {f"{i}": np.full((2, 4), i) for i in (10, 11, 12, 14, 18)})
    path, library = crashing(tmp_path)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        report = watched(path, cases, op_libraries=[library], executor=executor)
    # The cases of the last batch have no results: the executor cannot run them again.
    assert [*statuses(report).values()] == ["ok"] * 2 + ["not run"] * 3
    assert "the executor lost a worker and cannot replace it: BrokenProcessPool" in str(report.error)
    assert report.exit_code == 4


def test_an_error_of_every_case_refuses_the_watch(tmp_path: Path, dask: Executor) -> None:
    cases = corpus(tmp_path, {"a": GOOD})
    with pytest.raises(nncdbg.LoadError, match="op library"):
        watched(model(tmp_path), cases, op_libraries=["missing.py"], executor=dask)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("dusk", 'unknown executor "dusk"'),
        ("dask=", 'invalid executor "dask="'),
        ("mpi=host", 'invalid executor "mpi=host"'),
        ("processes=2", 'invalid executor "processes=2"'),
    ],
)
def test_wrong_executors(tmp_path: Path, chosen: str, message: str) -> None:
    with pytest.raises(nncdbg.UsageError, match=message):
        watched(model(tmp_path), corpus(tmp_path, {"a": GOOD}), executor=chosen)


@pytest.mark.parametrize(("chosen", "library"), [("dask", "distributed"), ("ray", "ray"), ("mpi", "mpi4py")])
def test_a_missing_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    if chosen == "mpi":
        monkeypatch.setitem(sys.modules, "mpi4py.futures", None)
    with pytest.raises(nncdbg.UsageError, match=f"needs the library {library}") as caught:
        watched(model(tmp_path), corpus(tmp_path, {"a": GOOD}), executor=chosen)
    assert f'pip install "nncdbg[{chosen}]"' in str(caught.value.hint)
