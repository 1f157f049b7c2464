"""Every name of a program is a place: values, graphs, ops, nodes, source lines, parts and patterns."""

from __future__ import annotations

import pytest

import nncdbg
from nncdbg.errors import UsageError
from nncdbg.target.program import ProgramTarget

TEXT = """#nncdbg 1
graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %w: f32[2] = [1.0, 2.0]
  %/enc/attn/MatMul_output_0: f32[2] = Mul(%x, %w) loc("net.py":7, node "/enc/attn/MatMul")
  %"enc:0": f32[2] = Relu(%/enc/attn/MatMul_output_0) loc(node "/enc/attn/Softmax")
  %y: f32[2] = @enc/layer.0(%"enc:0") loc(node "/enc/layer.0")
  return %y
}

graph @enc/layer.0(%a: f32[2]) -> (%b: f32[2]) {
  %"odd name": f32[2] = Relu(%a) loc(node "/dec/attn/Softmax")
  %b: f32[2] = Neg(%"odd name") loc(node "Neg")
  return %b
}
"""

PLACES = [
    ("5", "line", (5,)),
    ("net.py:7", "source", (4,)),
    ("%y", "value", (6,)),
    ("%x", "value", (4,)),
    ("%w", "value", (4,)),
    ('%"odd name"', "value", (11,)),
    ('"odd name"', "value", (11,)),
    ("%attn/MatMul_output_0", "value", (4,)),
    ("attn/MatMul_output_0", "value", (4,)),
    ("%enc:0", "value", (5,)),
    ("enc:0", "value", (5,)),
    ("y", "value", (6,)),
    ("Relu", "op", (5, 11)),
    ("Neg", "op", (12,)),
    ("@enc/layer.0", "graph", (11,)),
    ("enc/layer.0", "graph", (11,)),
    ("@layer.0", "graph", (11,)),
    ("@main", "graph", (4,)),
    ("main", "graph", (4,)),
    ("@*", "graph", (4, 11)),
    ("/enc/attn/MatMul", "node", (4,)),
    ("attn/MatMul", "node", (4,)),
    ('"/attn/MatMul"', "node", (4,)),
    ("/dec/attn/Softmax", "node", (11,)),
    ("node Neg", "node", (12,)),
    ("node dec/attn/Softmax", "node", (11,)),
    ("node */attn/Softmax", "node", (5, 11)),
    ("*/attn/Softmax", "node", (5, 11)),
    ("%*output_?", "value", (4,)),
]


@pytest.mark.parametrize(("text", "kind", "lines"), PLACES, ids=[each[0] for each in PLACES])
def test_a_name_is_a_place(text: str, kind: str, lines: tuple[int, ...]) -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [1.0, 2.0]})
    found = ProgramTarget(debugger).stops.add(text)
    assert (found.kind, found.lines) == (kind, lines)
    assert ProgramTarget(debugger).lines(text)[1] == found.lines
    if lines[0] != 4:  # the program begins there
        assert debugger.run().line == lines[0]


def test_a_part_of_several_names_is_ambiguous_and_the_candidates_can_be_copied() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [1.0, 2.0]})
    with pytest.raises(UsageError, match=r"attn/Softmax is ambiguous") as raised:
        debugger.break_at("attn/Softmax")
    assert raised.value.hint == "one of: node /enc/attn/Softmax, node /dec/attn/Softmax"
    lines = [ProgramTarget(debugger).lines(each)[1] for each in raised.value.hint[8:].split(", ")]
    assert lines == [(5,), (11,)]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("Softmx", "the program has no op, graph, value or node Softmx", None),
        ("relu", "the program has no op, graph, value or node relu", "did you mean Relu?"),
        ("node Nope", "the program has no node Nope", None),
        ("@nope", "the program has no graph @nope", "use one of: @main, @enc/layer.0"),
        ("%odd nam", 'unexpected "nam" after the place', None),
        ("other.py:3", "no statement comes from other.py", "use one of the source files: net.py"),
    ],
)
def test_an_unknown_name_gives_the_nearest(text: str, message: str, hint: str | None) -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [1.0, 2.0]})
    with pytest.raises(UsageError) as raised:
        ProgramTarget(debugger).stops.add(text)
    assert raised.value.message == message
    assert hint is None or raised.value.hint == hint


def test_run_to_stops_at_the_next_statement_of_a_place() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [1.0, 2.0]})
    assert [debugger.run_to("Relu").line, debugger.run_to("Relu").line] == [5, 11]
    assert debugger.run_to("Relu").reason == "end"
