"""The listing of an ONNX model with long names: prefixes, breakpoint lines and names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import nncdbg
from nncdbg.dap_server.sources.shown import sources_of
from nncdbg.errors import ExpressionError
from nncdbg.ir.records import Graph, Node, Program, TensorType, Value
from nncdbg.target.program import ProgramTarget
from nncdbg.textual_repr import listing, parse

F32 = TensorType("f32", (4,))
FOLDER = "/model/decoder/layers.0/self_attn/"


@pytest.fixture
def debugger() -> nncdbg.Debugger:
    names = ["x", *(f"{FOLDER}Relu_{i}_output_0" for i in range(12)), "y"]
    nodes = tuple(Node("Relu", (a,), (Value(b, F32),)) for a, b in zip(names[:-1], names[1:], strict=True))
    graph = Graph("main", (Value("x", F32),), (Value("y", F32),), nodes)
    return nncdbg.Debugger(Program({"main": graph}, "main"), inputs={"x": [1.0, -2.0, 3.0, 0.0]})


def test_the_file_declares_a_prefix_and_reads_back(debugger: nncdbg.Debugger, tmp_path: Path) -> None:
    sources = sources_of(ProgramTarget(debugger), tmp_path / "model.onnx", tmp_path)
    assert sources.file is not None
    text = sources.file.read_text(encoding="utf-8")
    assert f'prefix self_attn "{FOLDER}"' in text
    assert max(len(line) for line in text.splitlines()) < 80
    assert parse(text) == debugger.program


def test_breakpoints_bind_to_the_lines_of_the_file(debugger: nncdbg.Debugger) -> None:
    line = next(
        i
        for i, text in enumerate(debugger.loaded.listing.lines, 1)
        if "%self_attn::Relu_5_output_0 =" in text
    )
    debugger.break_at(line=line)
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("breakpoint", line)
    assert stop.node is not None
    assert stop.node.outputs[0].name == f"{FOLDER}Relu_5_output_0"


def test_an_expression_reads_a_name_as_the_listing_writes_it(debugger: nncdbg.Debugger) -> None:
    debugger.run()
    assert debugger.value("%self_attn::Relu_3_output_0").tolist() == [1.0, 0.0, 3.0, 0.0]
    assert debugger.evaluate("max(%self_attn::Relu_3_output_0) + %self_attn::Relu_2_output_0.mean()") == 4.0
    assert debugger.evaluate("%x[0::2]").tolist() == [1.0, 3.0]
    with pytest.raises(ExpressionError, match="there is no value"):
        debugger.evaluate("%other::Relu_3_output_0")


def test_the_listing_has_lines_with_full_names_too(debugger: nncdbg.Debugger) -> None:
    full = listing(replace(debugger.program, prefixes={}), locations=False)
    firsts = [line for number, line in enumerate(full.full_lines(), 1) if number not in full.wrapped]
    assert debugger.loaded.listing.full_lines()[2:] == tuple(firsts[1:])
