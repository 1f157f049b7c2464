"""The public Python API: the forms of a program argument, and how objects print."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import nncdbg

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "first_steps.nnc"

TEXT = """#nncdbg 1

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %h = Log(%x) : f32[4]
  %y = Mul(%h, 0.0) : f32[4]
  return %y
}
"""


def onnx_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> net (float[4] x) => (float[4] y) { y = Relu(x) }'
    )


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "net.nnc").write_text(TEXT)
    onnx.save(onnx_model(), str(tmp_path / "net.onnx"))
    return {"nnc": tmp_path / "net.nnc", "onnx": tmp_path / "net.onnx"}


USES: dict[str, Callable[[Any], Any]] = {
    "load": nncdbg.load,
    "run": nncdbg.run,
    "watch": nncdbg.watch,
    "Debugger": nncdbg.Debugger,
    "diff": lambda program: nncdbg.diff(program, program),
    "bisect": lambda program: nncdbg.bisect(program, {"x": [1.0, 2.0, 3.0, 4.0]}),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("suffix", ["nnc", "onnx"])
def test_every_function_accepts_a_path(use: str, suffix: str, files: dict[str, Path]) -> None:
    for source in (files[suffix], str(files[suffix])):
        assert USES[use](source) is not None


@pytest.mark.parametrize("use", USES)
def test_every_function_accepts_a_model_proto(use: str) -> None:
    assert USES[use](onnx_model()) is not None


@pytest.mark.parametrize("use", USES)
def test_a_source_that_is_not_a_program_is_an_error(use: str) -> None:
    with pytest.raises(nncdbg.LoadError, match=r"nowhere\.onnx does not exist"):
        USES[use]("nowhere.onnx")
    with pytest.raises(nncdbg.UsageError, match="cannot load a program from an object of type int"):
        USES[use](3)
    with pytest.raises(nncdbg.UsageError, match=r"program text, not a file path(.|\n)*nncdbg\.parse"):
        USES[use](TEXT)


def test_a_torch_module_alone_is_an_error_that_asks_for_its_arguments() -> None:
    module = type("Net", (), {"__module__": "torch.nn.modules.linear"})()
    with pytest.raises(nncdbg.UsageError, match="with its arguments"):
        nncdbg.load(module)


def test_run_returns_the_outputs() -> None:
    outputs = nncdbg.run(nncdbg.parse(TEXT), {"x": [1.0, 1.0, 1.0, 1.0]})
    assert isinstance(outputs, nncdbg.Outputs)
    assert outputs["y"].tolist() == [0.0] * 4


def test_run_raises_the_error_of_a_statement() -> None:
    text = "graph @main(%x: f32[2]) -> (%y) {\n  %y = mine.Unknown(%x)\n  return %y\n}\n"
    with pytest.raises(nncdbg.UnsupportedOp, match=r"mine\.Unknown"):
        nncdbg.run(nncdbg.parse(text))


def test_run_stops_at_its_limit() -> None:
    with pytest.raises(nncdbg.RunError, match="max-ops"):
        nncdbg.run(EXAMPLE, max_ops=3)


def printed(*arguments: str) -> str:
    command = [sys.executable, "-m", "nncdbg", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout


def without_time(text: str) -> str:
    head, _, rest = text.partition("\n")
    return head.rpartition(" (")[0] + "\n" + rest


def test_a_report_prints_as_the_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    report = nncdbg.watch("examples/nan_softmax.nnc")
    assert without_time(str(report)) + "\n" == without_time(printed("watch", "examples/nan_softmax.nnc"))
    assert repr(report) == str(report)
    first = report.findings[0]
    assert (first.line, first.op, first.value) == (21, "Log", "logq")
    assert str(first) == "the first Inf is in %logq: Log produced it from operands without Inf"


def test_a_comparison_prints_as_the_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    report = nncdbg.diff("examples/attention.nnc", dtype_b="f16")
    assert str(report) + "\n" == printed("diff", "examples/attention.nnc", "--dtype-b", "f16")
    assert repr(report) == str(report)


def test_a_program_is_described_in_one_line() -> None:
    program = nncdbg.parse(TEXT)
    signature = "@main(%x: f32[4]) -> (%y: f32[4]), 2 statements in 1 graph"
    assert repr(program) == f"<Program {signature}>"
    assert repr(nncdbg.load(EXAMPLE)).startswith("<Program first_steps.nnc: @main(%x: f32[2,4]) -> (")
    assert program.graph is program.graphs["main"]


def test_the_description_of_a_program_lists_its_first_inputs() -> None:
    inputs = ", ".join(f"%x{number}: f32[]" for number in range(9))
    program = nncdbg.parse(
        f"graph @main({inputs}) -> (%y: f32[]) {{\n  %y = Add(%x0, %x8)\n  return %y\n}}\n"
    )
    assert "(%x0: f32[], %x1: f32[], %x2: f32[], %x3: f32[], 5 more)" in repr(program)


def test_the_description_of_a_debugger_has_its_position() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT))
    assert repr(debugger).endswith("; stopped (entry) at line 4: Log>")
    assert repr(debugger.frames) == "[<Frame @main, next: Log>]"
    point = debugger.break_at(op="Mul", hits=1)
    assert repr(point) == "<Breakpoint 1: op Mul hits 1, reached 0 times>"
    stop = debugger.run()
    assert repr(stop) == "Stop('breakpoint', line=5, op='Mul', detail='breakpoint 1, op Mul hits 1')"
    debugger.breakpoints.enable(1, False)
    assert repr(point) == "<Breakpoint 1: op Mul hits 1, reached 1 times, disabled>"
    debugger.run()
    assert repr(debugger).endswith("; ended after 3 statements>")


def test_a_hostile_name_is_escaped_in_descriptions() -> None:
    program = nncdbg.parse(TEXT.replace("@main", '@"a\\u001b]0;b"'))
    for shown in (program, nncdbg.Debugger(program), nncdbg.Debugger(program).frames[0]):
        assert "\x1b" not in repr(shown)


def members(kind: type) -> list[tuple[str, Any]]:
    """The public methods and properties that a class defines itself."""
    found = [(name, getattr(each, "fget", each)) for name, each in vars(kind).items()]
    return [(name, each) for name, each in found if not name.startswith("_") and inspect.isfunction(each)]


def test_every_public_name_is_documented() -> None:
    for name in {*nncdbg.__all__} - {"__version__", "ProgramSource"}:
        public = getattr(nncdbg, name)
        assert inspect.getdoc(public), name
        for member, function in members(public) if isinstance(public, type) else ():
            assert inspect.getdoc(function), f"{name}.{member}"


def test_every_public_name_exists() -> None:
    for name in nncdbg.__all__:
        assert getattr(nncdbg, name) is not None
    assert dir(nncdbg) == nncdbg.__all__
    with pytest.raises(AttributeError, match="wach"):
        getattr(nncdbg, "wach")  # noqa: B009  a typing error of a user


def test_an_input_is_an_array_a_list_or_a_generator_name() -> None:
    given: list[Any] = [np.ones(4, np.float32), [1, 1, 1, 1], "ones"]
    for data in given:
        assert nncdbg.run(nncdbg.parse(TEXT), {"x": data})["y"].tolist() == [0.0] * 4


def test_a_command_of_the_prompt_returns_what_it_prints() -> None:
    debugger = nncdbg.Debugger(ROOT / "examples" / "nan_softmax.nnc", seed=1)
    printed = nncdbg.execute(debugger, "# to the loss\nbreak 11\ncontinue\npy\nexecute('p max(%q)')\nend\n")
    assert printed.endswith("\n1.0")
    assert debugger.stop.line == 11
    debugger.run()
    assert "cause: zero times infinity" in nncdbg.execute(debugger, "why %loss")


@pytest.mark.parametrize(
    ("commands", "message"),
    [("wach", "no command"), ("p %nothing", "no value"), ("py\n1 + 1", "no `end` line")],
)
def test_a_command_that_fails_raises(commands: str, message: str) -> None:
    with pytest.raises(nncdbg.NncdbgError, match=message):
        nncdbg.execute(nncdbg.Debugger(EXAMPLE), commands)


def test_reduce_writes_a_bundle_with_the_finding(tmp_path: Path) -> None:
    program = nncdbg.parse(TEXT.replace("%h = Log(%x) : f32[4]", "%z = Neg(%x)\n  %h = Log(%x) : f32[4]"))
    reduced = nncdbg.reduce(program, {"x": [-1.0, 1.0, 2.0, 3.0]}, folder=tmp_path / "repro", fail_on="nan")
    assert (reduced.finding.kind, reduced.finding.statement) == ("nan", "%h = Log(%x) : f32[1]")
    assert "Neg" not in str(reduced.program)
    assert "Log" in str(reduced.program)
    assert [*reduced.inputs] == ["x"]
    report = nncdbg.watch(reduced.program, reduced.inputs)
    assert [(each.kind, each.op) for each in report.findings if each.first] == [("nan", "Log")]
    with pytest.raises(nncdbg.UsageError):
        nncdbg.reduce(program, {"x": [1.0, 1.0, 2.0, 3.0]}, folder=tmp_path / "nothing")


def test_bisect_reports_the_statements_that_must_keep_their_types() -> None:
    text = """graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %h = Exp(%x) : f32[4]
  %y = Log(%h) : f32[4]
  return %y
}
"""
    report = nncdbg.bisect(nncdbg.parse(text), {"x": [1.0, 5.0, 12.0, 20.0]})
    assert {each.site.op for each in report.kept} == {"Exp", "Log"}
    assert str(report).startswith("2 of 2 statements must keep their types; all others run in f16:\n")
    assert "%h = Exp(%x) : f32[4]" in str(report)
    np.testing.assert_allclose(
        nncdbg.run(report.program, {"x": [1.0, 5.0, 12.0, 20.0]})["y"], [1, 5, 12, 20], 1e-6
    )
    fine = nncdbg.bisect(nncdbg.parse(text), {"x": [1.0, 1.0, 2.0, 2.0]})
    assert str(fine) == "all 2 statements can run in f16"
    with pytest.raises(nncdbg.UsageError, match="cannot narrow"):
        nncdbg.bisect(nncdbg.parse(text), dtype="f8")


def test_an_input_that_does_not_fit_is_an_input_error() -> None:
    with pytest.raises(nncdbg.InputError):
        nncdbg.run(nncdbg.parse(TEXT), {"x": [1.0]})


def test_a_ragged_list_is_an_input_error_with_the_type_of_the_input() -> None:
    with pytest.raises(nncdbg.InputError) as caught:
        nncdbg.run(EXAMPLE, {"x": [[1, 2], [3]]})
    assert str(caught.value).splitlines() == [
        "input %x is a ragged list: [0] has 2 items, [1] has 1 item",
        "  with %x: f32[2,4] (the graph)",
        "  hint: use rows of equal length",
    ]


def test_variables_of_the_statement_name_its_values() -> None:
    debugger = nncdbg.Debugger(EXAMPLE, seed=1)
    debugger.run_to(line=11)
    assert debugger.stats("$in0").count == 8
    assert debugger["$in0"].name == "h"
    with pytest.raises(nncdbg.NncdbgError, match=r"there is no \$in9: the statement has 2 operands"):
        debugger.value("$in9")
    debugger.step_over()
    np.testing.assert_array_equal(debugger.value("$out"), debugger.value("%scores"))
    assert repr(debugger["$out"]).startswith("<Tensor %scores f32[2,3]")
    debugger.evaluate("$twice = 2 * $out")
    largest = debugger.stats("%scores").max
    assert largest is not None
    assert debugger.stats("$twice").max == 2 * largest
    with pytest.raises(nncdbg.ExpressionError, match=r"no variable `\$nothing`"):
        debugger.stats("$nothing")


def test_an_argument_of_a_wrong_type_raises_an_nncdbg_error() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT))
    calls: list[tuple[Callable[..., Any], Any, str]] = [
        (lambda data: nncdbg.run(nncdbg.parse(TEXT), data), [1.0], "a dict keyed by name, not list"),
        (lambda data: nncdbg.run(nncdbg.parse(TEXT), data), "x.npy", "a dict keyed by name, not str"),
        (lambda data: nncdbg.run(nncdbg.parse(TEXT), data), {3: 1.0}, 'no input "3"'),
        (lambda dims: nncdbg.run(nncdbg.parse(TEXT), dims=dims), [1], "dims must be a dict keyed by name"),
        (lambda backend: nncdbg.run(nncdbg.parse(TEXT), backend=backend), 5, "unknown backend 5"),
        (lambda text: nncdbg.parse(text), 3, "graph text must be a string, not int"),
        (
            lambda when: debugger.break_at(op="Log", when=when),
            3,
            "an expression must be a string, not int",
        ),
        (lambda log: debugger.break_at(op="Log", log=log), 3, "a log message must be a string, not int"),
        (lambda source: debugger.break_at(source=source), ("net.py",), "must be a file and a line"),
        (lambda name: debugger.value(name), 3, "the name of a value must be a string, not int"),
        (lambda line: debugger.break_at(line=line), "x", "the line must be a number, not 'x'"),
        (lambda op: debugger.break_at(op=op), 3, "op must be a string, not int"),
        (lambda commands: nncdbg.execute(debugger, commands), 3, "commands must be a string, not int"),
        (lambda source: nncdbg.execute(source, "why"), EXAMPLE, "needs a Debugger, not an object"),
    ]
    for call, argument, message in calls:
        with pytest.raises(nncdbg.NncdbgError, match=message):
            call(argument)


def test_a_finding_contains_its_statement() -> None:
    report = nncdbg.watch(nncdbg.parse(TEXT), {"x": [-1.0, 1.0, 2.0, 3.0]})
    assert [each.statement for each in report.findings if each.first] == ["%h = Log(%x) : f32[4]"]


def test_a_report_lists_the_innermost_call_first() -> None:
    text = """#nncdbg 1
opset 18
graph @main(%x: f32[1]) -> (%y) {
  %y = @outer(%x)
  return %y
}
graph @outer(%x: f32[1]) -> (%y) {
  %y = @inner(%x)
  return %y
}
graph @inner(%x: f32[1]) -> (%y) {
  %y = Log(%x)
  return %y
}
"""
    report = nncdbg.watch(nncdbg.parse(text), {"x": [-1.0]})
    assert "in @inner, called at line 8 of @outer, called at line 4 of @main" in str(report)


def _records() -> dict[str, object]:
    """Return an instance of each public class that prints fields."""
    debugger = nncdbg.Debugger(EXAMPLE.parent / "nan_softmax.nnc", seed=1)
    breakpoint_ = debugger.break_at(line=10, when="std(%sharp) > 0")
    debugger.run()
    debugger.catch("nan")
    stop = debugger.run()
    debugger.mark("here")
    report = nncdbg.watch(EXAMPLE.parent / "nan_softmax.nnc", seed=1)
    builder = nncdbg.Builder()
    with builder.graph("main"):
        value = builder.input("x", "f32[2]")
        builder.returns(value)
    eager = nncdbg.eager()
    program = nncdbg.load(EXAMPLE)
    found = (
        stop,
        breakpoint_,
        stop.finding,
        debugger.frames[0],
        debugger["sharp"],
        debugger.stats("sharp"),
        report,
        report.findings[0],
        nncdbg.diff(program, program),
        nncdbg.bisect(program),
        program,
        program.graph,
        program.graph.nodes[0],
        program.graph.inputs[0].type,
        builder,
        value,
        eager,
        eager.input("x", np.ones(2, np.float32)),
        debugger,
        *debugger.timeline.branches,
        *debugger.timeline.marks.values(),
    )
    return {type(each).__name__: each for each in found}


def _printed_fields(record: object) -> list[str]:
    """Return the fields in a text such as `Stop('end', line=None)`; none for other texts."""
    try:
        call = ast.parse(repr(record), mode="eval").body
    except SyntaxError:
        return []
    return [each.arg for each in call.keywords if each.arg] if isinstance(call, ast.Call) else []


def test_every_field_that_a_record_prints_is_an_attribute() -> None:
    records = _records()
    printed = {name: _printed_fields(record) for name, record in records.items()}
    assert printed["Stop"] == ["line", "op", "detail"]
    assert sum(map(bool, printed.values())) >= 5
    missing = [(name, f) for name, fields in printed.items() for f in fields if not hasattr(records[name], f)]
    assert missing == []


def test_the_op_of_a_stop_is_that_of_its_statement() -> None:
    stop = nncdbg.Debugger(EXAMPLE).run()
    assert (stop.reason, stop.op) == ("end", None)
    debugger = nncdbg.Debugger(EXAMPLE)
    assert debugger.step_over().op == debugger.stop.node.op  # type: ignore[union-attr]
