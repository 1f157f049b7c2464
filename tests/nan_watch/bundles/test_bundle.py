"""Repro bundles: their contents, opening at the finding, and errors for damaged bundles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nncdbg
from nncdbg.dtypes import NUMPY
from nncdbg.engine.frontends.program_folder import open_program_folder
from nncdbg.engine.frontends.tensor_file import TensorEntry, pack, unpack, write_tensors
from nncdbg.errors import LoadError, UsageError
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.reduction.case import ReducedCase, case_of_program
from nncdbg.nan_watch.reduction.finding_identity import FindingSignature, found_first
from nncdbg.nan_watch.reduction.reducing import bundle_finding, write_bundle
from nncdbg.opening import folder_writing
from nncdbg.text.file_names import FILES

LOG = """#nncdbg 1
graph @main(%x: f32[2,3], %unused: f32[8]) -> (%z) {
  %w: f32[3] = [1, 0, 2]
  %apart = Exp(%unused)
  %h = @layer(%x, %w)
  %l = Log(%h)
  %y = Relu(%l)
  %z = Neg(%l)
  return %z
}
graph @layer(%a, %b) -> (%c) {
  %c = Mul(%a, %b)
  return %c
}
"""

Command = Callable[..., tuple[int, str, str]]


def written(folder: Path, text: str, inputs: dict[str, Any], **fields: Any) -> Any:
    """Write a bundle of the first finding of a watch, and return the finding."""
    program, settings = nncdbg.parse(text), WatchConfiguration(**fields)
    debugger = settings.debugger(program, inputs)
    finding = found_first(program, debugger.inputs, settings)
    bundle_finding(folder, program, debugger.inputs, finding, settings, model="net.onnx")
    return finding


def test_a_bundle_of_a_later_training_step_reads_the_updated_states(tmp_path: Path) -> None:
    text = """#nncdbg 1
state %w: f32[2] = [1, 2]
state %v: f32[2] = [0, 0]
graph @train() -> (%l: f32[]) {
  %p = Sqrt(%w)
  %l = ReduceMean(%p, keepdims=0)
  %w.1 = Mul(%w, -2.0)
  update %w = %w.1, %v = %w.1
  return %l
}
run @train steps 2
"""
    written(tmp_path / "b", text, {})
    opened = open_program_folder(tmp_path / "b")
    assert [node.op for node in opened.program.graphs["train"].nodes] == ["Mul", "Sqrt"]
    assert nncdbg.watch(tmp_path / "b").findings[0].op == "Sqrt"


def test_a_bundle_contains_only_what_the_finding_needs(tmp_path: Path) -> None:
    finding = written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)})
    opened = open_program_folder(tmp_path / "b")
    entry = opened.program.graphs["main"]
    assert [node.op for node in entry.nodes] == ["Mul", "Log"]
    assert list(opened.inputs) == ["x"]
    assert [constant.value.name for constant in entry.constants] == ["w"]
    assert opened.statements == 1
    assert (opened.document.finding or {})["op"] == finding.site.op == "Log"
    assert opened.document.model == "net.onnx"
    assert opened.document.versions["numpy"] == np.__version__
    assert {path.name for path in (tmp_path / "b").iterdir()} <= {*FILES}


def test_a_bundle_reproduces_the_finding(tmp_path: Path) -> None:
    finding = written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)})
    opened = open_program_folder(tmp_path / "b")
    again = found_first(opened.program, opened.inputs, opened.configuration(WatchConfiguration))
    assert FindingSignature.of(again) == FindingSignature.of(finding)


def test_a_bundle_opens_before_the_statement_of_the_finding(tmp_path: Path, command: Command) -> None:
    written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)})
    code, out, err = command("b", typed="p isinf(%c).any()\nnext\np isinf(%l).any()\nq\n")
    assert (code, err) == (0, "")
    assert "inf in %l, Log" in out.splitlines()[0]
    shown = [line for line in out.splitlines() if "-> " in line and "=" in line]
    assert "%l" in shown[0]
    assert "Log(%c)" in shown[0]
    assert [line for line in out.splitlines() if line in ("True", "False", "true", "false")] in (
        ["False", "True"],
        ["false", "true"],
    )


def test_a_bundle_can_be_run(tmp_path: Path, command: Command) -> None:
    written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)})
    code, out, err = command("run", "b", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["outputs"][0]["stats"]["neginf"] == 2
    assert document["notes"] == []


def test_command_line_options_override_the_bundle(tmp_path: Path, command: Command) -> None:
    written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)}, seed=7, allocator="plain")
    code, out, _ = command("run", "b", "--input", "x=zeros", "--json")
    assert code == 0
    assert json.loads(out)["outputs"][0]["stats"]["neginf"] == 6


def test_a_loop_is_unrolled_up_to_the_finding(tmp_path: Path) -> None:
    text = """#nncdbg 1
graph @main(%x: f32[2]) -> (%y) {
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
    finding = written(tmp_path / "b", text, {"x": np.full(2, 3.0, np.float32)})
    assert finding.iteration == (3,)
    opened = open_program_folder(tmp_path / "b")
    ops = [node.op for node in opened.program.graphs["main"].nodes]
    assert ops[-1] == "Sqrt"
    assert ops.count("Sqrt") == 4
    assert opened.statements == len(ops) - 1


def test_a_bundle_starts_behind_large_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nncdbg.nan_watch.reduction.reducing.LARGEST", 100)
    text = """#nncdbg 1
graph @main(%x: f32[64,64]) -> (%y) {
  %a = ReduceSum(%x, [0, 1], keepdims=0)
  %b = Mul(%a, 0.0)
  %y = Log(%b)
  return %y
}
"""
    written(tmp_path / "b", text, {"x": np.ones((64, 64), np.float32)})
    opened = open_program_folder(tmp_path / "b")
    assert [node.op for node in opened.program.graphs["main"].nodes] == ["Mul", "Log"]
    assert list(opened.inputs) == ["a"]


def test_weights_are_in_one_file(tmp_path: Path) -> None:
    weights = np.arange(64, dtype=np.float32).reshape(8, 8)
    case = _case({"w": weights, "v": weights.astype(ml_dtypes.bfloat16)})
    program = case.program()
    found = found_first(program, case.inputs, WatchConfiguration())
    write_bundle(tmp_path / "b", case, FindingSignature.of(found), WatchConfiguration())
    assert 'store "data.safetensors"' in (tmp_path / "b" / "program.nnc").read_text()
    opened = open_program_folder(tmp_path / "b")
    assert opened.program.readers[0].read("w").tobytes() == weights.tobytes()
    assert FindingSignature.of(
        found_first(opened.program, opened.inputs, WatchConfiguration())
    ) == FindingSignature.of(found)


def _case(constants: dict[str, Any]) -> ReducedCase:
    program = nncdbg.parse("""#nncdbg 1
graph @main(%x: f32[8], %w: f32[8,8], %v: bf16[8,8]) -> (%y) {
  %a = MatMul(%w, %x)
  %c = Cast(%v, to=1)
  %b = Add(%a, %c)
  %n = Sub(%b, %b)
  %y = Log(%n)
  return %y
}
""")
    inputs = {"x": np.ones(8, np.float32)}
    whole = case_of_program(program, inputs)
    return ReducedCase(whole.nodes, whole.outputs, inputs, constants, whole.opsets)


SPECIAL = [np.nan, np.inf, -np.inf, -0.0]
VALUES: dict[str, Any] = {
    **{
        name: np.arange(6).astype(dtype).reshape(2, 3)
        for name, dtype in NUMPY.items()
        if name not in ("str", "c64", "c128")
    },
    "c64": np.array([1 + 2j], np.complex64),
    "c128": np.array([[1 + 2j, np.nan]]),
    "special": np.array(SPECIAL, np.float32),
    "special f16": np.array(SPECIAL, np.float16),
    "scalar": np.array(3.5, np.float64),
    "empty": np.zeros((0, 4), np.int32),
    "str": np.array([["a", "\udcff\u202e"], ["", "x\n"]], object),
    "sequence": [np.arange(3), np.zeros((2, 2), ml_dtypes.bfloat16)],
    "no items": [],
    "absent": None,
    "__metadata__": np.ones(2, np.float32),
    "odd \udc80 name": np.ones(2, np.float32),
}


def test_every_kind_of_value_reads_back(tmp_path: Path) -> None:
    tensors, entries = pack(VALUES)
    write_tensors(tmp_path / "t.safetensors", tensors)
    back = unpack(tmp_path / "t.safetensors", entries)
    assert list(back) == list(VALUES)
    for name, value in VALUES.items():
        assert _same(back[name], value), name


def _same(a: Any, b: Any) -> bool:
    if isinstance(b, list):
        return isinstance(a, list) and len(a) == len(b) and all(map(_same, a, b))
    if b is None:
        return a is None
    same = a.tolist() == b.tolist() if b.dtype == object else a.tobytes() == b.tobytes()
    return bool(same and a.dtype == b.dtype and a.shape == b.shape)


# -- errors ----------------------------------------------------------------------------------------


def test_a_folder_with_other_files_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)})
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["mine.txt"]


def test_an_older_bundle_is_replaced(tmp_path: Path) -> None:
    case = _case({"w": np.ones((8, 8), np.float32), "v": np.ones((8, 8), ml_dtypes.bfloat16)})
    found = found_first(case.program(), case.inputs, WatchConfiguration())
    write_bundle(tmp_path / "b", case, FindingSignature.of(found), WatchConfiguration())
    assert (tmp_path / "b" / "data.safetensors").exists()
    written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)})
    assert not (tmp_path / "b" / "data.safetensors").exists()
    assert (open_program_folder(tmp_path / "b").document.finding or {})["op"] == "Log"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_file_at_the_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("")
    with pytest.raises(UsageError, match="the path is a file"):
        written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)})


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_writing, "_move", full)
    with pytest.raises(LoadError, match="No space left on device"):
        written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)})
    assert list(tmp_path.iterdir()) == []


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "document cut": lambda b: (b / "nncdbg.json").write_bytes((b / "nncdbg.json").read_bytes()[:99]),
    "document empty": lambda b: (b / "nncdbg.json").write_text("{}"),
    "document deep": lambda b: (b / "nncdbg.json").write_text("[" * 100_000),
    "document not text": lambda b: (b / "nncdbg.json").write_bytes(b"\xff\xfe\x00"),
    "inputs gone": lambda b: (b / "inputs.safetensors").unlink(),
    "inputs cut": lambda b: (b / "inputs.safetensors").write_bytes(
        (b / "inputs.safetensors").read_bytes()[:-5]
    ),
    "program gone": lambda b: (b / "program.nnc").unlink(),
    "program wrong": lambda b: (b / "program.nnc").write_text("#nncdbg 1\ngraph"),
    "newer format": lambda b: _change(b, format=99),
    "other type": lambda b: _change(b, inputs={"x": {"tensor": "x", "dtype": "f16", "shape": [2, 3]}}),
    "no such type": lambda b: _change(b, inputs={"x": {"tensor": "x", "dtype": "f99", "shape": [2, 3]}}),
    "other shape": lambda b: _change(b, inputs={"x": {"tensor": "x", "dtype": "f32", "shape": [7]}}),
    "no such tensor": lambda b: _change(b, inputs={"x": {"tensor": "q", "dtype": "f32", "shape": [2, 3]}}),
}


def _change(folder: Path, **fields: Any) -> None:
    document = json.loads((folder / "nncdbg.json").read_text())
    (folder / "nncdbg.json").write_text(json.dumps(document | fields))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_bundle_is_an_error(tmp_path: Path, command: Command, damage: str) -> None:
    written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)})
    DAMAGES[damage](tmp_path / "b")
    for mode in ([], ["run"]):
        code, out, err = command(*mode, "b")
        assert (code, out) == (3, "")
        assert err.startswith("error: ")


def test_custom_kernels_of_a_bundle_are_not_run(tmp_path: Path, command: Command) -> None:
    library = tmp_path / "kernels.py"
    library.write_text("raise SystemExit('it was run')\n")
    written(tmp_path / "b", LOG, {"x": np.ones((2, 3), np.float32)}, op_libraries=[str(library)])
    code, out, err = command("b")
    assert (code, out) == (2, "")
    assert "needs custom kernels" in err


def test_an_absent_value_has_an_empty_entry() -> None:
    assert pack({"x": None}) == ({}, {"x": TensorEntry()})
