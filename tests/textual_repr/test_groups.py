"""Groups `...`: values that pass between graphs under their own names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.errors import ParseError
from nncdbg.ir.records import Program, TensorType
from nncdbg.textual_repr import parse, print_program, printer
from nncdbg.textual_repr.groups import in_order_of_groups
from tests.laws import examples

STEP = """#nncdbg 1

state %a.w: f32[2] = [1.0, 2.0]
state %a.v: f32[2] = [1.0, 2.0]
state %b.w: f32[2] = [1.0, 2.0]
state %b.v: f32[2] = [1.0, 2.0]

graph @main(%x: f32[2]) -> (%loss: f32[], ...) {
  %loss, ... = @forward(%x) : f32[]
  ... = @backward(%loss, ...)
  @optimizer(...)
  return %loss, ...
}

graph @forward(%x: f32[2]) -> (%loss: f32[], ...) {
  %a.out, ... = @a(%x) : f32[2]
  %b.out, ... = @b(%a.out) : f32[2]
  %loss = ReduceSum(%b.out, keepdims=0) : f32[]
  return %loss, ...
}

graph @a(%x: f32[2]) -> (%.out: f32[2], ...) {
  %.h = Mul(%x, %.w) : f32[2]
  %.k = Mul(%.h, %.v) : f32[2]
  %.out = Exp(%.k) : f32[2]
  return %.out, ...
}

graph @b(%a.out: f32[2]) -> (%.out: f32[2], ...) {
  %.h = Mul(%a.out, %.w) : f32[2]
  %.k = Mul(%.h, %.v) : f32[2]
  %.out = Neg(%.k) : f32[2]
  return %.out, ...
}

graph @backward(%loss: f32[], ...) -> (...) {
  %d = Mul(%b.k, %b.h) : f32[2]
  %e = Mul(%a.h, %a.k) : f32[2]
  %b.w.grad = Mul(%d, %loss) : f32[2]
  %b.v.grad = Mul(%d, %e) : f32[2]
  %a.w.grad = Mul(%e, %loss) : f32[2]
  %a.v.grad = Mul(%e, %d) : f32[2]
  return ...
}

graph @optimizer(...) -> () {
  %a.w.1 = Sub(%a.w, %a.w.grad) : f32[2]
  %a.v.1 = Sub(%a.v, %a.v.grad) : f32[2]
  %b.w.1 = Sub(%b.w, %b.w.grad) : f32[2]
  %b.v.1 = Sub(%b.v, %b.v.grad) : f32[2]
  update %a.w = %a.w.1, %a.v = %a.v.1
  update %b.w = %b.w.1, %b.v = %b.v.1
  return
}
"""

GRADIENTS = ["b.w.grad", "b.v.grad", "a.w.grad", "a.v.grad"]


def names(program: Program, graph: str) -> tuple[list[str], list[str]]:
    shown = program.graphs[graph]
    return [value.name for value in shown.inputs], [value.name for value in shown.outputs]


def test_the_text_is_printed_as_it_was_read() -> None:
    program = parse(STEP)
    assert program.text() == STEP
    assert parse(program.text()) == program


def test_a_group_is_the_values_that_other_graphs_read() -> None:
    program = parse(STEP)
    assert names(program, "a") == (["x"], ["a.out", "a.h", "a.k"])
    assert names(program, "forward") == (["x"], ["loss", "a.h", "a.k", "b.h", "b.k"])
    assert names(program, "backward") == (["loss", "b.k", "b.h", "a.h", "a.k"], GRADIENTS)
    assert names(program, "optimizer") == (["a.w.grad", "a.v.grad", "b.w.grad", "b.v.grad"], [])
    assert names(program, "main") == (["x"], ["loss", *GRADIENTS])
    forward, backward, optimizer = program.graphs["main"].nodes
    assert [value.type for value in forward.outputs[1:]] == [TensorType("f32", (2,))] * 4
    assert backward.inputs == ("loss", "b.k", "b.h", "a.h", "a.k")
    assert [value.name for value in backward.outputs] == GRADIENTS
    assert optimizer.inputs == ("a.w.grad", "a.v.grad", "b.w.grad", "b.v.grad")


def without_groups(program: Program) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printer, "groups_of", lambda program: {})
        return print_program(program)


def test_lists_of_all_values_mean_the_same_program() -> None:
    program = parse(STEP)
    listed = without_groups(program)
    assert "..." not in listed
    assert parse(listed) == program


def test_another_order_is_printed_as_lists_and_can_be_put_in_order() -> None:
    listed = without_groups(parse(STEP))
    swapped = listed.replace("%b.k, %b.h", "%b.h, %b.k").replace(
        "%b.k: f32[2], %b.h: f32[2]", "%b.h: f32[2], %b.k: f32[2]"
    )
    assert swapped != listed
    program = parse(swapped)
    assert parse(program.text()) == program
    assert "= @backward(%loss, %b.h, %b.k, " in program.text()
    assert in_order_of_groups(program).text() == STEP


# (a part of the text, what is written instead, the message, the underlined text, a part of the hint)
ERRORS = [
    ("%b.k, %b.h", "%b.q, %b.h", "%b.q is not defined, and no call above returns it", "%b.q", "define it"),
    (
        "= @backward(%loss, ...)",
        "= @backward(%loss)",
        "the inputs of @backward end in ...",
        "@backward",
        "in both",
    ),
    ("... = @backward", "@backward", "the outputs of @backward end in ...", "@backward", "in both"),
    ("@optimizer(...)\n", "... = @optimizer(...)\n", "the outputs of @optimizer do not end", "@opt", "both"),
    ("%b.k, %b.h)", "%b.k, %b.h, ...)", "only a call has ...", "Mul", "list the operands"),
    ("(%x: f32[2]) -> (%loss", "(..., %x: f32[2]) -> (%loss", "an item after ...", "%x", "at the end"),
    ("return %.out, ...", "return %.out", "the outputs of the block end in", "return", "return %.out, ..."),
    ("return ...", "return", "the outputs of the block end in ...", "return", "write return ..."),
    (
        "  return\n}",
        "  return ...\n}",
        "the outputs of the block do not end in ...",
        "return",
        "write return",
    ),
    (
        "@optimizer(...)\n",
        "if true {\n@optimizer(...)\nyield\n} else {\nyield\n}\n",
        "@optimizer has ... in its inputs, and this call is in a nested block",
        "@optimizer",
        "in both",
    ),
]


@pytest.mark.parametrize(("old", "new", "message", "mark", "hint"), ERRORS, ids=[row[1] for row in ERRORS])
def test_a_wrong_group_is_underlined(old: str, new: str, message: str, mark: str, hint: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(STEP.replace(old, new, 1))
    first = caught.value.errors[0]
    assert len(caught.value.errors) == 1
    assert message in first.message
    assert first.excerpt is not None
    assert first.excerpt.text[first.excerpt.column - 1 :].startswith(mark)
    assert hint in (first.hint or "")


def test_a_name_of_two_graphs_is_no_value_of_a_group() -> None:
    with pytest.raises(ParseError) as caught:
        parse(STEP.replace("%e = Mul(%a.h, %a.k)", "%b.k = Mul(%a.h, %a.k)"))
    assert caught.value.errors[0].message == "%b.k is not defined, and no call above returns it"


# -- a law -----------------------------------------------------------------------------------------


@st.composite
def steps(draw: st.DrawFn) -> str:
    """Draw the text of a step whose layers, at two depths, pass values to later graphs as groups."""
    layers = draw(st.integers(1, 4))
    values: list[str] = []
    graphs = []
    calls = []
    before = "x"
    for layer in range(layers):
        inner = draw(st.booleans())
        lines = []
        last = before
        for number in range(draw(st.integers(1, 3))):
            other = draw(st.sampled_from([last, f"l{layer}.w"]))
            lines.append(f"  %l{layer}.v{number} = Add(%{last}, %{other}) : f32[2]")
            last = f"l{layer}.v{number}"
            values.append(last)
        name = f"l{layer}.inner" if inner else f"l{layer}"
        graphs.append(
            f"graph @{name}(%{before}: f32[2]) -> (%{last}: f32[2], ...) {{\n"
            + "\n".join(lines)
            + f"\n  return %{last}, ...\n}}\n"
        )
        if inner:
            graphs.append(
                f"graph @l{layer}(%{before}: f32[2]) -> (%{last}: f32[2], ...) {{\n"
                f"  %{last}, ... = @{name}(%{before})\n  return %{last}, ...\n}}\n"
            )
        calls.append(f"  %{last}, ... = @l{layer}(%{before})")
        before = last
    reads = draw(st.lists(st.sampled_from(values), min_size=1, max_size=8))
    backward = [f"  %g{number} = Neg(%{read})" for number, read in enumerate(reads)]
    gradients = draw(st.lists(st.integers(0, layers - 1), unique=True))
    backward += [f"  %l{layer}.w.grad = Neg(%g0)" for layer in gradients]
    states = "".join(f"state %l{layer}.w: f32[2] = [1.0, 2.0]\n" for layer in range(layers))
    return (
        f"{states}graph @main(%x: f32[2]) -> (%{before}: f32[2], ...) {{\n  %{before}, ... = @forward(%x)\n"
        f"  ... = @backward(...)\n  return %{before}, ...\n}}\n"
        f"graph @forward(%x: f32[2]) -> (%{before}: f32[2], ...) {{\n"
        + "\n".join(calls)
        + f"\n  return %{before}, ...\n}}\ngraph @backward(...) -> (...) {{\n"
        + "\n".join(backward)
        + "\n  return ...\n}\n"
        + "".join(graphs)
    )


@given(steps())
@examples(100)
def test_groups_and_lists_mean_the_same_program(text: str) -> None:
    program = parse(text)
    assert parse(program.text()) == program
    listed = without_groups(program)
    assert "..." not in listed
    assert parse(listed) == program
    ordered = in_order_of_groups(program)
    assert parse(ordered.text()) == ordered
    assert in_order_of_groups(ordered) == ordered
