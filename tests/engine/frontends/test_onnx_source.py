"""The source view of an ONNX model whose nodes have stack traces, as torch's exporter writes them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import nncdbg
from nncdbg.commands.session import CommandSession
from nncdbg.ir.source_trace import StackLine, trace_of_stacks
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget

SOURCE = """class Block:
    def forward(self, x):
        h = x * 2
        return x + log(h)


class Net:
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return -x
"""
LIBRARY = "/usr/lib/python3/site-packages/torch/nn/modules/module.py"
CALL, DOUBLE, LOG, NEGATE = 10, 3, 4, 11


def trace(file, *lines):
    texts = SOURCE.splitlines()
    entries = [f'File "{file}", line {line}, in forward\n    {texts[line - 1].strip()}' for line in lines]
    return "\n  ".join([*entries, f'File "{LIBRARY}", line 7, in __call__\n    return self.forward(x)'])


def model(file, *, scoped=True):
    """Return a model of two blocks; each node has the stack trace of its line in `file`."""
    nodes: list[tuple[onnx.NodeProto, tuple[int, ...], int | None]] = []
    value = "x"
    for number in range(2):
        double, log, total = (f"{name}.{number}" for name in ("double", "log", "sum"))
        nodes += [
            (helper.make_node("Add", [value, value], [double]), (CALL, DOUBLE), number),
            (helper.make_node("Log", [double], [log]), (CALL, LOG), number),
            (helper.make_node("Add", [value, log], [total]), (CALL, LOG), number),
        ]
        value = total
    nodes.append((helper.make_node("Neg", [value], ["y"]), (NEGATE,), None))
    for node, lines, block in nodes:
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace(file, *lines))
        if scoped and block is not None:
            scopes = f"['', 'blocks.{block}', '{node.output[0]}']"
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    given, returned = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")
    )
    graph = helper.make_graph([node for node, *_ in nodes], "main_graph", [given], [returned])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    return file


def run(target, *lines):
    out = io.StringIO()
    session = CommandSession(target, "net.onnx", Screen(out, out, width=100))
    for line in lines:
        session.execute(line)
    return out.getvalue()


def target_of(found):
    return ProgramTarget(nncdbg.Debugger(found, {"x": np.array([1, 4], np.float32)}))


def place(target):
    frame = target.source.frames()[0]
    return frame.function, frame.line


def test_lines_are_stepped_forward_and_back_over_the_loop(source):
    target = target_of(model(source))
    walked = [place(target)]
    for _ in range(6):
        target.source.step()
        walked.append(place(target))
    block = [("forward", CALL), ("forward", DOUBLE), ("forward", LOG)]
    assert walked == [*block, *block, ("forward", NEGATE)]
    for expected in walked[-2::-1]:
        target.source.back(into=True)
        assert place(target) == expected


def test_the_source_is_listed_with_its_call_stack(source):
    text = run(target_of(model(source)), "step", "backtrace", "list")
    assert f"*#0 forward, {source}:{DOUBLE}: h = x * 2" in text
    assert f" #1 forward, {source}:{CALL}: x = block(x)" in text
    assert f" -> {DOUBLE}         h = x * 2" in text


def test_a_breakpoint_stops_in_each_call(source):
    target = target_of(model(source))
    text = run(target, f"break net.py:{LOG}", "continue", "print %log.0", "continue", "print %log.0")
    assert text.count(f"Breakpoint 1, source net.py:{LOG}") == 2
    assert "%log.0 is not computed yet" in text


def test_a_finding_has_a_traceback(source):
    report = nncdbg.watch(nncdbg.load(model(source)), {"x": np.array([1, 0], np.float32)})
    found = report.findings[0].source
    assert found is not None
    assert [(each.line, each.text.strip()) for each in found.lines] == [
        (CALL, "x = block(x)"),
        (LOG, "return x + log(h)"),
    ]
    assert f'    File "{source}", line {LOG}, in forward\n      return x + log(h)\n' in str(report)


def test_a_changed_file_is_reported_and_the_listing_shown(source):
    source.write_text(SOURCE.replace("x * 2", "x * 3"))
    program = nncdbg.load(model(source))
    assert program.saved.trace is None
    changed = f"{source} has changed since the export, so the source view is off: line 3 was `h = x * 2`"
    assert changed in program.notes
    assert target_of(program).source is None
    report = nncdbg.watch(program, {"x": np.array([1, 0], np.float32)})
    assert f'    File "{source}", line {LOG}\n      return x + log(h)\n' in str(report)


def absent(file):
    file.unlink()


def folder(file):
    file.unlink()
    file.mkdir()


def pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("change", [absent, folder, pipe])
def test_without_a_file_the_listing_is_shown(source, change):
    change(source)
    program = nncdbg.load(model(source))
    assert (program.saved.trace, program.notes) == (None, ())
    text = run(target_of(program), "list")
    assert "Log(%double.0)" in text or "@blocks.0(%x)" in text


def test_another_file_than_one_of_python_is_not_read(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(SOURCE)
    assert nncdbg.load(model(secret)).saved.trace is None


def test_a_file_that_is_not_utf8_is_shown_as_far_as_it_can_be_read(source):
    source.write_bytes(SOURCE.encode() + b"# caf\xe9\n")
    program = nncdbg.load(model(source))
    assert program.saved.trace is not None
    assert program.saved.sources[str(source)].lines["12"] == "# caf�"


def test_a_flat_program_has_the_source_too(source):
    assert place(target_of(nncdbg.load(model(source), flat=True))) == ("forward", CALL)


def test_a_model_with_control_flow_is_shown_as_its_listing(source):
    found = model(source)
    branch = helper.make_graph(
        [helper.make_node("Identity", ["y"], ["same"])],
        "branch",
        [],
        [helper.make_tensor_value_info("same", onnx.TensorProto.FLOAT, [2])],
    )
    yes = helper.make_node(
        "Constant", [], ["yes"], value=helper.make_tensor("v", onnx.TensorProto.BOOL, [], [1])
    )
    chosen = helper.make_node("If", ["yes"], ["z"], then_branch=branch, else_branch=branch)
    found.graph.node.extend([yes, chosen])
    found.graph.output[0].name = "z"
    assert nncdbg.load(found).saved.trace is None


def test_without_texts_there_is_no_source(source):
    found = model(source)
    for node in found.graph.node:
        entry = node.metadata_props[0]
        entry.value = "\n".join(line for line in entry.value.splitlines() if "File" in line)
    program = nncdbg.load(found)
    assert (program.saved.trace, dict(program.saved.sources)) == (None, {})


def test_a_loop_inside_of_one_graph_is_another_visit_of_the_same_call():
    lines = [StackLine("a.py", number, "f") for number in (1, 2, 1, 2)]
    trace = trace_of_stacks(([each], "main") for each in lines)
    assert len(trace.calls) == 1
    assert [trace.visits[each].line for each in trace.statements] == [1, 2, 1, 2]
    assert trace.mistake(4, ()) is None


def test_a_statement_without_a_stack_has_no_visit():
    here = StackLine("a.py", 1, "f")
    assert trace_of_stacks([([here], "main"), ([], "main"), ([here], "main")]).statements == [0, -1, 0]


def test_a_saved_folder_keeps_the_source(source, tmp_path):
    from nncdbg.opening.folder_writing import write_folder

    program = nncdbg.load(model(source))
    write_folder(tmp_path / "saved", program, {"x": np.array([1, 4], np.float32)})
    source.unlink()
    target = ProgramTarget(nncdbg.Debugger(tmp_path / "saved"))
    assert place(target) == ("forward", CALL)
    view = target.source
    assert view is not None
    assert Path(view.frames()[0].file) == source
