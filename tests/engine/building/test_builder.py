"""Programs built in Python: equal to parsed text, typed, with locations."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable

import numpy as np
import pytest

import nncdbg
from nncdbg.ir.records import Location
from tests.presence import present


def straight(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        x = b.input("x", "f32[2,3]")
        w = b.constant("w", np.array([[1, 2], [3, 4], [5, 6]], np.float32))
        h = b.MatMul(x, w, name="h")
        b.returns(b.LeakyRelu(h, alpha=0.1, name="y"))


def literals(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        x = b.input("x", "f32[4]")
        y = -(1.0 - x * 0.5) / 2.0
        b.returns(b.Reshape(y, [2, 2], name="y"))


def several(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        x = b.input("x", "f32[6]")
        a, c = b.several("Split", x, [2, 4], names=["a", "c"], axis=0)
        b.comment("only indices")
        _, i = b.several("TopK", c, [1], names=[None, "i"])
        b.returns(a, i)


def loop(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        x = b.input("x", "f32[3]")
        with b.loop("refine", times=5) as refine:
            i = refine.counter("i")
            s = refine.carry("s", x)
            b.break_unless(b.Less(i, 3, name="go"))
            half = b.Mul(s, 0.5, name="half")
            b.next(half, collect=[half])
        b.returns(refine.result(s, name="y"), refine.collected(0, name="ys"))


def condition(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        x, flag = b.input("x", "f32[3]"), b.input("flag", "bool[]")
        choice = b.branches(flag)
        with choice.then("hot"):
            b.yields(b.Relu(x, name="r"))
        with choice.otherwise("cold"):
            b.yields(b.Neg(x, name="r"))
        b.returns(choice.result(name="y"))


def layers(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        x = b.input("x", "f32[N,4]")
        with b.graph("layer", comment="Twice the input."):
            t = b.input("t", "f32[N,4]")
            b.returns(b.Add(t, t, name="u"))
        (h,) = b.call("layer", x, names=["h"])
        (y,) = b.call("layer", h, names=["y"])
        b.returns(y)


TEXTS: dict[Callable[[nncdbg.Builder], None], str] = {
    straight: """
graph @main(%x: f32[2,3]) -> (%y: f32[2,2]) {
  %w: f32[3,2] = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
  %h: f32[2,2] = MatMul(%x, %w)
  %y: f32[2,2] = LeakyRelu(%h, alpha=0.1)
  return %y
}
""",
    literals: """
graph @main(%x: f32[4]) -> (%y: f32[?,?]) {
  %mul: f32[4] = Mul(%x, 0.5)
  %sub: f32[4] = Sub(1.0, %mul)
  %neg: f32[4] = Neg(%sub)
  %div: f32[4] = Div(%neg, 2.0)
  %y: f32[?,?] = Reshape(%div, [2, 2])
  return %y
}
""",
    several: """
graph @main(%x: f32[6]) -> (%a: f32[?], %i: i64[?]) {
  %a: f32[?], %c: f32[?] = Split(%x, [2, 4], axis=0)
  ## only indices
  _: f32[?], %i: i64[?] = TopK(%c, [1])
  return %a, %i
}
""",
    loop: """
graph @main(%x: f32[3]) -> (%y: f32[3], %ys: f32[?,3]) {
  while @refine (%s: f32[3] = %x) count %i: i64[] times 5 {
    %go: bool[] = Less(%i, 3)
    break unless %go
    %half: f32[3] = Mul(%s, 0.5)
    next %s = %half collect %half
  } -> (%y: f32[3] = %s, %ys: f32[?,3] = collect[0])
  return %y, %ys
}
""",
    condition: """
graph @main(%x: f32[3], %flag: bool[]) -> (%y: f32[3]) {
  if %flag @hot {
    %r: f32[3] = Relu(%x)
    yield %r
  } else @cold {
    %r: f32[3] = Neg(%x)
    yield %r
  } -> (%y: f32[3])
  return %y
}
""",
    layers: """
graph @main(%x: f32[N,4]) -> (%y: f32[N,4]) {
  %h: f32[N,4] = @layer(%x)
  %y: f32[N,4] = @layer(%h)
  return %y
}

## Twice the input.
graph @layer(%t: f32[N,4]) -> (%u: f32[N,4]) {
  %u: f32[N,4] = Add(%t, %t)
  return %u
}
""",
}


def built(build: Callable[[nncdbg.Builder], None], *, locations: bool = False) -> nncdbg.Program:
    b = nncdbg.Builder(opset=18, locations=locations)
    build(b)
    return b.program()


@pytest.mark.parametrize("build", TEXTS)
def test_a_built_program_equals_the_parsed_text(build: Callable[[nncdbg.Builder], None]) -> None:
    program = built(build)
    assert program == nncdbg.parse("opset 18\n" + TEXTS[build])
    assert list(program.graphs) == list(nncdbg.parse(TEXTS[build]).graphs)


@pytest.mark.parametrize("build", TEXTS)
def test_text_round_trip_keeps_locations(
    build: Callable[[nncdbg.Builder], None],
) -> None:
    program = built(build, locations=True)
    assert nncdbg.parse(str(program)) == program
    lines, start = inspect.getsourcelines(build)
    for node in program.graph.nodes:
        assert node.location is not None
        assert node.location.file == __file__
        assert node.location.line is not None
        assert start < node.location.line < start + len(lines)


def test_a_loop_runs() -> None:
    outputs = nncdbg.run(built(loop), {"x": np.array([8, 4, 2], np.float32)})
    np.testing.assert_array_equal(outputs["y"], [1, 0.5, 0.25])
    np.testing.assert_array_equal(outputs["ys"][:, 0], [4, 2, 1])


def test_a_breakpoint_at_a_python_line() -> None:
    program = built(straight, locations=True)
    line = present(present(program.graph.nodes[1].location).line)
    debugger = nncdbg.Debugger(program)
    debugger.break_at(source=(__file__, line))
    stop = debugger.run()
    assert stop.reason == "breakpoint"
    assert debugger.loaded.listing.lines[(stop.line or 0) - 1].lstrip().startswith("%y")


def test_a_location_of_the_caller_replaces_the_python_line() -> None:
    b = nncdbg.Builder()
    with b.graph("main"):
        x = b.input("x", "f32[2]")
        b.location = Location("net.calc", 7)
        b.returns(b.Relu(x))
    assert b.program().graph.nodes[0].location == Location("net.calc", 7)


def wrong_shape(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        b.MatMul(b.input("x", "f32[2,3]"), b.input("w", "f32[2,3]"))


def wrong_attribute(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        b.Relu(b.input("x", "f32[2]"), alpha=1)


def twice(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        x = b.input("x", "f32[2]")
        b.Relu(x, name="x")


def invisible(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        x = b.input("x", "f32[2]")
        with b.graph("layer"):
            b.Relu(x)


def no_return(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        b.input("x", "f32[2]")


def growing(b: nncdbg.Builder) -> None:
    with b.graph("main"), b.loop(times=2) as grow:
        s = grow.carry("s", b.input("x", "f32[2]"))
        b.next(b.Concat(s, s, axis=0))


def outside(b: nncdbg.Builder) -> None:
    b.input("x", "f32[2]")


def bad_type(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        b.input("x", "f33[2]")


def wrong_literal(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        b.Add(b.input("x", "f32[2]"), "y")


def not_a_type(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        b.input("x", 5)  # type: ignore[arg-type]


def not_a_name(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        b.input(5, "f32[2]")  # type: ignore[arg-type]


def not_a_value(b: nncdbg.Builder) -> None:
    with b.graph("main"):
        b.returns(5)  # type: ignore[arg-type]


ERRORS: dict[Callable[[nncdbg.Builder], None], str] = {
    wrong_shape: "a has 3 columns, but b has 2 rows",
    wrong_attribute: "Relu has no attribute 'alpha' in opset 18",
    twice: "%x is defined twice",
    invisible: "%x is not visible here",
    no_return: "graph @main returns nothing",
    growing: "only a graph has inputs",
    outside: "no graph is open",
    bad_type: "'f33[2]': no element type f33",
    wrong_literal: "an inline operand is not a valid f32: could not convert string to float: 'y'",
    not_a_type: "a type must be a string, not 5",
    not_a_name: "the name of a value must be a string, not 5",
    not_a_value: "5 is not a value of the graph",
}


@pytest.mark.parametrize("build", ERRORS)
def test_an_error_names_the_python_line(build: Callable[[nncdbg.Builder], None]) -> None:
    with pytest.raises(nncdbg.GraphError) as caught:
        build(nncdbg.Builder(opset=18))
    assert caught.value.message == ERRORS[build]
    lines, start = inspect.getsourcelines(build)
    excerpt = caught.value.excerpt
    assert excerpt is not None
    assert excerpt.file == __file__
    assert excerpt.text in map(str.rstrip, lines)
    assert start <= excerpt.line < start + len(lines)


def test_an_error_shows_the_python_line_and_the_operands() -> None:
    with pytest.raises(nncdbg.GraphError) as caught:
        wrong_shape(nncdbg.Builder())
    shown = str(caught.value).splitlines()
    assert shown[0] == "a has 3 columns, but b has 2 rows"
    assert shown[2].endswith('|         b.MatMul(b.input("x", "f32[2,3]"), b.input("w", "f32[2,3]"))')
    assert shown[4:] == ["  with %x: f32[2,3]", "  with %w: f32[2,3]"]


def test_the_next_value_of_a_loop_has_the_type_of_the_carried_one() -> None:
    b = nncdbg.Builder()
    message = r"carries %s: f32\[2\], but its next value is f32\[4\]"
    with b.graph("m"):
        with b.loop(times=2) as grow:
            s = grow.carry("s", [1.0, 2.0], type="f32[2]")
            longer = b.Concat(s, s, axis=0)
            with pytest.raises(nncdbg.GraphError, match=message):
                b.next(longer)
            b.next(s)
        b.returns()


def test_a_value_has_no_truth_value() -> None:
    b = nncdbg.Builder()
    with b.graph("main"):
        x = b.input("x", "f32[]")
        with pytest.raises(nncdbg.UsageError, match="%less has no truth value"):
            bool(x < 0.0)
        b.returns()


def test_a_program_needs_one_entry() -> None:
    b = nncdbg.Builder()
    for name in ("a", "b"):
        with b.graph(name):
            b.returns()
    with pytest.raises(nncdbg.GraphError, match="cannot choose the entry graph: @a, @b"):
        b.program()
    assert list(b.program("b").graphs) == ["b", "a"]


def test_repeated_ops_have_numbered_result_names() -> None:
    b = nncdbg.Builder()
    with b.graph("main"):
        h = b.input("x", "f32[2]")
        for _ in itertools.repeat(None, 5):
            h = b.Relu(h)
        b.returns(h)
    assert [node.outputs[0].name for node in b.program().graph.nodes] == [
        "relu",
        "relu.1",
        "relu.2",
        "relu.3",
        "relu.4",
    ]
