"""Bad input: one clear error, the right exit code, no lost state, no traceback."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg.terminal.main import main

HEAD = "#nncdbg 1\nopset 18\n\n"
SMALL = (
    HEAD + "graph @main(%x: f32[2,3]) -> (%y: f32[2,3]) {\n  %h = Relu(%x)\n  %y = Neg(%h)\n  return %y\n}\n"
)

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, command: Call) -> Call:
    """Runs the command in a folder with small.nnc."""
    (tmp_path / "small.nnc").write_text(SMALL)
    return command


def graph(*statements: str, signature: str = "%x: f32[2,3]) -> (%y: f32[2,3]") -> str:
    body = "".join(f"  {statement}\n" for statement in statements)
    return f"{HEAD}graph @main({signature}) {{\n{body}}}\n"


@pytest.mark.parametrize("mode", [[], ["run"], ["print"]])
def test_a_missing_file_is_an_error(call: Call, mode: list[str]) -> None:
    code, out, err = call(*mode, "nowhere.onnx")
    assert (code, out) == (3, "")
    assert err.startswith("error: there is no file nowhere.onnx\n")


def test_a_negative_seed_is_refused(call: Call) -> None:
    code, out, err = call("run", "small.nnc", "--seed", "-1")
    assert (code, out) == (2, "")
    assert err == "error: invalid seed -1\n  hint: use an integer of 0 or more\n"


def test_a_folder_is_not_a_model(call: Call, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    code, _, err = call("run", "folder.onnx")
    assert code == 3
    assert "folder.onnx" in err


@pytest.mark.parametrize("name", ["sing", "dance"])
def test_an_unknown_command_is_reported_as_a_missing_file(call: Call, name: str) -> None:
    code, _, err = call(name)
    assert code == 3
    assert f"there is no file {name}" in err


@pytest.mark.parametrize("seed", range(8))
def test_random_bytes_are_refused(call: Call, tmp_path: Path, seed: int) -> None:
    (tmp_path / "bad.onnx").write_bytes(random.Random(seed).randbytes(10 ** (seed % 4)))
    code, out, err = call("run", "bad.onnx")
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert "bad.onnx" in err


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_model_is_refused(call: Call, tmp_path: Path, share: float) -> None:
    import onnx
    from onnx import TensorProto, helper

    weight = helper.make_tensor("w", TensorProto.FLOAT, [50], np.arange(50, dtype=np.float32))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [50]) for name in "xy")
    body = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "main", [x], [y], [weight])
    data = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    assert onnx.load_from_string(data).graph.name == "main"
    (tmp_path / "cut.onnx").write_bytes(data[: int(len(data) * share)])
    code, out, err = call("run", "cut.onnx")
    assert (code, out) == (3, "")
    assert err.startswith("error: ")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("z=zeros", 'no input "z"'),
        ("x", '"x" is not NAME=VALUE'),
        ("x=zeroes", "did you mean zeros?"),
        ("x=f64.npy", "it needs f32, not f64"),
        ("x=shape.npy", "axis 1 must have size 3, not 4"),
        ("x=rank.npy", "it needs 2 axes, not 1"),
        ("x=objects.npy", "never unpickles"),
        ("x=none.npy", "none.npy does not exist"),
        ("x=text.npy", "text.npy"),
    ],
)
def test_a_wrong_input_is_refused(call: Call, tmp_path: Path, given: str, message: str) -> None:
    np.save(tmp_path / "f64.npy", np.zeros((2, 3)))
    np.save(tmp_path / "shape.npy", np.zeros((2, 4), np.float32))
    np.save(tmp_path / "rank.npy", np.zeros(2, np.float32))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    code, out, err = call("run", "small.nnc", "--input", given)
    assert out == ""
    assert message in err
    assert code == (3 if given in ("x=objects.npy", "x=none.npy", "x=text.npy") else 2)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--nonsense"],
        ["small.nnc", "--seed", "x"],
        ["small.nnc", "--input"],
        ["small.nnc", "--dim", "N"],
        ["small.nnc", "--dim", "N=3"],
        ["small.nnc", "--input", "x=zeros", "--input", "x=ones"],
        ["small.nnc", "--history", "much"],
        ["small.nnc", "--allocator", "none"],
        ["small.nnc", "--backend", "none"],
        ["small.nnc", "--break", "99"],
        ["small.nnc", "--break", "%z"],
        ["small.nnc", "--break", "5 if %z > 1"],
        ["small.nnc", "--break", "5 if"],
        ["small.nnc", "--record", "/nowhere/file"],
        ["small.nnc", "--record", "small.nnc"],
        ["run"],
        ["run", "small.nnc", "--nonsense"],
        ["print", "small.nnc", "-o", "/nowhere/file.nnc"],
        ["ops", "NoSuchOp"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_refused(call: Call, arguments: list[str], tmp_path: Path) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err
    assert (tmp_path / "small.nnc").read_text() == SMALL


def test_a_missing_command_file_is_an_error(call: Call) -> None:
    code, out, err = call("small.nnc", "-x", "none.cmd")
    assert (code, out) == (3, "")
    assert "cannot read the commands in none.cmd" in err


BROKEN_GRAPHS = {
    "a cycle": (["%a = Neg(%b)", "%b = Neg(%a)", "%y = Neg(%b)", "return %y"], "%b"),
    "an undefined value": (["%y = Neg(%undefined)", "return %y"], "%undefined"),
    "a value defined twice": (["%y = Neg(%x)", "%y = Relu(%x)", "return %y"], "%y"),
    "no return": (["%y = Neg(%x)"], "return"),
    "mismatched shapes": (["%y = MatMul(%x, %x)", "return %y"], "MatMul"),
    "an unknown attribute": (["%y = Softmax(%x, axes=1)", "return %y"], "axes"),
}


@pytest.mark.parametrize("statements", BROKEN_GRAPHS.values(), ids=BROKEN_GRAPHS.keys())
def test_a_broken_graph_is_reported_with_its_line(
    call: Call, tmp_path: Path, statements: tuple[list[str], str]
) -> None:
    body, expected = statements
    (tmp_path / "broken.nnc").write_text(graph(*body))
    code, out, err = call("run", "broken.nnc")
    assert (code, out) == (3, "")
    assert expected in err
    assert "^" in err
    assert "broken.nnc:" in err


def test_ten_errors_are_reported_together(call: Call, tmp_path: Path) -> None:
    lines = [f"%v{i}: f32[2,3] = Neg(%x" for i in range(10)]
    (tmp_path / "ten.nnc").write_text(graph(*lines, "return %x"))
    code, _, err = call("ten.nnc")
    assert code == 3
    assert [number for number in range(5, 15) if f"ten.nnc:{number}:" not in err] == []


def test_unknown_op_parses_and_fails_only_when_it_runs(call: Call, tmp_path: Path) -> None:
    (tmp_path / "odd.nnc").write_text(graph("%h = Relu(%x)", "%y = acme.Odd(%h)", "return %y"))
    assert call("print", "odd.nnc")[0] == 0
    code, out, err = call("run", "odd.nnc")
    assert (code, out) == (3, "")
    assert "acme.Odd has no kernel" in err
    code, out, err = call("odd.nnc", typed="n\np max(%h)\nn\np max(%h)\nback\n")
    assert code == 0
    assert "acme.Odd has no kernel" in err
    assert out.count("%h = Relu(%x)") >= 2


def test_a_failing_op_is_reported_with_its_operands(call: Call, tmp_path: Path) -> None:
    text = graph(
        "%n: i64[1] = [7]",
        "%y = Expand(%x, %k)",
        "return %y",
        signature="%x: f32[2,3], %k: i64[1]) -> (%y: f32[?,?]",
    )
    (tmp_path / "fails.nnc").write_text(text)
    np.save(tmp_path / "k.npy", np.array([7], np.int64))
    code, out, err = call("run", "fails.nnc", "--input", "k=k.npy")
    assert (code, out) == (4, "")
    assert "%y = Expand(%x, %k)" in err
    assert "with %x: f32[2,3]" in err
    code, out, _ = call("run", "fails.nnc", "--input", "k=k.npy", "--json")
    document = json.loads(out)
    assert (code, document["status"], document["error"]["line"]) == (4, "failed", 6)
    code, out, err = call("fails.nnc", "--input", "k=k.npy", typed="c\nset %k = 3\nc\n")
    assert code == 0
    assert "The program has ended" in out


def test_out_of_memory_is_reported(call: Call, tmp_path: Path) -> None:
    text = graph("%k: i64[2] = [1000000000, 1000000000]", "%y = Expand(%x, %k)", "return %y")
    (tmp_path / "huge.nnc").write_text(
        text.replace("%x: f32[2,3]) -> (%y: f32[2,3]", "%x: f32[1,1]) -> (%y: f32[?,?]")
    )
    code, out, err = call("run", "huge.nnc")
    assert (code, out) == (4, "")
    assert "out of memory" in err
    code, out, err = call("huge.nnc", typed="c\np max(%x)\n")
    assert code == 4
    assert "out of memory" in err
    assert out.splitlines()[-1].lstrip("-").replace(".", "").isdigit()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("break 5 if %x >", "the expression ends"),
        ("break 5 if %z > 1", "there is no value `%z`"),
        ("break 6 if shape(%x)[7] == 1\nc", "its condition failed"),
        ("set %x = [1, 2]", "the new value has shape [2]"),
        ("set %x[0] = [1, 2]", "cannot be set"),
        ("set %x[2, 0] = 1", "out of bounds"),
        ("set %y = 1", "not computed yet"),
        ("back", "this is the start of the program"),
        ("rcontinue", "this is the start of the program"),
        ("record /dev/full", "No space left on device"),
        ("load %x = objects.npy", "never unpickles"),
        ("load %x = f64.npy", "the file contains f64[2,3]"),
        ("p zeros(1000000000000)", "error"),
        ("p " + "(" * 200 + ")" * 200, "error"),
        ("\x1b[31m\x00", "error"),
        ("p %x[0][1][2][3]", "error"),
        ("save %x .", "cannot write"),
    ],
)
def test_a_failed_command_keeps_the_session_state(
    call: Call, tmp_path: Path, typed: str, message: str
) -> None:
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.save(tmp_path / "f64.npy", np.zeros((2, 3)))
    code, out, err = call("small.nnc", "--input", "x=ones", typed=f"{typed}\np sum(%x)\ndelete\nc\n")
    assert code == 0
    assert message in err + out
    lines = out.splitlines()
    assert "6.0" in lines
    assert lines[-1] == "%y f32[2,3] [[-1. -1. -1.] [-1. -1. -1.]]"
    assert "\x1b" not in out + err


def test_a_full_disk_at_the_start_of_a_recording_is_an_error(call: Call) -> None:
    code, _, err = call("small.nnc", "--record", "/dev/full")
    assert code == 2
    assert "cannot record to /dev/full: No space left on device" in err


def test_a_disk_that_fills_up_ends_the_recording_with_one_error(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nncdbg.commands.recording import recorder

    class Filling(io.BytesIO):
        name = "typed.cmd"

        def write(self, line: Any) -> int:
            if b'"next"' in line:
                raise OSError(28, "No space left on device")
            return super().write(line)

    monkeypatch.setattr(recorder, "_emptied", lambda path: Filling())
    code, out, err = call("small.nnc", "--record", "typed.cmd", typed="list\nnext\nnext\ncontinue\n")
    assert code == 0
    assert err.count("cannot record to typed.cmd: No space left on device") == 1
    assert "The program has ended" in out


def test_a_command_file_that_is_not_utf8_is_an_error(call: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.cmd").write_bytes(b"n\n\xff\xfe\n")
    code, _, err = call("small.nnc", "-x", "bad.cmd", typed="c\n")
    assert code == 0
    assert "it is not UTF-8 text" in err


def test_a_recursive_command_file_is_an_error(call: Call, tmp_path: Path) -> None:
    (tmp_path / "again.cmd").write_text("source again.cmd\n")
    code, _, err = call("small.nnc", typed="source again.cmd\np 1\n")
    assert code == 0
    assert "check whether again.cmd calls itself" in err


def test_an_internal_error_is_one_line_and_a_report_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.nnc").write_text(SMALL)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("nncdbg.terminal.repl._banner", lambda session: 1 // 0)
    assert main([str(tmp_path / "small.nnc")]) == 70
    err = capsys.readouterr().err.strip()
    assert err.startswith("internal error: ZeroDivisionError")
    assert len(err.splitlines()) == 1
    assert "ZeroDivisionError" in Path(err.rsplit(" ", 1)[1]).read_text()
