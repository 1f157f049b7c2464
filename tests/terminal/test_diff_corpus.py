"""`nncdbg diff A B --inputs-dir DIR` on the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.opening.folder_writing import write_folder
from nncdbg.terminal.main import main
from tests.opening.diff_corpus.test_diff_corpus import CLIPPED, NEGATIVE, POSITIVE, A, B, corpus

pytestmark = pytest.mark.usefixtures("forked_processes")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a.nnc, b.nnc and same.nnc, and a folder of three cases; return that folder."""
    for name, text in (("a", A), ("b", B), ("same", CLIPPED)):
        (tmp_path / f"{name}.nnc").write_text(text)
    monkeypatch.chdir(tmp_path)
    return corpus(tmp_path, a=POSITIVE, b=NEGATIVE, c=NEGATIVE * 2).relative_to(tmp_path)


def test_a_line_for_each_input_that_differs(sides: Path, capsys: Capture) -> None:
    assert main(["diff", "a.nnc", "b.nnc", "--inputs-dir", "cases", "--jobs=1"]) == 1
    out, err = capsys.readouterr()
    assert [line.partition(";")[0] for line in out.splitlines()] == [
        "2 of 3 inputs differ: 2 diverged, 1 equal",
        "b.npz: diverged: first %h f32[4] = Relu, line 3 of @main",
        "c.npz: diverged: first %h f32[4] = Relu, line 3 of @main",
        "first difference of 2 inputs: %h f32[4] = Relu, line 3 of @main",
    ]
    assert err == "note: the complete report of b.npz: nncdbg diff a.nnc b.nnc --input x=cases/b.npz:x\n"
    command = shlex.split(err.partition("nncdbg ")[2])
    assert main(command) == 1
    assert "first: %h f32[4] = Relu" in capsys.readouterr().out


def test_programs_that_agree_exit_with_0(sides: Path, capsys: Capture) -> None:
    assert main(["diff", "a.nnc", "same.nnc", "--inputs-dir", str(sides), "--strict"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("0 of 3 inputs differ: 3 equal\n", "")


def test_the_json_document_lists_all_cases(sides: Path, capsys: Capture) -> None:
    np.savez(sides / "d.npz", zz=np.zeros(4, np.float32))
    assert main(["diff", "a.nnc", "b.nnc", "--inputs-dir", str(sides), "--json", "--rtol", "1e-3"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["counts"]) == ("diverged", {"diverged": 2, "equal": 1, "unfit": 1})
    assert [case["name"] for case in document["cases"]] == ["a.npz", "b.npz", "c.npz", "d.npz"]
    assert document["firsts"][0]["site"]["line"] == 3
    assert document["tolerance"]["rtol"] == 1e-3
    assert document["sides"]["b"]["model"] == "b.nnc"


def test_only_intermediate_values_differ_with_strict(sides: Path, tmp_path: Path) -> None:
    """The exit code is that of `diff`: 0 if the outputs agree, unless --strict."""
    for name, factor in (("one", 1.0), ("two", 2.0)):
        text = A.replace("Relu(%x)", f"Mul(%x, {factor})").replace("Exp(%h)", "Mul(%h, 0.0)")
        (tmp_path / f"{name}.nnc").write_text(text)
    command = ["diff", "one.nnc", "two.nnc", "--inputs-dir", str(sides), "--jobs", "1"]
    assert main(command) == 0
    assert main([*command, "--strict"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("a.nnc --golden g.npz --inputs-dir cases", "--inputs-dir and --golden cannot be combined"),
        ("a.nnc b.nnc --stop --inputs-dir cases", "--inputs-dir and --stop cannot be combined"),
        ("a.nnc --autocast-b bf16 --inputs-dir cases", "--inputs-dir and --autocast-b cannot be combined"),
        ("a.nnc b.nnc --jobs 2", "--jobs needs several inputs: add --inputs-dir DIR"),
        ("a.nnc b.nnc --executor dask", "--executor needs several runs: add --inputs-dir DIR"),
        ("a.nnc b.nnc --inputs-dir cases --executor dusk", 'unknown executor "dusk"'),
        ("a.nnc b.nnc --inputs-dir cases --budget 0", "--budget 0.0: use seconds, such as --budget 60"),
        ("a.nnc --inputs-dir cases", "both sides are the same"),
        ("a.nnc b.nnc --inputs-dir a.nnc", "cannot read the folder a.nnc"),
    ],
)
def test_wrong_options(sides: Path, capsys: Capture, arguments: str, message: str) -> None:
    assert main(["diff", *arguments.split()]) in (2, 3)
    assert message in capsys.readouterr().err


def test_program_folders_keep_their_own_inputs(sides: Path, tmp_path: Path, capsys: Capture) -> None:
    """A case supplies %x of both sides; each folder supplies its own %k."""
    text = A.replace("(%x: f32[4])", "(%x: f32[4], %k: f32[])").replace("Exp(%h)", "Mul(%h, %k)")
    (tmp_path / "k.nnc").write_text(text)
    program = nncdbg.parse(text)
    for name, k in (("one", 1), ("two", 2)):
        inputs = {"x": np.ones(4, np.float32), "k": np.float32(k)}
        write_folder(tmp_path / name, program, inputs, title=name)
    np.savez(sides / "zero.npz", x=np.zeros(4, np.float32))
    assert main(["diff", "one", "two", "--inputs-dir", str(sides), "--jobs", "1"]) == 1
    out, _ = capsys.readouterr()
    assert out.startswith("1 of 4 inputs differs: 1 diverged, 3 equal\na.npz: diverged: first %y f32[4]")
    same = ["diff", "one", "two", "--inputs-dir", str(sides), "--jobs", "1", "--input", "k=3"]
    assert main(same) == 0
