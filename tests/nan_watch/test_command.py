"""The output, files and exit codes of `nncdbg watch` in a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("forked_processes")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

LONG = """#nncdbg 1
opset 18

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %l: f32[2] = Log(%x)
  %begun: f32[2] = test.Begun(%l)
  while @w (%s: f32[2] = %begun) count %i: i64[] times 100000000 {
    %t: f32[2] = Add(%s, 1.0)
    next %s = %t
  } -> (%y: f32[2] = %s)
  return %y
}
"""

BEGUN = """
import pathlib

import nncdbg


@nncdbg.op("test.Begun")
def begun(xp, x):
    pathlib.Path({path!r}).touch()
    return x + 0
"""


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "nncdbg", "watch", *map(str, words)]


def watch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=600)


def test_the_examples_have_the_expected_findings(tmp_path: Path) -> None:
    fine = watch(EXAMPLES / "first_steps.nnc")
    assert (fine.returncode, fine.stdout.split(" in ")[0]) == (0, "first_steps.nnc: ok")
    found = watch(EXAMPLES / "nan_softmax.nnc", "--json", "--bundle", tmp_path / "repro")
    assert found.returncode == 1
    first = next(each for each in json.loads(found.stdout)["findings"] if each["first"])
    assert (first["op"], first["line"], first["cause"]) == ("Log", 21, "log of zero")
    assert "cause: log of zero" in found.stderr
    again = watch(tmp_path / "repro")
    assert again.returncode == 1
    assert "cause: log of zero" in again.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("missing.onnx",), 3, "there is no file missing.onnx"),
        ((EXAMPLES / "first_steps.nnc", "--fail-on", "nam"), 2, "did you mean nan?"),
        ((EXAMPLES / "first_steps.nnc", "--fail-on", "range:max(%nope) > 1"), 2, "%nope"),
        ((EXAMPLES / "first_steps.nnc", "--plan", "p.json"), 2, "--plan needs --memory"),
        ((EXAMPLES / "first_steps.nnc", "--memory", "--runs", "2"), 2, "--memory cannot be combined with"),
        (
            (EXAMPLES / "first_steps.nnc", "--kernel", "Conv=numpy"),
            2,
            "no statement with a kernel matches Conv",
        ),
        (
            (EXAMPLES / "first_steps.nnc", "--kernel", "Relu=torch", "--memory"),
            2,
            "--memory cannot be combined",
        ),
        (
            (EXAMPLES / "first_steps.nnc", "--kernel", "Relu=torch", "--bundle", "b"),
            2,
            "a bundle does not keep",
        ),
        ((EXAMPLES / "first_steps.nnc", "--budget", "0"), 2, "use seconds"),
        ((EXAMPLES / "first_steps.nnc", "--max-findings", "0"), 2, "list at least one"),
        ((EXAMPLES / "first_steps.nnc", "--runs", "0"), 2, "use 1 or more; --runs 1 runs the program once"),
        ((EXAMPLES / "first_steps.nnc", "--baseline", "none.json"), 3, "none.json does not exist"),
        ((EXAMPLES / "first_steps.nnc", "--against", "none.json"), 3, "none.json"),
        ((EXAMPLES / "first_steps.nnc", "--inputs-dir", "nowhere"), 3, "nowhere"),
        ((EXAMPLES / "first_steps.nnc", "--input", "y=zeros"), 2, 'no input "y"'),
    ],
)
def test_wrong_use_is_an_error(words: tuple[str | Path, ...], code: int, message: str) -> None:
    refused = watch(*words)
    assert refused.returncode == code, refused.stderr
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_memory_watch_has_no_finding_in_a_correct_program() -> None:
    fine = watch(EXAMPLES / "first_steps.nnc", "--memory")
    assert fine.returncode == 0, fine.stdout
    found = watch(EXAMPLES / "uninitialized.nnc", "--memory", "--json")
    assert found.returncode == 1
    assert json.loads(found.stdout)["findings"][0]["kind"] == "uninitialized"


def test_a_finding_of_a_corpus_becomes_a_bundle(tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    cases.mkdir()
    for index, scale in enumerate((1e-3, 1.0)):
        logits = np.random.default_rng(index).normal(size=(3, 4)).astype(np.float32) * np.float32(scale)
        np.savez(cases / f"{index}.npz", logits=logits)
    found = watch(EXAMPLES / "nan_softmax.nnc", "--inputs-dir", cases, "--bundle", tmp_path / "repro")
    assert found.returncode == 1
    assert "in case 1.npz" in found.stdout
    assert watch(tmp_path / "repro").returncode == 1


def long(folder: Path) -> tuple[str | Path, ...]:
    """Write a program that runs for hours, and creates the file `begun` after its first finding."""
    (folder / "long.nnc").write_text(LONG)
    (folder / "begun.py").write_text(BEGUN.format(path=str(folder / "begun")))
    return folder / "long.nnc", "--op-library", folder / "begun.py"


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_findings_before_an_interruption_are_reported(tmp_path: Path, number: signal.Signals) -> None:
    begun, junit = tmp_path / "begun", tmp_path / "report.xml"
    process = subprocess.Popen(
        command(*long(tmp_path), "--input", "x=zeros", "--json", "--junit", junit),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    document = json.loads(out)
    assert (document["interrupted"], document["error"]) == (True, "the run was interrupted")
    assert document["findings"][0]["cause"] == "log of zero"
    assert junit.exists()


def test_an_expired_budget_fails_the_watch(tmp_path: Path) -> None:
    spent = watch(*long(tmp_path), "--input", "x=ones", "--budget", "1")
    assert spent.returncode == 4
    assert "the budget of 1 s expired" in spent.stdout
