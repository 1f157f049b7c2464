"""The example runs, and its trace opens without Python code."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import nncdbg

EXAMPLE = Path(__file__).parents[2] / "examples" / "eager.py"


def test_the_example_trains_and_its_trace_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(EXAMPLE))
    names["main"](str(tmp_path / "trace"))
    last = capsys.readouterr().out.splitlines()[-1]
    debugger = nncdbg.Debugger(tmp_path / "trace")
    debugger.run()
    loss = debugger.value("%loss").item()
    assert last.startswith(f"last loss {loss:.6f}, ")
    assert loss < 0.01
    lines = EXAMPLE.read_text().splitlines()
    place = next(number for number, line in enumerate(lines, 1) if "h = g.Tanh" in line)
    nodes = {node.op: node for node in debugger.program.graph.nodes}
    assert nodes["Tanh"].location is not None
    assert nodes["Tanh"].location.line == place
