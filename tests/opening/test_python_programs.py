"""`MODULE:FUNCTION` in place of a path: what it may return, where it works, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dap_server.client import stdio_client

Command = Callable[..., tuple[int, str, str]]

MODULE = """\
print("imported")
import pathlib
import sys
import nncdbg

TEXT = "#nncdbg 1\\ngraph @main(%x: f32[3]) -> (%y: f32[3]) {\\n  %y: f32[3] = Log(%x)\\n  return %y\\n}\\n"
program = nncdbg.parse(TEXT)

def built():
    b = nncdbg.Builder()
    with b.graph("main"):
        b.returns(b.Log(b.input("x", "f32[3]"), name="y"))
    return b

def parsed(width=3):
    return nncdbg.parse(TEXT)

class Net:
    @staticmethod
    def make():
        return program

def file():
    pathlib.Path("net.nnc").write_text(TEXT)
    return pathlib.Path("net.nnc")

def model():
    import onnx.parser
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[3] x) => (float[3] y) { y = Log(x) }'
    return onnx.parser.parse_model(text)

def text():
    return TEXT

def nothing():
    return None

def needs(width, depth=2):
    return program

def fails():
    return deeper()

def deeper():
    raise ValueError("width 3\\nis odd")

def leaves():
    sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Write a module with a name of its own, since modules stay imported; return this name."""
    name = "nets_" + "".join(each if each.isalnum() else "_" for each in request.node.name)
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


@pytest.mark.parametrize("object_", ["program", "built", "parsed", "Net.make", "file", "model"])
def test_each_kind_of_program_runs(command: Command, folder: str, object_: str) -> None:
    code, out, err = command("run", f"{folder}:{object_}", "--input", "x=[1, 1, 1]", "--json")
    assert code == 0, err
    assert json.loads(out)["outputs"][0]["stats"]["zero"] == 3
    assert "imported" in err


def test_watch_print_diff_and_the_prompt_open_it(command: Command, folder: str) -> None:
    name = f"{folder}:built"
    assert command("watch", name, "--input", "x=[-1, 1, 1]")[0] == 1
    assert "Log(%x)" in command("print", name)[1]
    assert "the sides agree" in command("diff", name, f"{folder}:model")[1]
    assert f"{name}: 1 statement in 1 graph" in command(name, "-ex", "quit")[1]
    listing = Path(command("listing", name)[1].splitlines()[-1])
    assert listing.name == f"{folder}-built.nnc"
    assert "Log(%x)" in listing.read_text()


def test_a_changed_module_is_read_again(command: Command, folder: str, tmp_path: Path) -> None:
    assert "Log(%x)" in command("print", f"{folder}:built")[1]
    changed = MODULE.replace("b.Log(", "b.Softplus(")
    (tmp_path / f"{folder}.py").write_text(changed)
    assert "Softplus(%x)" in command("print", f"{folder}:built")[1]


@pytest.mark.parametrize(
    ("object_", "code", "message"),
    [
        ("text", 2, "cannot load a program from an object of type str"),
        ("nothing", 2, "cannot load a program from an object of type NoneType"),
        ("needs", 2, "has required arguments: width\n"),
        ("bulit", 3, "has no attribute bulit\n  hint: did you mean built?"),
        ("Net.mak", 3, "the object Net has no attribute mak\n  hint: did you mean make?"),
        ("leaves", 3, "ended the process with exit code 3\n"),
    ],
)
def test_a_wrong_object_is_one_message(
    command: Command, folder: str, object_: str, code: int, message: str
) -> None:
    found, _, err = command("run", f"{folder}:{object_}")
    assert (found, err.count("error: ")) == (code, 1)
    assert f"{folder}:{object_}" in err
    assert message in err
    assert "hint: " in err


def test_a_failing_function_shows_the_users_lines(command: Command, folder: str) -> None:
    code, _, err = command("run", f"{folder}:fails")
    assert code == 3
    assert f"error: {folder}:fails failed: ValueError: width 3\n" in err
    line = 'raise ValueError("width 3\\nis odd")'
    assert f"{line}\n      |     {'^' * len(line)}\n" in err
    lines = MODULE.splitlines()
    place, caller = (lines.index(line) + 2 for line in ("def deeper():", "def fails():"))
    assert f"  at {folder}.py:{place}:5\n" in err
    assert f"  from {folder}.py:{caller} (fails)\n" in err
    assert "importlib" not in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def f(:\n", "cannot be compiled: invalid syntax\n  at {name}.py:1:7\n"),
        (
            "import nothing_of_the_sort\n",
            "failed: ModuleNotFoundError: No module named 'nothing_of_the_sort'",
        ),
    ],
)
def test_a_module_that_cannot_be_imported(
    command: Command, folder: str, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / f"{folder}.py").write_text(content)
    code, _, err = command("run", f"{folder}:f")
    assert (code, message.format(name=folder) in err) == (3, True), err


def test_a_missing_module_and_a_file_name_have_hints(command: Command, folder: str, tmp_path: Path) -> None:
    code, _, err = command("run", "no_such_module.at.all:build")
    assert code == 3
    assert f"there is no module no_such_module\n  hint: searched {tmp_path}" in err
    code, _, err = command("run", f"{folder}.py:built")
    assert (code, f"hint: use {folder}:built\n" in err) == (2, True), err


def test_a_file_with_such_a_name_is_a_path(command: Command, folder: str, tmp_path: Path) -> None:
    (tmp_path / f"{folder}:built").write_text("")
    code, _, err = command("run", f"{folder}:built")
    assert code == 3
    assert "suffix" in err


def test_an_editor_launches_it_and_the_output_of_the_module_stays_out_of_the_stream(
    folder: str, tmp_path: Path
) -> None:
    with stdio_client(cwd=tmp_path) as client:
        client.start(f"{folder}:built", cwd=str(tmp_path), inputs={"x": [1, 2, 3]})
        frame: dict[str, Any] = client.top_frame()
        assert frame["source"]["path"] == str(tmp_path / ".nncdbg" / f"{folder}-built.nnc")
        client.request("disconnect")
        client.expect_end()
