"""Each writer of a file, over all kinds of programs: what it writes can be read back, and says the same."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import nncdbg
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.reduction.reducing import ReductionJob
from nncdbg.opening.folder_writing import write_folder
from nncdbg.terminal.main import main

HEAD = "#nncdbg 1\nopset 18\n"
LOSS = """graph @loss(%x: f32[4,2]) -> (%l: f32[]) {
  %h: f32[4,2] = @layer(%x)
  %d: f32[4,2] = Mul(%h, %h)
  %l: f32[] = ReduceMean(%d, keepdims=0)
  return %l
}
graph @layer(%x: f32[4,2]) -> (%h: f32[4,2]) {
  %y: f32[4,2] = Mul(%x, %w)
  %h: f32[4,2] = Tanh(%y)
  return %h
}
backward @loss.backward of @loss by (%w)
"""

PROGRAMS = {
    "plain": """graph @main(%x: f32[2,3]) -> (%y) {
  %h = Relu(%x)  # a comment
  %y = Exp(%h)
  return %y
}
""",
    "constants": """graph @main(%x: f32[2]) -> (%y) {
  %c: f32[2] = [1.5, -inf]
  %m = Max(%x, %c)
  %y = Add(%m, %m)
  return %y
}
""",
    "control flow": """graph @main(%x: f32[3]) -> (%y) {
  %s: f32[] = ReduceSum(%x, keepdims=0)
  %big: bool[] = Greater(%s, 0)
  if %big {
    %a: f32[3] = Neg(%x)
    yield %a
  } else {
    %b: f32[3] = Exp(%x)
    yield %b
  } -> (%z)
  while @i (%h: f32[3] = %z) times 3 {
    %k: f32[3] = Tanh(%h)
    next %h = %k
  } -> (%y = %h)
  return %y
}
""",
    "calls": """graph @main(%x: f32[3]) -> (%y) {
  %a: f32[3] = @twice(%x)
  %y: f32[3] = @twice(%a)
  return %y
}
graph @twice(%x: f32[3]) -> (%y: f32[3]) {
  %y: f32[3] = Add(%x, %x)
  return %y
}
""",
    "states": """state %w: f32[2] = [1.0, 2.0]
state %n: i64[] = 0
graph @train() -> (%l: f32[]) {
  %p: f32[2] = Mul(%w, %w)
  %l: f32[] = ReduceMean(%p, keepdims=0)
  %w.1: f32[2] = nncdbg.SGD(%w, %w, lr=0.5)
  %n.1: i64[] = Add(%n, 1)
  update %w = %w.1, %n = %n.1
  return %l
}
run @train steps 3
""",
    "gradients": "state %w: f32[2] = [0.5, 2.0]\nstate %m: f32[2] = zeros for %w\n"
    + """graph @train() -> (%l: f32[]) {
  %x: f32[4,2] = RandomNormal(shape=[4,2], seed=3.0)
  %l: f32[], saved %s = @loss(%x)
  %d: f32[2] = @loss.backward(1.0, %s)
  %w.1: f32[2], %m.1: f32[2] = nncdbg.SGD(%w, %d, %m, lr=0.1, momentum=0.9)
  update %w = %w.1, %m = %m.1
  return %l
}
"""
    + LOSS
    + "run @train steps 4\n",
    "data": """state %w: f32[2] = [1.0, 2.0]
graph @train(%x: f32[N,2]) -> (%l: f32[]) {
  %p: f32[N,2] = Mul(%x, %w)
  %l: f32[] = ReduceMean(%p, keepdims=0)
  %w.1: f32[2] = nncdbg.SGD(%w, %w, lr=0.5)
  update %w = %w.1
  return %l
}
run @train for %x batch 2 epochs 2 shuffle 1
""",
    "schedule": """graph @main(%x: f32[2,3]) -> (%y) {
  %a: f32[2,3] = Relu(%x) | s0 record e1
  %b: f32[2,3] = Exp(%a) | s1 wait e1 record e2
  %y: f32[2,3] = Neg(%b) | s0 wait e2 record e3
  return %y | host wait e3
}
""",
}
ONNX = "onnx"
BROKEN = {
    "plain": ("Relu", "Log"),
    "constants": ("Max(%x, %c)", "Sub(%c, %c)"),
    "control flow": ("Tanh", "Log"),
    "calls": ("Add(%x, %x)", "Sqrt(%x)"),
    "states": ("Mul(%w, %w)", "Sqrt(%w)"),
    "gradients": ("Tanh", "Log"),
    "data": ("Mul(%x, %w)", "Div(%x, 0.0)"),
    "schedule": ("Relu", "Log"),
    ONNX: ("Relu", "Log"),
}
TRAININGS = {"states", "gradients", "data"}
NAMES = [*PROGRAMS, ONNX]

Case = tuple[Path, Path]
"""The file of a program, and an empty folder."""


def _made(name: str, folder: Path) -> Path:
    """Write a program to a file."""
    if name != ONNX:
        path = folder / "program.nnc"
        path.write_text(HEAD + PROGRAMS[name])
        return path
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["/h/MatMul"], "/h/MatMul"),
        helper.make_node("Relu", ["/h/MatMul"], ["y"], "/h/Relu"),
    ]
    weights = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [1.0, -2.0, 3.0, 0.5, -0.25, 4.0])
    inputs = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    outputs = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])
    graph = helper.make_graph(nodes, "g", [inputs], [outputs], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _run(path: Path | str, *options: str, code: int = 0) -> None:
    assert main(["run", str(path), *_sizes(path), *options]) == code


def _sizes(path: Path | str) -> list[str]:
    """Return the sizes that a file needs."""
    text = Path(path).read_bytes() if Path(path).is_file() else b""
    return ["--dim", "samples=4"] if b"run @train for %x" in text else []


def _same_results(path: Path, other: Path | str, folder: Path, *, same: bool = True) -> None:
    """Run both programs, and compare the bits of their outputs."""
    found = []
    for number, each in enumerate((path, other)):
        _run(each, "--save-outputs", str(folder / str(number)))
        found.append({file.name: np.load(file) for file in sorted((folder / str(number)).iterdir())})
    assert found[0].keys() == found[1].keys()
    differing = [name for name in found[0] if found[0][name].tobytes() != found[1][name].tobytes()]
    assert bool(differing) != same


def _text(path: Path, folder: Path) -> None:
    assert main(["print", str(path), "-o", str(folder / "out.nnc")]) == 0
    program, again = nncdbg.load(path), nncdbg.load(folder / "out.nnc")
    assert again.text() == program.text() or path.suffix == ".onnx"
    _same_results(path, folder / "out.nnc", folder)


def _folder(path: Path, folder: Path) -> None:
    program = nncdbg.load(path)
    dims = {"samples": 4} if _sizes(path) else {}
    debugger = nncdbg.Debugger(program, dims=dims)
    write_folder(folder / "out", program, debugger.inputs, settings={"dims": dims} if dims else None)
    _same_results(path, folder / "out", folder)


def _plan(path: Path, folder: Path) -> None:
    file = str(folder / "plan.json")
    assert main(["watch", str(path), *_sizes(path), "--memory", "--write-plan", file]) == 0
    assert main(["watch", str(path), *_sizes(path), "--memory", "--plan", file]) == 0


def _schedule(path: Path, folder: Path) -> None:
    file = str(folder / "schedule.json")
    margins = [] if "| s0" in path.read_text(errors="replace") else ["--streams", "2"]
    assert main(["print", str(path), *margins, "-o", file]) == 0
    assert main(["print", str(path), "--schedule", file, "-o", str(folder / "out.nnc")]) == 0
    assert main(["races", str(folder / "out.nnc"), *_sizes(path)]) == 0


def _outputs(path: Path, folder: Path) -> None:
    _run(path, "--save-outputs", str(folder / "outputs"))
    files = {each.stem: np.load(each) for each in (folder / "outputs").iterdir()}
    assert files
    np.savez(folder / "golden.npz", **files)
    assert main(["diff", str(path), *_sizes(path), "--golden", str(folder / "golden.npz")]) == 0


def _states(path: Path, folder: Path) -> None:
    _run(path, "--save-states", str(folder / "states.safetensors"))
    _run(path, "--states", str(folder / "states.safetensors"), "--strict-states")


def _journal(path: Path, folder: Path) -> None:
    file = folder / "run.db"
    _run(path, "--journal", str(file), "--journal-values", "*", "--journal-statistics")
    path.unlink()
    _run(f"{file}@1")
    _run(f"{file}@1", "--fork")
    assert main(["diff", f"{file}#1", f"{file}#2", "--strict"]) == 0


def _baseline(path: Path, folder: Path) -> None:
    file = str(folder / "baseline.json")
    assert main(["watch", str(path), *_sizes(path), "--write-baseline", file]) == 0
    assert main(["watch", str(path), *_sizes(path), "--baseline", file]) == 0


def _recorded_statistics(path: Path, folder: Path) -> None:
    file = str(folder / "good.jsonl")
    assert main(["watch", str(path), *_sizes(path), "--record", file]) == 0
    assert main(["watch", str(path), *_sizes(path), "--against", file]) == 0


def _kernels(path: Path, folder: Path) -> None:
    file = str(folder / "kernels.json")
    assert main(["autotune", str(path), *_sizes(path), "-o", file]) == 0
    _run(path, "--kernels", file)


def _session(path: Path, folder: Path) -> None:
    file, script = str(folder / "session.log"), folder / "commands.txt"
    script.write_text("step\ninfo inputs\ncontinue\nquit\n")
    assert main([str(path), *_sizes(path), "--record", file, "-x", str(script)]) == 0
    assert main(["replay", file]) == 0


def _onnx(path: Path, folder: Path) -> None:
    assert main(["print", str(path), "-o", str(folder / "out.onnx")]) == 0
    _same_results(path, folder / "out.onnx", folder)


def _watched(path: Path, *options: str) -> tuple[str, str]:
    """Return the kind and the op of the first finding of a watch."""
    report = path.parent / "report.json"
    with report.open("w") as file, contextlib.redirect_stdout(file):
        assert main(["watch", str(path), *_sizes(path), "--json", *options]) == 1
    first = json.loads(report.read_text())["findings"][0]
    return first["kind"], first["op"]


def _break(path: Path, name: str) -> None:
    """Replace an op, so that the program has a NaN or Inf."""
    old, new = BROKEN[name]
    if name != ONNX:
        path.write_text(path.read_text().replace(old, new).replace("lr=0.5", "lr=3.0"))
        return
    model = onnx.load(path)
    model.graph.node[-1].op_type = new
    onnx.save(model, path)


def _bundle(path: Path, folder: Path) -> None:
    found = _watched(path, "--bundle", str(folder / "bundle"))
    assert _watched(folder / "bundle") == found


def _reduced(path: Path, folder: Path) -> None:
    program, configuration = nncdbg.load(path), WatchConfiguration()
    dims = {"samples": 4} if _sizes(path) else {}
    inputs = configuration.debugger(program, {}, dims=dims).inputs
    ReductionJob(program, inputs, configuration).run(folder / "reduced")
    assert _watched(folder / "reduced") == _watched(path)


def _order(path: Path, folder: Path) -> None:
    """Write an order of a schedule without its waits; a correct one has only orders with equal values."""
    margins = [] if "| s0" in path.read_text(errors="replace") else ["--streams", "2"]
    racy, order, printed = folder / "racy.nnc", folder / "order.nnc", io.StringIO()
    assert main(["print", str(path), *margins, "-o", str(racy)]) == 0
    racy.write_text(re.sub(r"(\| s\d) wait e\d+", r"\1", racy.read_text()))
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(["races", str(racy), *_sizes(racy), "--schedules", "10", "-o", str(order)])
    assert code in (0, 1)
    _same_results(racy, order, folder, same="with other values" not in printed.getvalue())


WRITERS: dict[str, tuple[Callable[[Path, Path], None], set[str]]] = {
    "print -o FILE.nnc": (_text, {*NAMES}),
    "write_folder": (_folder, {*NAMES}),
    "print -o FILE.onnx": (_onnx, {"plain", "constants", "control flow", "calls", ONNX}),
    "print -o schedule.json": (_schedule, {"plain", "constants", "calls", "schedule", ONNX}),
    "watch --write-plan": (_plan, {*NAMES}),
    "watch --write-baseline": (_baseline, {*NAMES}),
    "watch --record": (_recorded_statistics, {*NAMES}),
    "run --save-outputs": (_outputs, {*NAMES}),
    "run --save-states": (_states, TRAININGS),
    "run --journal": (_journal, TRAININGS),
    "autotune -o": (_kernels, {*NAMES} - TRAININGS),
    "--record": (_session, {*NAMES}),
    "watch --bundle": (_bundle, {*NAMES}),
    "reduce -o": (_reduced, {*NAMES}),
    "races -o": (_order, {*NAMES}),
}
OF_FINDINGS = {"watch --bundle", "reduce -o"}
"""Writers that need a finding."""

"""The writers, and the programs for which they are."""

CASES = [(writer, name) for writer, (_, names) in WRITERS.items() for name in NAMES if name in names]


@pytest.mark.parametrize(("writer", "name"), CASES)
def test_a_written_file_is_read_back(
    writer: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "written").mkdir()
    path = _made(name, tmp_path / "source")
    if writer in OF_FINDINGS:
        _break(path, name)
    try:
        WRITERS[writer][0](path, tmp_path / "written")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{capsys.readouterr().err}") from None
    shutil.rmtree(tmp_path / "written")
