"""A watch over many cases with real processes and files, including bad files and crashes."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import nncdbg
from nncdbg.nan_watch.corpus import WatchTask, run_corpus
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.recording import read
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.watching import WatchCriteria
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.corpus import running
from nncdbg.opening.corpus.cases import Case, case_files, case_inputs
from nncdbg.opening.corpus.engines import CaseExecution
from nncdbg.opening.corpus.source import CorpusProgram
from tests import processes

pytestmark = pytest.mark.usefixtures("forked_processes")

TEXT = """#nncdbg 1
graph @main(%x: f32[N,4], %k: f32[]) -> (%y: f32[N,4]) {
  %l = Log(%x)
  %r = Relu(%l)
  %y = Mul(%r, %k)
  return %y
}
"""


def model(folder: Path, text: str = TEXT) -> str:
    path = folder / "model.nnc"
    path.write_text(text)
    return str(path)


def corpus(folder: Path, cases: dict[str, Any]) -> Path:
    """Write a folder of .npz files with %x and %k."""
    found = folder / "cases"
    found.mkdir()
    for name, x in cases.items():
        np.savez(found / f"{name}.npz", x=np.float32(x), k=np.float32(2))
    return found


_OF_CONFIGURATION = ("op_libraries", "inputs", "backend", "allocator")
_OF_CRITERIA = ("max_findings", "good", "record_to")


def watched(model: str, folder: Path | None, gates: str = "nan", jobs: int = 1, **fields: Any) -> Report:
    """Return the report of a corpus, and check that none of its processes is left."""
    settings = {name: fields.pop(name) for name in _OF_CONFIGURATION if name in fields}
    named = {name: fields.pop(name) for name in _OF_CRITERIA if name in fields}
    execution = {name: fields.pop(name) for name in ("executor", "budget") if name in fields}
    configuration = RunConfiguration(program=model, given=frozenset(settings), **settings)
    task = WatchTask(CorpusProgram(configuration), WatchCriteria(Gates.of(gates), **named))
    report = run_corpus(task, folder, CaseExecution(jobs, **execution), **fields)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if children.exists():
        states = []
        for pid in children.read_text().split():
            with suppress(OSError):  # It has just ended.
                states.append(Path(f"/proc/{pid}/cmdline").read_text())
        assert not [state for state in states if "corpus.worker" in state]
    assert processes.alive() == []
    return report


def statuses(report: Report) -> dict[str, str]:
    return {case.name: case.status for case in report.cases}


GOOD, BAD = np.full((4, 4), 2.0), np.full((4, 4), -1.0)


def test_bad_cases_do_not_affect_others(tmp_path: Path) -> None:
    cases = corpus(tmp_path, {"a": GOOD, "b": BAD, "d": GOOD, "f": BAD, "h": GOOD})
    (cases / "c.npz").write_bytes(b"PK\x03\x04 cut off")
    np.savez(cases / "e.npz", x=np.float64(GOOD), k=np.float32(1))
    np.savez(cases / "g.npz", xx=np.float32(GOOD))
    (cases / "README.md").write_text("not a case")
    (cases / ".hidden.npz").write_text("")
    seen: list[tuple[int, int]] = []
    report = watched(model(tmp_path), cases, jobs=2, progress=lambda done, total: seen.append((done, total)))
    assert list(statuses(report).items()) == [
        ("a.npz", "ok"), ("b.npz", "tripped"), ("c.npz", "unreadable"), ("d.npz", "ok"), ("e.npz", "unfit"),
        ("f.npz", "tripped"), ("g.npz", "unfit"), ("h.npz", "ok"),
    ]  # fmt: skip
    errors = {case.name: case.error for case in report.cases if case.error}
    assert "%x has the wrong dtype: it needs f32, not f64" in errors["e.npz"]
    assert 'no input "xx"' in errors["g.npz"]
    assert "did you mean x?" in errors["g.npz"]
    birth = next(each for each in report.findings if each.role == "birth")
    assert (birth.site.value, birth.case, birth.count, birth.first) == ("l", "b.npz", 2, True)
    assert report.notes == ["ignored files that are not cases: README.md"]
    assert report.ops == sum(case.ops for case in report.cases) == 5 * 4
    assert seen[-1] == (8, 8)
    assert report.exit_code == 3  # a damaged file has a higher exit code than a gate
    assert json.dumps(report.as_dict())


def test_cases_are_sorted_by_name_with_any_number_of_jobs(tmp_path: Path) -> None:
    cases = corpus(tmp_path, {f"{i:02}": BAD if i % 3 == 0 else GOOD for i in range(12)})
    one, two = (watched(model(tmp_path), cases, "nan,max>1,dead:0.5", jobs=jobs) for jobs in (1, 3))
    assert [case.name for case in one.cases] == [f"{i:02}.npz" for i in range(12)]
    assert statuses(one) == statuses(two)
    plain = [[each.as_dict() for each in report.findings] for report in (one, two)]
    assert plain[0] == plain[1]
    maximum = next(each for each in one.findings if each.kind == "max" and each.site.value == "y")
    assert (maximum.case, maximum.count) == ("01.npz", 8)


CRASHING = """
import os, signal
import nncdbg

@nncdbg.op("test.Crash")
def crash(xp, x):
    if float(x.reshape(-1)[0]) == 13:
        os.kill(os.getpid(), signal.SIGSEGV)
    if float(x.reshape(-1)[0]) == 14:
        os.kill(os.getpid(), signal.SIGKILL)
    if float(x.reshape(-1)[0]) == 15:
        print("noise on standard output")
        os._exit(7)
    if float(x.reshape(-1)[0]) == 16:
        raise ValueError("no")
    if float(x.reshape(-1)[0]) == 17:
        import time
        time.sleep(600)
    return x + 0
"""


def crashing(folder: Path) -> tuple[str, str]:
    library = folder / "crash.py"
    library.write_text(CRASHING)
    text = TEXT.replace("Relu(%l)", "test.Crash(%x)").replace("Mul(%r, %k)", "Add(%r, %l)")
    return model(folder, text), str(library)


def test_a_crash_fails_only_its_case_and_has_its_op(tmp_path: Path) -> None:
    cases = corpus(tmp_path, {f"{i}": np.full((2, 4), i) for i in (12, 13, 14, 15, 16, 18)})
    path, library = crashing(tmp_path)
    report = watched(path, cases, op_libraries=[library], jobs=2)
    assert list(statuses(report).values()) == ["ok", "crashed", "crashed", "crashed", "failed", "ok"]
    errors = {case.name: case.error for case in report.cases}
    assert errors["13.npz"].startswith("the process was ended by SIGSEGV inside test.Crash at line 4 (%r; ")
    assert "SIGKILL, which may mean out of memory, inside test.Crash" in errors["14.npz"]
    assert "exited with code 7 inside test.Crash" in errors["15.npz"]
    assert "no" in errors["16.npz"]
    assert report.status == "failed"
    assert report.exit_code == 4


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_an_expired_budget_ends_the_watch_and_lists_the_cases_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = corpus(tmp_path, {f"{i}": np.full((2, 4), i) for i in (12, 17, 18, 19)})
    path, library = crashing(tmp_path)
    clock = Clock()
    monkeypatch.setattr(running, "time", clock)

    def progress(done: int, total: int) -> None:
        clock.now = 9.0 * done

    report = watched(path, cases, op_libraries=[library], budget=8, progress=progress)
    assert list(statuses(report).values()) == ["ok", "not run", "not run", "not run"]
    assert report.unchecked == ["cases: 3 of 4, because the budget of 8 s expired: 17.npz, 18.npz, 19.npz"]
    assert report.ok
    assert not report.interrupted


def test_a_watch_without_a_finished_case_fails(tmp_path: Path) -> None:
    report = watched(model(tmp_path), corpus(tmp_path, {"a": GOOD}), budget=0.01)
    assert statuses(report) == {"a.npz": "not run"}
    assert report.status == "failed"
    assert "no case finished: the budget of 0.01 s expired" in str(report.error)


def test_the_exit_code_is_that_of_the_worst_case() -> None:
    def code(*statuses: str, interrupted: bool = False) -> int:
        cases = [Case(name, name, error="" if name in ("ok", "not run") else "why") for name in statuses]
        return Report(cases=cases, interrupted=interrupted).exit_code

    assert code("ok", "not run") == 0
    assert code("ok", "unfit") == 2
    assert code("unfit", "unreadable", "ok") == 3
    assert code("unreadable", "crashed") == code("failed", "unfit") == 4
    assert code("failed", interrupted=True) == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_watch_with_the_finished_cases(tmp_path: Path, number: int) -> None:
    cases = corpus(tmp_path, {"a": BAD, "b": np.full((2, 4), 17), "c": GOOD})
    path, library = crashing(tmp_path)
    marker = tmp_path / "one_done"
    script = f"""
import json, sys
from pathlib import Path
from nncdbg.nan_watch.corpus import run_corpus
from nncdbg.nan_watch.corpus import WatchTask
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.watching import WatchCriteria
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.corpus.engines import CaseExecution
from nncdbg.opening.corpus.source import CorpusProgram
def progress(done, total):
    if done:
        Path({str(marker)!r}).touch()
source = CorpusProgram(RunConfiguration(program={path!r}, op_libraries=[{library!r}]))
task = WatchTask(source, WatchCriteria(Gates.of("nan")))
report = run_corpus(task, {str(cases)!r}, CaseExecution(1), progress=progress)
print(json.dumps(report.as_dict()))
sys.exit(report.exit_code)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    document = json.loads(out)
    assert document["interrupted"] is True
    assert [case["status"] for case in document["cases"]] == ["tripped", "not run", "not run"]
    assert document["findings"][0]["case"] == "a.npz"
    assert document["unchecked"] == ["cases: 2 of 3, because the run was interrupted: b.npz, c.npz"]


def test_measurements_are_judged_over_all_cases(tmp_path: Path) -> None:
    """A unit that is nonzero in one case is not dead; a recording covers all cases together."""
    rows = [np.ones((2, 4)) * np.where(np.arange(4) == i, 2.0 + i, 0.5) for i in range(4)]
    cases = corpus(tmp_path, {str(i): x for i, x in enumerate(rows)})
    good = tmp_path / "good.json"
    path = model(tmp_path)
    assert watched(path, cases, "dead:0.1", record_to=good).ok
    assert read(good).statements["main %l Log"].visits == 4
    three = tmp_path / "three"
    three.mkdir()
    for name in ("0", "1", "2"):
        (cases / f"{name}.npz").rename(three / f"{name}.npz")
    report = watched(path, three, "dead:0.1,change:0.01", jobs=2, good=read(good))
    dead = next(each for each in report.findings if each.kind == "dead")
    assert "1 of 4 units of %r (25 %) are 0 in all 6 samples" in dead.evidence
    assert {each.kind for each in report.findings} == {"dead", "change"}


def test_runs_without_a_folder_use_one_seed_each(tmp_path: Path) -> None:
    report = watched(model(tmp_path), None, "nan", runs=5, seed=3, jobs=2)
    assert [case.name for case in report.cases] == [f"seed {seed}" for seed in range(3, 8)]
    births = [each for each in report.findings if each.role == "birth"]
    assert births[0].case == "seed 3"
    assert report.notes == [
        "size N of input %x f32[N,4] is not given, 1 is used (pass --dim N=SIZE)",
        "input %x f32[1,4] drawn at random from the seed of each run (pass --input x=FILE.npy)",
        "input %k f32[] drawn at random from the seed of each run (pass --input k=FILE.npy)",
    ]


def test_given_inputs_apply_to_every_case_and_findings_are_limited(tmp_path: Path) -> None:
    folder = tmp_path / "cases"
    folder.mkdir()
    for i in range(3):
        np.savez(folder / f"{i}.npz", x=np.float32(BAD))
    report = watched(model(tmp_path), folder, inputs={"k": 3.0}, max_findings=2)
    assert report.notes == []
    assert len(report.findings) == 2
    assert report.counts == {"birth": 3, "masked": 0, "healed": 0, "propagated": 6}


@pytest.mark.parametrize(
    ("gates", "change", "error", "message"),
    [
        ("range:max(%q) > 1", {}, nncdbg.UsageError, "no value"),
        ("dead in nothing", {}, nncdbg.UsageError, "matches no value"),
        ("change", {}, nncdbg.UsageError, "needs a recorded good run"),
        ("nan", {"jobs": 0}, nncdbg.UsageError, "invalid number of jobs: 0"),
        ("nan", {"budget": -1.0}, nncdbg.UsageError, "budget"),
        ("nan", {"runs": 0}, nncdbg.UsageError, "invalid number of runs: 0"),
        ("nan", {"op_libraries": ["missing.py"]}, nncdbg.LoadError, "op library"),
        ("nan", {"backend": "nunpy"}, nncdbg.UsageError, "nunpy"),
        ("nan", {"allocator": "none"}, nncdbg.UsageError, "none"),
    ],
)
def test_settings_that_fit_no_case_are_an_error(
    tmp_path: Path, gates: str, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    cases = corpus(tmp_path, {"a": GOOD, "b": GOOD})
    with pytest.raises(error, match=message):
        watched(model(tmp_path), cases, gates, **change)


def test_an_unreadable_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(nncdbg.ParseError, match="expected"):
        watched(model(tmp_path, "#nncdbg 1\ngraph @main( {"), corpus(tmp_path, {"a": GOOD}))


# -- contents of a folder ----------------------------------------------------------------------------


def graph(text: str = TEXT) -> Any:
    program = nncdbg.parse(text)
    return program.graphs[program.entry]


def test_a_case_can_be_a_folder_with_escaped_names(tmp_path: Path) -> None:
    text = TEXT.replace("%x", '%"enc/x:0"')
    case = tmp_path / "one"
    case.mkdir()
    np.save(case / "enc_x_0.npy", np.float32(GOOD))
    np.save(case / "k.npy", np.float32(2))
    found, skipped = case_files(tmp_path)
    assert [each.name for each in found] == ["one"]
    assert skipped == []
    inputs = case_inputs(found[0], graph(text))
    assert set(inputs) == {"enc/x:0", "k"}
    assert nncdbg.watch(nncdbg.parse(text), inputs).ok


def test_a_test_data_set_of_onnx_is_a_case(tmp_path: Path) -> None:
    for name in ("test_data_set_0", "test_data_set_1"):
        folder = tmp_path / name
        folder.mkdir()
        x = numpy_helper.from_array(np.float32(GOOD), "anything")
        (folder / "input_0.pb").write_bytes(x.SerializeToString())
        (folder / "input_1.pb").write_bytes(
            numpy_helper.from_array(np.array(2, np.float32)).SerializeToString()
        )
        (folder / "output_0.pb").write_bytes(b"not looked at")
    (tmp_path / "model.onnx").write_bytes(b"")
    found, skipped = case_files(tmp_path)
    assert [each.name for each in found] == ["test_data_set_0", "test_data_set_1"]
    assert skipped == ["model.onnx"]
    inputs = case_inputs(found[0], graph())
    assert np.array_equal(inputs["x"], np.float32(GOOD))
    (tmp_path / "test_data_set_1" / "input_1.pb").write_bytes(b"\xff\xff junk")
    with pytest.raises(nncdbg.LoadError, match=r"input_1\.pb is damaged"):
        case_inputs(found[1], graph())
    alone, _ = case_files(tmp_path / "test_data_set_0")
    assert [each.name for each in alone] == ["test_data_set_0"]


def test_sequences_and_optionals_of_a_test_data_set_are_read(tmp_path: Path) -> None:
    head = "graph @main(%s: seq(f32[?]), %o: opt(f32[2])) -> (%n)"
    text = f"#nncdbg 1\n{head} {{\n  %n = SequenceLength(%s)\n  return %n\n}}\n"
    arrays = [np.arange(2, dtype=np.float32), np.arange(3, dtype=np.float32)]
    (tmp_path / "input_0.pb").write_bytes(numpy_helper.from_list(arrays).SerializeToString())
    (tmp_path / "input_1.pb").write_bytes(numpy_helper.from_optional(None).SerializeToString())
    inputs = case_inputs(case_files(tmp_path)[0][0], graph(text))
    assert [each.tolist() for each in inputs["s"]] == [[0, 1], [0, 1, 2]]
    assert inputs["o"] is None


def test_external_data_outside_the_folder_of_a_case_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    tensor = onnx.TensorProto(data_type=1, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value="../../../etc/passwd")
    (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    with pytest.raises(nncdbg.LoadError):
        case_inputs(case_files(tmp_path)[0][0], graph())


def test_safetensors_unnamed_arrays_and_a_single_array_are_cases(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"x": np.float32(GOOD), "k": np.array(2, np.float32)}, tmp_path / "a.safetensors")
    np.savez(tmp_path / "b.npz", np.float32(GOOD), np.float32(2))
    np.save(tmp_path / "c.npy", np.float32(GOOD))
    found, _ = case_files(tmp_path)
    assert set(case_inputs(found[0], graph())) == {"x", "k"}
    assert set(case_inputs(found[1], graph())) == {"x", "k"}
    with pytest.raises(nncdbg.UsageError, match="is one array, but the model has 2 inputs: x, k"):
        case_inputs(found[2], graph())
    single = graph(TEXT.replace(", %k: f32[]", "").replace("%k", "2.0"))
    assert case_inputs(found[2], single) == {"x": str(tmp_path / "c.npy")}


@pytest.mark.parametrize("kind", ["empty", "missing", "file"])
def test_a_folder_without_cases_is_an_error(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "cases"
    if kind == "empty":
        folder.mkdir()
    if kind == "file":
        folder.write_text("")
    with pytest.raises(nncdbg.NncdbgError) as caught:
        case_files(folder)
    assert caught.value.exit_code == (2 if kind == "empty" else 3)


def test_a_case_folder_with_wrong_names_is_an_error(tmp_path: Path) -> None:
    for name, files in {"a": ["z.npy"], "b": ["notes.txt"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_bytes(b"")
    first, second = case_files(tmp_path)[0]
    with pytest.raises(nncdbg.UsageError, match=r'a/z\.npy: @main has no input "z"'):
        case_inputs(first, graph())
    with pytest.raises(nncdbg.UsageError, match="contains no inputs"):
        case_inputs(second, graph())


def test_the_memory_of_a_case_is_released(tmp_path: Path) -> None:
    """A process that runs many cases keeps one at a time in memory."""
    cases = corpus(tmp_path, {f"{i:02}": np.full((50_000, 4), 2.0) for i in range(40)})
    script = f"""
import resource
from nncdbg.nan_watch.corpus import run_corpus
from nncdbg.nan_watch.corpus import WatchTask
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.watching import WatchCriteria
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.corpus.engines import CaseExecution
from nncdbg.opening.corpus.source import CorpusProgram
import sys
task = WatchTask(CorpusProgram(RunConfiguration(program={model(tmp_path)!r})), WatchCriteria(Gates.of("nan")))
report = run_corpus(task, sys.argv[1], CaseExecution(1))
assert report.ok, report
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
    few = tmp_path / "few"
    few.mkdir()
    for path in sorted(cases.iterdir())[:4]:
        os.link(path, few / path.name)
    gc.collect()
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-c", script, str(folder)], check=True, capture_output=True
            ).stdout
        )
        for folder in (few, cases)
    ]
    assert peaks[1] <= 1.2 * peaks[0], peaks
