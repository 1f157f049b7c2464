"""At 80 columns every statement of real models shows its op, its distinguishing names and statistics."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import nncdbg
from nncdbg.commands.session import CommandSession
from nncdbg.ir.records import Graph, Node, Program, Value
from nncdbg.ir.walk import blocks
from nncdbg.presentation.elements import Layout
from nncdbg.presentation.listing_window import LineMarks, window
from nncdbg.presentation.screen import Screen
from nncdbg.presentation.short_statements import brief, whole
from nncdbg.presentation.tensor_text import value_line
from nncdbg.stats.summary import Summary
from nncdbg.target.program import ProgramTarget
from nncdbg.text.short_names import ShortNames, names_of
from nncdbg.textual_repr.printer import listing as printed

WIDTH = 80
WIDEST = Summary(-1.234e-05, 1.234e05, -1.234e-05, 1.234e-05, 123456, 123456, 123456, 0, 0, 1 << 22)
FIGURES = [f"{label} {number}" for label, number in WIDEST.figures()]
ARRAY = np.zeros((1, 1024, 128, 128), np.float16)


def decoder() -> Program:
    """A program with names of up to 100 characters, in the form of PyTorch's exporter."""
    nodes = []
    previous = "input_ids"
    for layer in range(12):
        scope = f"/base_model/model/language_model/model/decoder/layers.{layer}"
        for block in ("self_attn", "encoder_attn", "self_attn_layer_norm"):
            for op in ("MatMul", "Add", "Add_1"):
                name = f"{scope}/{block}/{op}_output_0"
                nodes.append(Node(op.partition("_")[0], (previous, "weight"), (Value(name),)))
                previous = name
    graph = Graph("main", (Value("input_ids"), Value("weight")), (Value(previous),), tuple(nodes))
    return Program({"main": graph}, "main")


def densenet() -> Program:
    return nncdbg.load(Path(onnx.__file__).parent / "backend/test/data/light/light_densenet121.onnx")


@pytest.fixture(params=["decoder", "densenet121", "silero_vad"])
def program(request: pytest.FixtureRequest) -> Program:
    if request.param == "silero_vad":
        return nncdbg.load(request.getfixturevalue("shared_models") / "silero_vad.onnx")
    return decoder() if request.param == "decoder" else densenet()


def statements(program: Program) -> Iterator[tuple[int, Node]]:
    """Yield the line of each statement, and the statement."""
    listing = printed(program, locations=False)
    for path, graph in blocks(program):
        for pc, node in enumerate(graph.nodes):
            yield listing.line(path, pc), node


def longest_name(node: Node, names: ShortNames) -> int:
    """Return the length of the longest name of a result or an operand of a statement."""
    results = (value.name for value in node.outputs if value.name)
    operands = (operand for operand in node.inputs if isinstance(operand, str))
    return max((len(names.spelled(name)) for name in (*results, *operands)), default=0)


def test_every_statement_of_a_listing_shows_its_op_and_names(program: Program) -> None:
    listing, names = printed(program, locations=False), names_of(program)
    for line, node in statements(program):
        shown = window(listing, [line], LineMarks(), WIDTH, names)
        text = " ".join(part.plain.strip() for part in shown)
        # A name is never cut: one of more than half a line takes a line of its own, however wide it is.
        long = longest_name(node, names) > (WIDTH - 12) // 2
        assert len(shown) <= (6 if long else 2)
        assert all(part.cell_len <= max(WIDTH, longest_name(node, names) + 24) for part in shown), text
        assert node.op in text
        head = next((value.name for value in node.outputs if value.name), "")
        assert names.spelled(head) in text or node.op in ("if", "while")
        operands = [operand for operand in node.inputs if isinstance(operand, str)]
        assert all(names.spelled(operand) in text for operand in operands[: 1 if long else 2]), text


def test_the_current_statement_shows_all_names(program: Program) -> None:
    listing, names = printed(program, locations=False), names_of(program)
    for line, node in statements(program):
        shown = window(listing, [line], LineMarks({line: "->"}), WIDTH, names)
        text = " ".join(part.plain.strip() for part in shown)
        assert all(part.cell_len <= max(WIDTH, longest_name(node, names) + 24) for part in shown), text
        outputs = [value.name for value in node.outputs if value.name and node.op not in ("if", "while")]
        operands = [operand for operand in node.inputs if isinstance(operand, str)]
        if "more =" not in text:
            assert all(names.spelled(name) in text for name in [*outputs, *operands]), text


def test_the_lines_of_every_value_show_name_type_and_all_statistics(program: Program) -> None:
    names = names_of(program)
    for _, node in statements(program):
        for value in node.outputs:
            shown = value_line(value.name, ARRAY, WIDEST, Layout(WIDTH, names=names)).plain
            assert all(len(line) <= WIDTH for line in shown.split("\n"))
            assert all(figure in shown for figure in FIGURES)
            assert names.spelled(value.name) in shown or not value.name
            assert "f16[1,1024,128,128]" in shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_stepping_through_a_model_keeps_lines_within_the_screen(
    shared_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    program = nncdbg.load(shared_models / "silero_vad.onnx")
    out = Terminal()
    session = CommandSession(
        ProgramTarget(nncdbg.Debugger(program)), "silero_vad.onnx", Screen(out, out, width=WIDTH, color=False)
    )
    session.screen.out._force_terminal = True
    while not session.target.python_names()["debugger"].control.machine.ended:
        out.seek(0)
        out.truncate()
        for line in ("step", "where", "stats", "info frames"):
            session.execute(line)
        text = out.getvalue()
        assert all(len(line) <= WIDTH for line in text.splitlines()), text
        assert "…\n" not in text.replace("(…", ""), "nothing is cropped"
        frame = session.target.python_names()["debugger"].frames[0]
        if frame.pc < len(frame.code.nodes):
            assert frame.code.nodes[frame.pc].op in text


@pytest.mark.parametrize(
    ("statement", "room", "shown"),
    [
        ("  %y = Relu(%x)", 40, ["  %y = Relu(%x)"]),
        ('  %y = Relu(%x) loc("net.py":12)', 20, ["  %y = Relu(%x)"]),
        ("  %y: f32[1,64,56,56] = Relu(%x, alpha=1)", 24, ["  %y = Relu(%x, alpha=1)"]),
        ("  %y: f32[1,64,56,56] = Conv(%x, pads=[1, 1], s=2)", 24, ["  %y = Conv(%x, …)"]),
        ("  %one, %two: f32[2], %three = Split(%x)", 27, ["  %one, …2 more = Split(%x)"]),
        ("  %y = Concat(%first, %second, %third)", 24, ["  %y = Concat(%first,", "      %second, %third)"]),
        (
            "  %y = Concat(%first, %second, %third, %fourth, axis=0)",
            24,
            ["  %y = Concat(%first,", "      %second, …)"],
        ),
        ('  %y = Op(key="a, (b", %x)', 20, ["  %y = Op(%x, …)"]),
        ('  if %c @then loc("a.py":1) {', 20, ["  if %c @then {"]),
    ],
)
def test_brief_statements_drop_the_least_important_parts_first(
    statement: str, room: int, shown: list[str]
) -> None:
    assert brief(statement, ShortNames(()), room) == shown


def test_whole_statements_wrap_and_keep_attributes() -> None:
    text = '  %y: f32[2] = Op(%first, %second, words="a b c", pads=[1,1])'
    assert whole(text, ShortNames(()), 30) == [
        "  %y: f32[2] = Op(%first,",
        '      %second, words="a b c",',
        "      pads=[1,1])",
    ]


def test_names_in_strings_are_not_shortened() -> None:
    names = ShortNames(["x", "/a/long/path/of/a/model/Relu_output_0"])
    text = '%x = Op(%/a/long/path/of/a/model/Relu_output_0, s="%/a/long/path/of/a/model/Relu_output_0")'
    assert whole(text, names, 200) == ['%x = Op(%Relu_output_0, s="%/a/long/path/of/a/model/Relu_output_0")']


STATES = """#nncdbg 1
opset 18

state %w: f32[2] = [1.0, 2.0]

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %y: f32[2] = Mul(%x, %w)
  update %w = %y
  return %y
}
"""


@pytest.mark.parametrize("driver", ["", "\nrun @main for %x\n"], ids=["one run", "a driver"])
def test_a_screen_lists_the_lines_of_states_with_short_names(driver: str) -> None:
    """A program whose states begin with data has no graph of these lines."""
    out = io.StringIO()
    session = CommandSession(
        ProgramTarget(nncdbg.Debugger(nncdbg.parse(STATES + driver))), "model", Screen(out, width=WIDTH)
    )
    session.arrived(session.target.stop)
    session.execute("list 4", typed=True)
    assert "state %w: f32[2] = [1.0, 2.0]" in out.getvalue()
