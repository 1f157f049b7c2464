"""Groups of states and gradients, and statements in the place of operands."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.errors import ParseError
from nncdbg.ir.walk import walk_nodes

TRAINING = """#nncdbg 1
opset 18

state %layer.w: f32[3,2] = RandomNormal(seed=1.0, shape=[3,2])
state %layer.b: f32[2] = zeros
## All parameters.
group %params = %layer.w, %layer.b
states %m, %v = zeros for %params
state %count: i64[] = 0

graph @train(%x: f32[N,3], %t: f32[N,2]) -> (%l: f32[]) {
  %l, saved %s = @loss(%x, %t) : f32[]
  grads %g = @loss.backward(1.0, %s)
  ## Half of the gradient.
  %half = Mul(%g, 0.5)
  %new, %m.1, %v.1, _ = nncdbg.AdamW(%params, %half, %m, %v, %count, lr=0.1)
  update %params = %new, %m = %m.1, %v = %v.1, %count = Add(%count, 1)
  return %l
}

graph @loss(%x: f32[N,3], %t: f32[N,2]) -> (%l: f32[]) {
  %e = Sub(Add(MatMul(%x, %layer.w), %layer.b), %t) : f32[N,2]
  %l = ReduceMean(Mul(%e, %e), keepdims=0) : f32[]
  return %l
}

backward @loss.backward of @loss by (%params)

run @train for %x, %t batch 4 epochs 2
"""
WRITTEN_OUT = """#nncdbg 1
opset 18

state %layer.w: f32[3,2] = RandomNormal(seed=1.0, shape=[3,2])
state %layer.b: f32[2] = ConstantOfShape([2])
state %layer.w.m: f32[3,2] = zeros for %layer.w
state %layer.b.m: f32[2] = zeros for %layer.b
state %layer.w.v: f32[3,2] = zeros for %layer.w
state %layer.b.v: f32[2] = zeros for %layer.b
state %count: i64[] = 0

graph @train(%x: f32[N,3], %t: f32[N,2]) -> (%l: f32[]) {
  %l, saved %s = @loss(%x, %t) : f32[]
  %g.layer.w, %g.layer.b = @loss.backward(1.0, %s)
  ## Half of the gradient.
  %half.layer.w = Mul(%g.layer.w, 0.5)
  %half.layer.b = Mul(%g.layer.b, 0.5)
  %new.layer.w, %m.1.layer.w, %v.1.layer.w, _ = nncdbg.AdamW(%layer.w, %half.layer.w, %layer.w.m, %layer.w.v, %count, lr=0.1)
  %new.layer.b, %m.1.layer.b, %v.1.layer.b, _ = nncdbg.AdamW(%layer.b, %half.layer.b, %layer.b.m, %layer.b.v, %count, lr=0.1)
  %count.add = Add(%count, 1)
  update %layer.w = %new.layer.w, %layer.b = %new.layer.b, %layer.w.m = %m.1.layer.w, %layer.b.m = %m.1.layer.b, %layer.w.v = %v.1.layer.w, %layer.b.v = %v.1.layer.b, %count = %count.add
  return %l
}

graph @loss(%x: f32[N,3], %t: f32[N,2]) -> (%l: f32[]) {
  %e.matmul = MatMul(%x, %layer.w)
  %e.add = Add(%e.matmul, %layer.b)
  %e = Sub(%e.add, %t) : f32[N,2]
  %l.mul = Mul(%e, %e)
  %l = ReduceMean(%l.mul, keepdims=0) : f32[]
  return %l
}

backward @loss.backward of @loss by (%layer.w, %layer.b)

run @train for %x, %t batch 4 epochs 2
"""  # noqa: E501 - the lines that groups make short
DATA = {
    "x": np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32),
    "t": np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32),
}


def written_out(program: nncdbg.Program) -> nncdbg.Program:
    """Return the program without groups and inline operands, as its text would be read."""
    text = str(replace(program, groups=()))
    graphs = {
        name: replace(graph, nodes=tuple(replace(node, inline=False) for node in graph.nodes))
        for name, graph in program.graphs.items()
    }
    assert "group" not in text
    return replace(program, groups=(), graphs=graphs)


def test_the_statements_are_those_of_the_members() -> None:
    assert written_out(nncdbg.parse(TRAINING)) == nncdbg.parse(WRITTEN_OUT)


def test_the_text_is_printed_as_it_was_written() -> None:
    assert str(nncdbg.parse(TRAINING)) == TRAINING
    assert nncdbg.parse(str(nncdbg.parse(WRITTEN_OUT))) == nncdbg.parse(WRITTEN_OUT)


def test_the_numbers_are_those_of_the_written_out_training() -> None:
    short, long = (nncdbg.run(nncdbg.parse(text), DATA)["l"] for text in (TRAINING, WRITTEN_OUT))
    np.testing.assert_array_equal(short, long)


def test_next_and_back_execute_all_statements_of_a_line() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TRAINING), DATA)
    debugger.run_to(line=12)
    lines = [debugger.stop.line]
    for _ in range(5):
        debugger.step_over()
        lines.append(debugger.stop.line)
    assert lines == [12, 13, 15, 16, 17, 18]
    for _ in range(5):
        debugger.step_back()
        lines.append(debugger.stop.line)
    assert lines[6:] == [17, 16, 15, 13, 12]


def test_step_executes_one_statement_of_a_line() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TRAINING), DATA)
    debugger.run_to(line=15)
    debugger.step_into()
    assert debugger.stop.line == 15
    assert np.asarray(debugger["half.layer.w"]).shape == (3, 2)
    debugger.step_over()
    assert debugger.stop.line == 16
    debugger.run_to(line=15)
    debugger.step_into()
    debugger.step_back()
    assert debugger.stop.line == 15
    assert debugger.frames[0].pc == 2


def test_the_states_of_an_inline_operand_are_lines_of_their_statement() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TRAINING), DATA)
    debugger.run_to(line=22)
    debugger.step_over()
    assert debugger.stop.line == 23
    assert np.asarray(debugger["e.matmul"]).shape == (4, 2)


def test_prefix_groups_leave_out_states_of_other_states() -> None:
    text = TRAINING.replace("group %params = %layer.w, %layer.b", "group %params = %layer.*")
    program = nncdbg.parse(text)
    assert str(program) == text
    assert program.graphs == nncdbg.parse(TRAINING).graphs
    assert program.backwards == nncdbg.parse(TRAINING).backwards


def test_a_group_selects_the_gradients_of_its_parameters() -> None:
    head, rest = TRAINING.split("states %m, %v")
    text = f"{head}group %biases = %layer.b\nstates %m, %v{rest}".replace(
        "%half = Mul(%g, 0.5)", "%half = Mul(%g, 0.5)\n  %moved = Sub(%biases, %g)"
    )
    program = nncdbg.parse(text)
    assert str(program) == text
    nodes = [
        node for node in walk_nodes(program) if node.op == "Sub" and node.outputs[0].name == "moved.layer.b"
    ]
    assert [node.inputs for node in nodes] == [("layer.b", "g.layer.b")]


ERRORS = [
    (
        "group %params = %layer.w, ⟦%layer.c⟧",
        "%layer.c is neither a state nor a group",
        "did you mean %layer.",
    ),
    ("group %params = ⟦%lay.*⟧", "no state above starts with lay.", "did you mean %layer?"),
    ("group ⟦%params⟧ = %layer.w, %layer.w", "%params has two states of %layer.w", "remove %layer.w"),
    ("group ⟦%layer.w⟧ = %layer.b", "%layer.w is defined twice", "choose another name"),
    ("states %m, %v = zeros for ⟦%layer.w⟧", "%layer.w is one state", "name a group"),
    ("%half = Mul(%g, 0.5)\n  %y = Relu(⟦%h⟧)", "%h is not defined", None),
    (
        "%half = Mul(%g, 0.5)\n  %y = Mul(%params, ⟦%few⟧)",
        "%few has no value for %layer.w",
        "%few has 1 member",
    ),
    ("%half = Mul(%g, 0.5)\n  ⟦%g⟧ = Relu(%x)", "%g is defined twice", "choose another name"),
    ("%half = Mul(%g, 0.5)\n  ⟦%half⟧ = Relu(%g)", "%half is defined twice", "choose another name"),
    ("%half = Mul(%g, 0.5)\n  ⟦%y⟧: f32[2] = Relu(%g)", "%y is a group, which has no type", "write %y = ..."),
    ("update %params = ⟦%l⟧", "%params is a group of 2 states, %l one value", "a value for each state"),
    ("update %count = ⟦%new⟧", "%new is a group of 2 values, but one is needed", "such as %new.layer.w"),
    ("update %params = ⟦%x.1⟧", "%x.1 has no value for %layer.w", "%x.1 has 1 member, %params has 2"),
    (
        "update %params = %new, %layer.b = ⟦%new.layer.b⟧",
        "%layer.b is updated twice",
        "write each state once",
    ),
    ("⟦return %g⟧", "return has %g where the graph's output is %l", None),
    ("grads %g = ⟦@loss⟧(%x, %t)", "@loss is not the graph of a `backward` line", "add the line: backward"),
    ("%half = Mul(⟦%g⟧, 0.5)", "%g has no value for %layer.b", "by (...) of the `backward` line"),
    ("%half = Mul(%g, ⟦ReduceSum⟧(%l))", "a statement over groups", "a line of its own"),
]


@pytest.mark.parametrize(("marked", "message", "hint"), ERRORS, ids=[row[1] for row in ERRORS])
def test_errors(marked: str, message: str, hint: str | None) -> None:
    plain = marked.replace("⟦", "").replace("⟧", "")
    text = TRAINING
    first = plain.split("\n")[0].split("=")[0]
    if marked.startswith("update"):
        more = "  %few = Mul(%biases, 1.0)\n  %x.1 = Relu(%biases)\n"
        text = text.replace("state %count", "group %biases = %layer.b\nstate %count")
        old = next(line for line in text.splitlines() if line.startswith("  update"))
        text = text.replace(old, f"{more}  {plain}")
    elif marked.startswith("group"):
        text = text.replace("group %params = %layer.w, %layer.b", plain)
    elif marked.startswith("states"):
        text = text.replace("states %m, %v = zeros for %params", plain)
    elif plain.startswith("return"):
        text = text.replace("return %l", plain, 1)
    elif marked.startswith("%half = Mul(⟦%g⟧"):
        text = text.replace("%half = Mul(%g, 0.5)", "%half = Mul(%params, %g)").replace(
            "by (%params)", "by (%layer.w)"
        )
        plain = plain.replace("%g, 0.5", "%params, %g")
    elif first.startswith("grads"):
        text = text.replace("grads %g = @loss.backward(1.0, %s)", plain)
    else:
        text = text.replace("state %count", "group %few = %layer.b\nstate %count").replace(
            "%half = Mul(%g, 0.5)", plain
        )
    with pytest.raises(ParseError) as caught:
        nncdbg.parse(text)
    error = caught.value.errors[0]
    assert message in error.message
    if hint is not None:
        assert error.hint is not None
        assert hint in error.hint
    excerpt = error.excerpt
    assert excerpt is not None
    underlined = excerpt.text[excerpt.column - 1 : excerpt.column - 1 + excerpt.width]
    assert underlined == marked[marked.index("⟦") + 1 : marked.index("⟧")]


def test_inline_operands_are_bounded() -> None:
    depth = 10_000
    line = f"%y = {'Relu(' * depth}%x{')' * depth}"
    text = f"graph @main(%x: f32[2]) -> (%y: f32[2]) {{\n  {line}\n  return %y\n}}\n"
    with pytest.raises(ParseError, match="operands are nested too deeply"):
        nncdbg.parse(text)


# -- laws ------------------------------------------------------------------------------------------

names = st.lists(st.sampled_from(["a", "b.w", "b.b", "c.w", "d"]), min_size=1, max_size=5, unique=True)


@st.composite
def grouped(draw: st.DrawFn) -> str:
    """Return a program with groups of states, and statements over them."""
    states = draw(names)
    first = draw(st.lists(st.sampled_from(states), min_size=1, unique=True))
    some = ", ".join(f"%{name}" for name in first)
    lines = [f"state %{name}: f32[2] = [{number}.0, 1.0]" for number, name in enumerate(states)]
    lines += [f"group %first = {some}", f"group %all = {', '.join(f'%{name}' for name in states)}"]
    groups = ["first", "all"]
    if draw(st.booleans()):
        lines.append("states %m, %n = zeros for %first")
        groups += ["m", "n"]
    lines += ["graph @main(%x: f32[2]) -> (%y: f32[2]) {"]
    keys = {"first": first, "all": states, "m": first, "n": first}
    for number in range(draw(st.integers(1, 4))):
        left = draw(st.sampled_from(groups))
        fitting = [name for name in groups if {*keys[left]} <= {*keys[name]}]
        right = draw(st.sampled_from([*fitting, "x", states[0]]))
        name = f"v{number}"
        lines.append(f"  %{name} = {draw(st.sampled_from(['Add', 'Mul']))}(%{left}, %{right})")
        groups.append(name)
        keys[name] = keys[left]
    value = draw(st.sampled_from([name for name in groups if {*keys[name]} == {*states}]))
    lines += [f"  update %all = %{value}", f"  %y: f32[2] = Add(Relu(%{states[-1]}), Neg(Relu(%x)))"]
    return "\n".join([*lines, "  return %y", "}", ""])


@given(grouped())
def test_printed_groups_are_read_as_the_same_program(text: str) -> None:
    program = nncdbg.parse(text)
    printed = str(program)
    assert nncdbg.parse(printed) == program
    assert str(nncdbg.parse(printed)) == printed
    assert str(nncdbg.parse(str(written_out(program)))) == str(written_out(program))


@given(grouped())
def test_groups_compute_what_their_statements_compute(text: str) -> None:
    program = nncdbg.parse(text)
    inputs = {"x": np.array([0.5, -2.0], np.float32)}
    ours, theirs = (nncdbg.run(each, inputs) for each in (program, nncdbg.parse(str(written_out(program)))))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
