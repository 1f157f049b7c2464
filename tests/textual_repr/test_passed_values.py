"""Values that pass between graphs under their own names, written as ``...``; names by module; long lines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.frontends.layers import group_layers
from nncdbg.errors import ParseError
from nncdbg.ir.names import fresh_name
from nncdbg.ir.records import Graph, Literal, Node, Program, Reference, StateLine, TensorType, Value
from nncdbg.textual_repr import parse, print_program
from nncdbg.textual_repr.parser import parse_with_listing
from nncdbg.textual_repr.passed_values import listed_values, with_passed_values_last
from nncdbg.textual_repr.printer import COLUMNS, listing
from tests.laws import examples

STEP = """#nncdbg 1

state %w: f32[2] = [1.0, 2.0]
state %b: f32[2] = [3.0, 4.0]
state %c: f32[2] = [5.0, 6.0]
state %d: f32[2] = [7.0, 8.0]

graph @main(%x: f32[2]) -> (%loss: f32[2], ...) {
  %loss, ... = @forward(%x) : f32[2]
  ... = @backward(%loss, ...)
  @optimizer(...)
  return %loss, ...
}

graph @forward(%x: f32[2]) -> (%loss: f32[2], ...) {
  %h1 = Mul(%x, %w) : f32[2]
  %h2 = Mul(%h1, %b) : f32[2]
  %h3 = Mul(%h2, %c) : f32[2]
  %h4 = Mul(%h3, %d) : f32[2]
  %loss = Relu(%h4) : f32[2]
  return %loss, ...
}

graph @backward(%loss: f32[2], ...) -> (...) {
  %d.grad = Mul(%loss, %h3) : f32[2]
  %c.grad = Mul(%h4, %h2) : f32[2]
  %b.grad = Mul(%h3, %h1) : f32[2]
  %w.grad = Mul(%b.grad, %h2) : f32[2]
  return ...
}

graph @optimizer(...) -> () {
  %d.1 = Sub(%d, %d.grad) : f32[2]
  %c.1 = Sub(%c, %c.grad) : f32[2]
  %b.1 = Sub(%b, %b.grad) : f32[2]
  %w.1 = Sub(%w, %w.grad) : f32[2]
  update %d = %d.1, %c = %c.1, %b = %b.1, %w = %w.1
  return
}
"""


def names(values: tuple[Value, ...]) -> list[str]:
    return [value.name for value in values]


def test_a_group_holds_the_names_that_are_read_in_order() -> None:
    graphs = parse(STEP).graphs
    grads = ["d.grad", "c.grad", "b.grad", "w.grad"]
    assert names(graphs["main"].outputs) == ["loss", *grads]
    assert names(graphs["forward"].outputs) == ["loss", "h1", "h2", "h3", "h4"]
    assert names(graphs["backward"].inputs) == ["loss", "h3", "h4", "h2", "h1"]
    assert names(graphs["optimizer"].inputs) == grads
    forward, backward, optimizer = graphs["main"].nodes
    assert names(forward.outputs) == ["loss", "h1", "h2", "h3", "h4"]
    assert backward.inputs == ("loss", "h3", "h4", "h2", "h1")
    assert optimizer.inputs == tuple(grads)
    assert forward.outputs[1].type == TensorType("f32", (2,))


def test_a_program_with_groups_prints_as_it_was_read_and_runs() -> None:
    program = parse(STEP)
    assert program.text() == STEP
    results = nncdbg.run(program, {"x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(results["loss"], [105, 768])
    np.testing.assert_array_equal(results["d.grad"], [1575, 73728])


def test_the_same_lists_in_another_order_are_written_out() -> None:
    program = parse(STEP)
    forward = program.graphs["forward"]
    order = (forward.outputs[0], *reversed(forward.outputs[1:]))
    main = program.graphs["main"]
    call = replace(main.nodes[0], outputs=(main.nodes[0].outputs[0], *reversed(main.nodes[0].outputs[1:])))
    graphs = {
        **program.graphs,
        "main": replace(main, nodes=(call, *main.nodes[1:])),
        "forward": replace(forward, outputs=order),
    }
    changed = replace(program, graphs=graphs, listing=None)
    text = changed.text()
    assert "graph @forward(%x: f32[2]) -> (%loss: f32[2], %h4: f32[2]" in text
    assert parse(text) == changed
    assert with_passed_values_last(changed).graphs == program.graphs


# (a line of STEP, what replaces it, the message)
WRONG = [
    ("  @optimizer(...)", "  @optimizer()", "the inputs of @optimizer end in ..."),
    ("  ... = @backward(%loss, ...)", "  @backward(%loss, ...)", "the outputs of @backward end in ..."),
    ("graph @optimizer(...)", "graph @optimizer()", "the inputs of @optimizer do not end in ..."),
    ("  %h1 = Mul(%x, %w) : f32[2]", "  %h1 = Mul(%x, ...) : f32[2]", "only a call has ..."),
    ("  return ...\n", "  return\n", "the outputs of the block end in ..."),
    ("Mul(%h4, %h2)", "Mul(%h5, %h2)", "%h5 is not defined, and no call above returns it"),
    ("(%loss: f32[2], ...) -> (...)", "(..., %loss: f32[2]) -> (...)", "an item after ..., found '%loss'"),
]


@pytest.mark.parametrize(("line", "other", "message"), WRONG, ids=lambda text: str(text)[:40])
def test_a_wrong_group_is_an_error_at_its_line(line: str, other: str, message: str) -> None:
    assert line in STEP
    with pytest.raises(ParseError) as caught:
        parse(STEP.replace(line, other, 1))
    assert message in [error.message for error in caught.value.errors]
    assert all(error.hint and error.line for error in caught.value.errors)


def test_a_value_that_a_group_returns_twice_is_an_error() -> None:
    again = "  %loss, ... = @forward(%x) : f32[2]\n"
    twice = STEP.replace(again, again + again.replace("%loss", "%other"), 1)
    with pytest.raises(ParseError, match="@main defines %h1 and gets it from"):
        parse(twice)


# -- names by module -------------------------------------------------------------------------------


def test_a_name_below_the_module_of_its_graph() -> None:
    text = """graph @main(%x: f32[2]) -> (%enc.0.y: f32[2]) {
  %enc.0.y = @enc.0(%x)
  return %enc.0.y
}

graph @enc.0(%x: f32[2]) -> (%.y: f32[2]) {
  %.mlp.h = Relu(%x)
  %./q = Relu(%.mlp.h)
  %.y = Relu(%./q)
  return %.y
}

graph @enc.0.backward$2(%x: f32[2]) -> (%.y: f32[2]) {
  %.y = Relu(%x)
  return %.y
}
"""
    program, read = parse_with_listing(text)
    graph = program.graphs["enc.0"]
    assert [node.outputs[0].name for node in graph.nodes] == ["enc.0.mlp.h", "enc.0/q", "enc.0.y"]
    assert names(program.graphs["enc.0.backward$2"].outputs) == ["enc.0.y"]
    assert read.full_line(8) == "  %enc.0/q = Relu(%enc.0.mlp.h)"
    assert "\n".join(program.text(locations=False).split("\n")[2:]) == text
    again = "#nncdbg 1\n\n" + text
    assert parse(again).text() == again


def test_a_name_that_begins_with_a_dot_is_quoted() -> None:
    graph = Graph("main", (Value(".x"),), (Value(".x"),))
    text = print_program(Program({"main": graph}, "main"))
    assert 'graph @main(%".x") -> (%".x")' in text
    assert parse(text).graphs == {"main": graph}


# -- long lines ------------------------------------------------------------------------------------


def test_a_statement_goes_on_below_if_its_line_is_incomplete() -> None:
    text = """graph @main(%x: f32[2],
    %y: f32[2])
    -> (%z: f32[2]) {
  %z =
      Add(%x,
        %y)
      : f32[2]
      loc("a.py":3)
  return
      %z
}
"""
    broken = text.replace("return\n      %z", "return %z")
    program, read = parse_with_listing(broken)
    (node,) = program.graph.nodes
    assert node.inputs == ("x", "y")
    assert node.location is not None
    assert (node.location.file, node.location.line) == ("a.py", 3)
    assert read.statements["main",] == (4, 9)
    assert read.next_site(6) == (4, read.site(4))
    assert read.statement(4) == '  %z = Add(%x, %y) : f32[2] loc("a.py":3)'


def test_an_incomplete_statement_above_another_one_is_an_error_of_its_own() -> None:
    with pytest.raises(ParseError) as caught:
        parse("graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %z = Add(%x,\n  %y = Relu(%x)\n  return %y\n}\n")
    assert [error.line for error in caught.value.errors] == [2]


def test_an_error_in_a_further_line_is_underlined_there() -> None:
    with pytest.raises(ParseError) as caught:
        parse("graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %y = Add(%x,\n      %q)\n  return %y\n}\n")
    (error,) = caught.value.errors
    assert (error.message, error.line, error.column) == ("%q is not defined", 3, 7)


@given(
    st.integers(1, 60),
    st.integers(1, 40),
    st.text(st.sampled_from("ab/.: "), min_size=1, max_size=30),
)
@examples(60)
def test_no_line_is_longer_and_each_op_begins_early(inputs: int, outputs: int, stem: str) -> None:
    type = TensorType("f32", (8, 16, 32))
    given_values = tuple(Value(f"{stem}in{number}", type) for number in range(inputs))
    made = tuple(Value(f"{stem}out{number}", type) for number in range(outputs))
    node = Node("com.x.Op", tuple(value.name for value in given_values), made, {"pads": tuple(range(inputs))})
    program = Program({"main": Graph("main", given_values, made, (node,))}, "main")
    text = print_program(program)
    assert max(map(len, text.split("\n"))) <= COLUMNS
    assert re.search(r"^.{0,39}com\.x\.Op\(", text, re.MULTILINE)
    assert parse(text) == program
    assert print_program(parse(text)) == text
    assert len(listing(program, locations=False).lines) == len(listing(program).lines)


# -- states after the graphs -----------------------------------------------------------------------


def test_many_states_come_after_the_graphs_by_module() -> None:
    type = TensorType("f32", (2,))
    states = tuple(
        StateLine(
            Value(f"layers.{number // 2}.{'wb'[number % 2]}", type), Reference(f"layers.{number // 2}.w")
        )
        for number in range(40)
    )
    node = Node("Add", ("layers.0.w", Literal(1)), (Value("y", type),))
    program = Program(
        {"main": Graph("main", (), (Value("y", type),), (node,))}, "main", ("d",), states=states
    )
    text = program.text()
    assert 'states layers.0 {\n  %.w: f32[2] = data\n  %.b: f32[2] = data("layers.0.w")\n}' in text
    assert text.index("graph @main") < text.index("states")
    assert parse(text) == program
    assert parse(text).text() == text


def test_a_block_of_states_may_stand_before_the_graphs() -> None:
    block = "states {\n  %w: f32[2] = [1.0, 2.0]\n  %m: f32[2] = zeros for %w\n}\n"
    graph = "graph @main() -> (%y) {\n  %y = Add(%w, %m)\n  return %y\n}\n"
    assert parse(block + graph) == parse(graph + block)


def test_a_wrong_line_in_a_block_of_states_is_reported_once() -> None:
    with pytest.raises(ParseError) as caught:
        parse("graph @main() -> () {\n  return\n}\nstates {\n  %w: f32[2] = [1.0]\n}\n")
    assert [error.line for error in caught.value.errors] == [5]


# -- a law -----------------------------------------------------------------------------------------


@st.composite
def steps(draw: st.DrawFn) -> Program:
    """Return a program of layers, of which later ones read values inside earlier ones."""
    type = TensorType("f32", (2,))
    modules = [f"layers.{number}" for number in range(draw(st.integers(1, 4)))]
    nodes: list[Node] = []
    scopes: list[tuple[str, ...]] = []
    used = {"x"}
    values = ["x"]
    for phase in ("forward", "backward"):
        for module in modules if phase == "forward" else reversed(modules):
            for _ in range(draw(st.integers(2, 5))):
                name = fresh_name(f"{module}.h", used)
                used.add(name)
                operands = (values[-1], draw(st.sampled_from([*values, "w"])))
                nodes.append(Node("Add", operands, (Value(name, type),)))
                scopes.append((phase, f"{module}.{phase}"))
                values.append(name)
    for number in range(draw(st.integers(0, 5))):
        nodes.append(Node("Relu", (draw(st.sampled_from(values)),), (Value(f"w.grad{number}", type),)))
        scopes.append(())
    outputs = (
        Value(values[-1], type),
        *(node.outputs[0] for node in nodes if "grad" in node.outputs[0].name),
    )
    graph = Graph("main", (Value("x", type),), outputs, tuple(nodes))
    names_used: set[str] = {"main"}

    def claim(module: str) -> str:
        name = fresh_name(module, names_used, mark="$", first=2)
        names_used.add(name)
        return name

    graphs = group_layers(graph, scopes, claim, states={"w"})
    states = (StateLine(Value("w", type), Reference("w")),)
    return Program({each.name: each for each in graphs}, "main", ("d",), states=states)


@given(steps())
@examples(200)
def test_groups_are_exact(program: Program) -> None:
    assert parse(program.text()) == program
    ordered = with_passed_values_last(program)
    text = ordered.text()
    assert parse(text) == ordered
    assert parse(text).text() == text
    assert with_passed_values_last(ordered) == ordered
    for name, graph in program.graphs.items():
        assert set(names(graph.inputs)) == set(names(ordered.graphs[name].inputs))
        assert set(names(graph.outputs)) == set(names(ordered.graphs[name].outputs))
    assert listed_values(ordered).keys() >= listed_values(program).keys()


def test_the_text_of_each_example_is_short() -> None:
    for path in sorted(Path("examples").glob("*.nnc")):
        lines = parse(path.read_text(encoding="utf-8")).text().split("\n")
        assert max(map(len, lines)) <= COLUMNS, path


def test_lists_of_all_values_mean_the_same_program(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(STEP)
    monkeypatch.setattr("nncdbg.textual_repr.printer.listed_values", lambda program: {})
    listed = program.text()
    assert "..." not in listed
    assert parse(listed) == program


# -- errors ----------------------------------------------------------------------------------------

LAYER = """state %a.w: f32[2] = [1.0, 2.0]

graph @main(%x: f32[2]) -> (%a.y: f32[2]) {
  %a.y = @a(%x) : f32[2]
  return %a.y
}

graph @a(%x: f32[2]) -> (%.y: f32[2]) {
  %.h = Mul(%x, %.w) : f32[2]
  %.y = Relu(%.h) : f32[2]
  return %.y
}
"""
STATES = "states a {\n  %.w: f32[2] = [1.0, 2.0]\n}\n"
LAYER_OF_STATES = LAYER.replace("state %a.w: f32[2] = [1.0, 2.0]\n", STATES)
GRAPHS = LAYER.partition("\n\n")[2]

# (a text, a part of it, what replaces it, the message, the line, the underlined text, a part of the hint)
UNDERLINED = [
    (
        LAYER,
        ") : f32[2]\n  %.y",
        ") : f32[2], f32[2]\n  %.y",
        "2 types for 1 output",
        9,
        ": f32[2], f32[2]",
        "_",
    ),
    (
        LAYER,
        "%.h = Mul(%x, %.w)",
        "%.h: f32[2] = Mul(%x, %.w)",
        "types twice",
        9,
        ": f32[2]",
        "behind the call",
    ),
    (LAYER, "%x, %.w) : f32[2]", "%x, %.w) : f3[2]", "no element type f3", 9, "f3", "did you mean f32?"),
    (LAYER, "%x, %.w) : f32[2]", "%x, %.w) :", "expected a type", 9, "", "a type looks like"),
    (LAYER, "Mul(%x, %.w)", "Mul(%x,\n      %.v)", "%a.v is not defined", 10, "%.v", "did you mean"),
    (
        LAYER,
        "return %.y",
        "return %.h",
        "return has %a.h where the graph's output is %a.y",
        11,
        "return %.h",
        "%.y",
    ),
    (LAYER, "  return %.y\n", "", "the block has no return", 11, "}", "write return %.y"),
    (LAYER_OF_STATES, "\n}\n", "\n", "this block is not closed", 1, "{", "add } before line 4"),
    (LAYER_OF_STATES, "\n}\n", "\n}x\n", "expected the end of the statement", 3, "x", ""),
    (LAYER_OF_STATES, "[1.0, 2.0]", "[1.0, q]", "expected a literal", 2, "q", ""),
    (LAYER_OF_STATES, "states a {", "states a", "expected '{'", 1, "", "states layers.0 {"),
    (GRAPHS + STATES, "2.0]\n}", "2.0]", "this block is not closed", 11, "{", "add } before line 14"),
    (
        GRAPHS + STATES,
        "2.0]\n}",
        "2.0]\nstates b {\n}",
        "this block is not closed",
        11,
        "{",
        "before line 13",
    ),
    (GRAPHS + STATES, "[1.0, 2.0]", "[1.0,\n    q]", "expected a literal", 13, "q", ""),
]


@pytest.mark.parametrize(
    ("text", "old", "new", "message", "line", "mark", "hint"), UNDERLINED, ids=[row[2] for row in UNDERLINED]
)
def test_an_error_is_reported_once_at_its_place(
    text: str, old: str, new: str, message: str, line: int, mark: str, hint: str
) -> None:
    assert parse(text)
    assert old in text
    with pytest.raises(ParseError) as caught:
        parse(text.replace(old, new, 1))
    (error,) = caught.value.errors
    assert message in error.message
    assert error.excerpt is not None
    shown, start = error.excerpt.text, error.excerpt.column - 1
    assert (error.excerpt.line, shown[start : start + error.excerpt.width]) == (line, mark)
    assert hint in (error.hint or "")


def test_a_call_in_a_nested_block_passes_no_values_by_name() -> None:
    nested = "  if true {\n    @optimizer(...)\n    yield\n  } else {\n    yield\n  } -> ()"
    with pytest.raises(ParseError) as caught:
        parse(STEP.replace("  @optimizer(...)", nested, 1))
    (error,) = caught.value.errors
    assert error.message == "@optimizer has ... in its inputs, and this call is in a nested block"
