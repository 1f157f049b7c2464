"""User kernels for ops of custom domains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.ops import declared, lookup
from nncdbg.errors import LoadError, UnsupportedOp

SWIRL = '''
import nncdbg

@nncdbg.op("{domain}.Swirl")
def swirl(xp, x, *, angle=0.5):
    """x turned by `angle`."""
    return xp.sin(x + angle)
'''

MODEL = """#nncdbg 1
graph @main(%x: f32[3]) -> (%y) {{
  %y = {domain}.Swirl(%x, angle=0.25)
  return %y
}}
"""


def library(folder: Path, content: str) -> Path:
    file = folder / "library.py"
    file.write_text(content)
    return file


def debugger_for(domain: str, **fields: object) -> nncdbg.Debugger:
    program = nncdbg.parse(MODEL.format(domain=domain))
    return nncdbg.Debugger(program, {"x": np.zeros(3, np.float32)}, **fields)  # type: ignore[arg-type]


def test_a_kernel_runs_under_the_debug_allocator(tmp_path: Path) -> None:
    file = library(tmp_path, SWIRL.format(domain="swirl.a"))
    assert nncdbg.load_op_library(file) == ("swirl.a.Swirl",)
    debugger = debugger_for("swirl.a")
    assert debugger.run().reason == "end", debugger.stop
    np.testing.assert_allclose(debugger.value("y"), np.sin(np.full(3, 0.25)), rtol=1e-6)
    assert debugger.observers.log is not None
    [frame] = debugger.control.machine.frames
    assert debugger.observers.log.row_of(frame.slots[frame.code.slot_of["y"]]) is not None


def test_a_file_is_executed_once(tmp_path: Path) -> None:
    file = library(tmp_path, SWIRL.format(domain="swirl.b"))
    assert nncdbg.load_op_library(file) == nncdbg.load_op_library(str(file))
    assert len(declared("swirl.b.Swirl")) == 1


def test_a_type_rule_that_raises_is_an_error_of_the_statement() -> None:
    def rule(attributes: object, types: object) -> list[None]:
        raise KeyError("rule")

    nncdbg.op("swirl.raises.Swirl", infer=rule)(lambda xp, x, *, angle: x)
    with pytest.raises(nncdbg.GraphError, match=r"type rule of swirl.raises.Swirl raised KeyError") as caught:
        debugger_for("swirl.raises")
    assert caught.value.line == 3


def test_a_kernel_with_type_inference_writes_into_the_buffer(tmp_path: Path) -> None:
    text = """
import nncdbg

def types(attributes, types):
    return [types[0]]

@nncdbg.op("swirl.c.Swirl", infer=types, accepts_out=True)
def swirl(xp, x, *, angle, out=None):
    return xp.add(x, xp.float32(angle), out=out)
"""
    nncdbg.load_op_library(library(tmp_path, text))
    debugger = debugger_for("swirl.c")
    debugger.catch("nan", "uninitialized")
    assert debugger.run().reason == "end", debugger.stop
    assert debugger.value("y").tolist() == [0.25] * 3


def test_without_a_library_the_program_runs_up_to_the_op() -> None:
    stop = debugger_for("swirl.unknown").run()
    assert isinstance(stop.error, UnsupportedOp)
    assert "swirl.unknown.Swirl has no kernel" in stop.error.message


def test_a_user_kernel_on_another_backend_needs_fallback(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    nncdbg.load_op_library(library(tmp_path, SWIRL.format(domain="swirl.d")))
    stop = debugger_for("swirl.d", backend="onnxruntime").run()
    assert isinstance(stop.error, UnsupportedOp)
    debugger = debugger_for("swirl.d", backend="onnxruntime", fallback=True)
    assert debugger.run().reason == "end"
    assert [(each.line, each.op) for each in debugger.loaded.fallbacks] == [(3, "swirl.d.Swirl")]


def test_a_library_may_register_operators_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    text = (
        "import torch\n"
        "@torch.library.custom_op('swirl_g::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x * 2\n"
    )
    assert nncdbg.load_op_library(library(tmp_path, text)) == ("torch.swirl_g.twice.default",)
    program = nncdbg.parse(
        "#nncdbg 1\ngraph @main(%x: f32[2]) -> (%y) {\n"
        "  %y = torch.swirl_g.twice.default(%x)\n  return %y\n}\n"
    )
    debugger = nncdbg.Debugger(program, {"x": np.ones(2, np.float32)}, backend="torch")
    debugger.run()
    assert debugger.outputs is not None
    assert debugger.outputs["y"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\n", "declares no op"),
        ("x = 'torch'\n", "declares no op"),
        ("import nncdbg\n\n1 / 0\n", r"ZeroDivisionError: division by zero \(line 3\)"),
        ("def broken(:\n", "SyntaxError"),
        ("import nncdbg\nnncdbg.op('Mine')(lambda xp, x: x)\n", "which has no custom domain"),
        ("import nncdbg\nnncdbg.op('Relu', since=99)(lambda xp, x: x)\n", "which has no custom domain"),
        ("import nncdbg\nnncdbg.op('Relu')(lambda xp, x: x)\n", "op Relu is declared twice"),
        (
            "import nncdbg\n" + 2 * "nncdbg.op('swirl.e.T')(lambda xp, x: x)\n",
            "declared twice",
        ),
        ("import nncdbg\nnncdbg.op('swirl.f.T', sinse=2)(lambda xp, x: x)\n", "sinse"),
    ],
)
def test_an_invalid_library_declares_no_op(tmp_path: Path, content: str, message: str) -> None:
    relu = declared("Relu")
    with pytest.raises(LoadError, match=message):
        nncdbg.load_op_library(library(tmp_path, content))
    assert declared("Relu") == relu
    assert lookup("Mine", 21) is None
    assert not declared("swirl.e.T")


def test_a_missing_library_file_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        nncdbg.load_op_library(tmp_path / "nowhere.py")
    with pytest.raises(LoadError, match="is not a path"):
        nncdbg.load_op_library("\0")
