"""Exit codes: each command that runs a graph, on programs with each outcome."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg.terminal.main import main

pytestmark = pytest.mark.usefixtures("forked_processes")

HEAD = "#nncdbg 1\nopset 18\ngraph @main(%x: f32[2,3]) -> (%y) {\n"
PROGRAMS = {
    "ok": ("%y = Relu(%x)",),
    "trips": ("%z = Mul(%x, 0.0)", "%y = Log(%z)"),
    "fails": ("%w: i64[2] = [3, 5]", "%s = Add(%w, 0)", "%h = Relu(%x)", "%y = Reshape(%h, %s)"),
    "index": ("%w: i64[2] = [3, 5]", "%s = Add(%w, 0)", "%h = Relu(%x)", "%y = Gather(%h, %s)"),
    # A finding first, then a failure.
    "both": (
        *("%w: i64[2] = [3, 5]", "%s = Add(%w, 0)", "%z = Mul(%x, 0.0)"),
        *("%h = Log(%z)", "%y = Reshape(%h, %s)"),
    ),
    "no_kernel": ("%y = other.Op(%x)",),
    "broken": ("%y = Relu(%x",),
}

TABLE = """
                                  ok  trips  fails  index  both  no_kernel  broken  missing
run PROGRAM                        0      0      4      4     4          3       3        3
watch PROGRAM                      0      1      4      4     4          3       3        3
watch PROGRAM --json               0      1      4      4     4          3       3        3
watch PROGRAM --fail-on guard      0      0      4      4     4          3       3        3
watch PROGRAM --memory             0      0      4      4     4          3       3        3
watch PROGRAM --baseline KNOWN     2      0      2      2     2          2       3        3
watch PROGRAM --runs 1 --budget 60 0      1      4      4     4          3       3        3
watch PROGRAM --bundle OUT         0      1      4      4     4          3       3        3
bisect PROGRAM                     0      0      4      4     4          3       3        3
reduce PROGRAM -o OUT              2      0      4      4     0          3       3        3
diff PROGRAM --allocator-b arena   0      0      4      4     4          3       3        3
print PROGRAM                      0      0      0      0     0          0       3        3
run PROGRAM --seed nothing         2      2      2      2     2          2       2        2
watch PROGRAM --fail-on nothing    2      2      2      2     2          2       3        3
"""

COLUMNS, *ROWS = TABLE.strip().splitlines()
CASES = [
    (row[:35].split(), program, int(code))
    for row in ROWS
    for program, code in zip(COLUMNS.split(), row[35:].split(), strict=True)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, statements in PROGRAMS.items():
        lines = "".join(f"  {statement}\n" for statement in statements)
        (folder / f"{name}.nnc").write_text(f"{HEAD}{lines}  return %y\n}}\n")
    assert main(["watch", str(folder / "trips.nnc"), "--write-baseline", str(folder / "known.json")]) == 0
    return folder


@pytest.mark.parametrize(("arguments", "program", "code"), CASES)
def test_exit_codes_match_the_table(
    arguments: list[str],
    program: str,
    code: int,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {
        "PROGRAM": str(folder / f"{program}.nnc"),
        "KNOWN": str(folder / "known.json"),
        "OUT": str(tmp_path / "out"),
    }
    try:
        found = main([places.get(word, word) for word in arguments])
    except SystemExit as leaving:  # argparse
        found = int(str(leaving.code))
    out, err = capsys.readouterr()
    assert found == code, out + err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("program", "cases", "code"),
    [
        ("ok", {"a": "x"}, 0),
        ("ok", {"a": "x", "b": "other"}, 2),
        ("trips", {"a": "x", "b": "other"}, 2),
        ("trips", {"a": "x", "b": ""}, 3),
        ("no_kernel", {"a": "x"}, 3),
        ("both", {"a": "x"}, 4),
        ("fails", {"a": "x", "b": "other", "c": ""}, 4),
    ],
)
def test_the_highest_exit_code_of_several_cases_is_returned(
    program: str, cases: dict[str, str], code: int, folder: Path, tmp_path: Path
) -> None:
    """`x` is a valid case, another name a mismatched one, and an empty name a damaged file."""
    for name, array in cases.items():
        if array:
            arrays: dict[str, Any] = {array: np.ones((2, 3), np.float32)}
            np.savez(tmp_path / f"{name}.npz", **arrays)
        else:
            (tmp_path / f"{name}.npz").write_bytes(b"PK nothing")
    given = ["--inputs-dir", str(tmp_path), "--jobs", "1"]
    assert main(["watch", str(folder / f"{program}.nnc"), *given]) == code


def test_commands_and_files_of_the_command_line_run_in_order(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.cmd").write_text("p 2\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("p 5\n"))
    example = str(repository / "examples" / "first_steps.nnc")
    files = ["-x", str(tmp_path / "a.cmd")]
    assert main([example, "-ex", "p 1", *files, "-ex", "p 3", "--command", "p 4"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.isdecimal()] == ["1", "2", "3", "4", "5"]
    assert shown[-4:] == ["(nncdbg) p 4", "4", "(nncdbg) p 5", "5"]


def test_misspelled_command_of_the_shell_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu", "model.onnx", "--seed", "1"]) == 2
    assert capsys.readouterr().err == (
        "error: there is no file or command rnu\n  hint: did you mean `nncdbg run model.onnx --seed 1`?\n"
    )
