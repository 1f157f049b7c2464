"""Code that uses every public name, for a strict type checker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import assert_type

import numpy as np
import numpy.typing as npt
import onnx

import nncdbg
from nncdbg import Debugger, Program, TensorType


def open_all(path: Path, model: onnx.ModelProto) -> list[Program]:
    assert nncdbg.__version__
    source: nncdbg.ProgramSource = str(path)
    return [
        nncdbg.load(path, flat=True),
        nncdbg.load(model, stores=[path]),
        nncdbg.parse("text"),
        nncdbg.load(source),
    ]


def describe(program: Program) -> str:
    graph: nncdbg.Graph = program.graph
    names = [value.name for value in graph.inputs]
    types = [value.type for value in graph.outputs if isinstance(value.type, TensorType)]
    return f"{names} {[kind.dtype for kind in types]} {program!r} {program}"


def build() -> Program:
    b = nncdbg.Builder(opset=18)
    with b.graph("main"):
        x = b.input("x", "f32[3]")
        b.returns(b.Softmax(x * 2.0, axis=0, name="y"))
    return b.program()


def drive(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    debugger = Debugger(
        path, {"x": np.ones(3, np.float32), "n": 3, "t": "zeros"}, dims={"N": 4}, history="1GiB"
    )
    point = debugger.break_at(line=12, when="std(%h) > 10", hits=">=3")
    assert_type(point, nncdbg.Breakpoint)
    debugger.watch_value("%h", when="%h[0] > 1")
    debugger.catch("nan", "inf")
    stop = debugger.run()
    assert_type(stop, nncdbg.Stop)
    print(stop.reason, stop.line, stop.detail, stop.breakpoints, stop.error)
    for move in (debugger.step_over, debugger.step_into, debugger.step_out, debugger.step_back):
        assert_type(move(), nncdbg.Stop)
    debugger.run_to(line=4)
    debugger.reverse_continue()
    mark = debugger.mark("here")
    assert_type(mark, nncdbg.Mark)
    debugger.go_to(mark)
    debugger.go_to(mark.name)
    frames = debugger.frames
    assert_type(frames, list[nncdbg.Frame])
    print([(frame.iteration, frame.code.graph.name) for frame in frames])
    array = debugger.value("%h")
    print(array.mean(), array.shape, array[0])
    summary = debugger.stats("%h")
    assert_type(summary, nncdbg.Summary)
    assert_type(summary.mean, float | None)
    assert_type(summary.nan, int)
    tensor = debugger["%h"]
    assert_type(tensor, nncdbg.Tensor)
    print(np.asarray(tensor), tensor.stats.std, tensor.type.shape)
    branch = debugger.set_value("%h", 0.0, (0, slice(2)))
    assert_type(branch, nncdbg.Branch)
    print(debugger.evaluate("mean(%h)"), branch.parent)
    point.enabled = False
    debugger.delete(point.number)
    debugger.delete()
    outputs = debugger.outputs
    return {} if outputs is None else dict(outputs)


def check(path: Path) -> bool:
    report = nncdbg.watch(path, {"x": "zeros"}, fail_on=("nan", "inf"), strict=True)
    assert_type(report, nncdbg.Report)
    for finding in report.findings:
        assert_type(finding, nncdbg.WatchFinding)
        print(finding.kind, finding.line, finding.op, finding.value, finding.cause, finding.stats)
    many: nncdbg.Report = nncdbg.watch(path, inputs_dir="cases", jobs=2, executor="dask", budget=60)
    print(many.cases[0].status)
    over_inputs = nncdbg.diff_corpus(path, str(path), inputs_dir="cases", executor="processes", rtol=1e-3)
    assert_type(over_inputs, nncdbg.DiffCorpusReport)
    print(over_inputs.counts, [case.site for case in over_inputs.differing], over_inputs.firsts)
    compared = nncdbg.diff(path, str(path), rtol=1e-3)
    assert_type(compared, nncdbg.DiffReport)
    print(compared.status, compared.first, compared.outputs_agree)
    reduced = nncdbg.reduce(path, {"x": path}, folder=path.parent / "repro", fail_on=("nan",))
    assert_type(reduced, nncdbg.Reduced)
    print(reduced.finding.statement, reduced.program, reduced.inputs, reduced.runs)
    mixed = nncdbg.bisect(path, dtype="bf16", rtol=1e-2)
    assert_type(mixed, nncdbg.BisectReport)
    print([each.site.op for each in mixed.kept], mixed.program)
    printed: str = nncdbg.execute(nncdbg.Debugger(path), "list")
    assert printed
    ordered: nncdbg.Program = nncdbg.in_order(nncdbg.load(path), 2)
    nncdbg.run(ordered)
    kernels: dict[str, str] = nncdbg.read_kernels("kernels.json")
    nncdbg.run(path, kernels=kernels)
    outputs = nncdbg.run(path, {"x": [1.0, 2.0]}, seed=3)
    assert_type(outputs, nncdbg.Outputs)
    print(outputs["y"].sum(), nncdbg.summarize(outputs["y"]).max, nncdbg.summarize([1.0, 2.0]))
    return report.ok and compared.equal


@nncdbg.op("mine.Twice", infer=lambda attributes, types: [types[0]])
def twice(xp: object, x: npt.NDArray[np.float32], *, times: int = 1) -> npt.NDArray[np.float32]:
    return x * np.float32(2**times)


def infer(attributes: object, types: Sequence[object]) -> Sequence[object]:
    return types


def kernels(path: Path) -> tuple[str, ...]:
    nncdbg.declare(nncdbg.Op("mine.Same", kernel=None, infer=infer))
    return nncdbg.load_op_library(path)


def training() -> nncdbg.LoadedStates:
    builder = nncdbg.Builder()
    layers = nncdbg.Layers(builder)
    with builder.graph("net"):
        x: nncdbg.GraphValue = builder.input("x", "f32[N,4]")
        builder.returns(layers.linear("out", x, 2))
    nncdbg.save_states(Debugger(builder.program()).states, "states.safetensors")
    nncdbg.write_onnx(builder.program(), "net.onnx")
    print(nncdbg.to_onnx(builder.program()).training_info)
    return nncdbg.load_states(builder.program(), "states.safetensors")


def edited(program: Program) -> Program:
    edit = nncdbg.Editor(program)
    graph: nncdbg.EditedGraph = edit.graph()
    block: nncdbg.EditedBlock = graph
    print(graph.calls)
    statement: nncdbg.EditedStatement = next(iter(block))
    value: nncdbg.EditedValue = statement.outputs[0]
    print(value.uses, statement.id)
    trained = nncdbg.minimize(program, "l", optimizer="SGD", lr=0.1)
    print(nncdbg.grad(program, of="l", by=["w"]), trained)
    return edit.program()


def dynamic() -> str:
    session: nncdbg.Eager = nncdbg.eager()
    x: nncdbg.EagerVariable = session.input("x", [1.0, 2.0])
    return f"{(x + 1).shape}"


def attach() -> bool:
    host, port = nncdbg.listen(("127.0.0.1", 0))
    print(host, port)
    nncdbg.breakpoint()
    return nncdbg.wait_for_client(timeout=1.0) and nncdbg.is_client_connected()


def errors(path: Path) -> int:
    try:
        Debugger(path)
    except nncdbg.ParseError as error:
        print(error.errors)
    except (nncdbg.UnsupportedOp, nncdbg.GraphError, nncdbg.LoadError) as error:
        print(error.message, error.hint, error.excerpt, error.operands, error.source)
    except nncdbg.InputError as error:
        print(error.operands)
    except (nncdbg.ExpressionError, nncdbg.NotComputed, nncdbg.UsageError):
        return 2
    except nncdbg.MemoryFault as error:
        print(error.kind)
    except nncdbg.RunError as error:
        return error.exit_code
    except nncdbg.NncdbgError:
        return 1
    return 0
