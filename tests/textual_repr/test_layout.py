"""The layout of real programs: models as exported, and recorded steps of training scripts.

Each statement begins with its outputs and its op, in 40 columns or on a line of their own; no line has more
than 160 columns; and the printed text is read back exactly.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import nncdbg
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Program
from nncdbg.ir.walk import blocks
from nncdbg.text.lexemes import op_text
from nncdbg.text.torch_names import without_overload
from nncdbg.textual_repr import parse, print_program
from nncdbg.textual_repr.printer import COLUMNS

LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("light_*.onnx"))
EXPORTED = sorted((Path(__file__).parents[1] / "models" / "exported").glob("*.onnx"))


def check_layout(program: Program) -> None:
    shown = program.as_listing()
    known = dict(blocks(program.graphs))
    for path, lines in shown.statements.items():
        if path not in known:
            continue  # The lines of the driver are those of states and runs.
        for pc, node in enumerate(known[path].nodes):
            if node.kind not in (Kind.OP, Kind.CALL):
                continue
            called = f"{op_text(without_overload(node.op))}("
            number = lines[pc]
            while called not in shown.lines[number - 1]:
                number += 1
                assert shown.wrapped.get(number) == lines[pc], shown.statement(lines[pc])
            assert shown.lines[number - 1].index(called) < 40
    assert max(map(len, shown.lines)) <= COLUMNS


def check_round_trip(program: Program) -> None:
    for locations in (True, False):
        text = print_program(program, locations=locations)
        again = parse(text)
        assert print_program(again, locations=locations) == text
        if locations:
            assert again.graphs == program.graphs
            assert again.states == program.states


@pytest.mark.parametrize("path", [*LIGHT, *EXPORTED], ids=lambda path: path.stem)
def test_a_model_fits_and_reads_back(path: Path) -> None:
    program = nncdbg.load(path)
    check_layout(program)
    check_round_trip(program)
