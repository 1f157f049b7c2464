"""States, updates, runs and backward lines: printed as they are read, with errors that point at the fault."""

from __future__ import annotations

import pytest

from nncdbg.errors import NncdbgError, ParseError
from nncdbg.ir.records import BackwardLine, Inline, Node, Reference, RunLine
from nncdbg.textual_repr import parse

PROGRAM = """#nncdbg 1
opset 18
store "data.safetensors"

## the weights
state %w: f32[3,2] = RandomNormal(seed=1.0, shape=[3,2])
state %m: f32[3,2] = zeros for %w
state %b: f32[2] = [0.5, -0.5]
state %"odd name": f32[2] = data("b") for %b
state %count: i64[] = 0

graph @train(%x: f32[N,3], %t: f32[N,2]) -> (%l: f32[]) {
  %l, saved %s = @loss(%x, %t) : f32[]
  %d_w, %d_x = @"loss.backward"(1024.0, %s) : f32[3,2], f32[N,3]
  %w.1 = Sub(%w, %d_w) : f32[3,2]
  %count.1 = Add(%count, 1) : i64[]
  update %w = %w.1, %count = %count.1 loc("train.py":7)
  return %l
}

graph @loss(%x: f32[N,3], %t: f32[N,2]) -> (%l: f32[]) {
  %y = MatMul(%x, %w) : f32[N,2]
  %e = Sub(%y, %t) : f32[N,2]
  %l = ReduceMean(%e, keepdims=0) : f32[]
  return %l
}

## through the loss
backward @loss.backward of @loss by (%w, %x)
backward @loss.less of @loss by (%w) checkpoints 4

run @train for %x, %t in data("x"), data("t") batch 32 epochs 10 shuffle 0 steps 500 drop_last
## and then without data
run @train for %x, %t batch 1
""".replace('@"loss.backward"', "@loss.backward")


def test_the_text_is_printed_as_it_was_read() -> None:
    program = parse(PROGRAM)
    assert program.text() == PROGRAM
    assert parse(program.text()) == program


def test_the_records_of_the_lines() -> None:
    program = parse(PROGRAM)
    weight, moment, bias, odd, count = program.states
    assert isinstance(weight.first, Node)
    assert weight.comment == "the weights"
    assert (moment.of, odd.of, weight.of) == ("w", "b", None)
    assert isinstance(bias.first, Inline)
    assert odd.first == Reference("b")
    assert str(count.value.type) == "i64[]"
    assert program.backwards == (
        BackwardLine("loss.backward", "loss", ("w", "x"), "through the loss"),
        BackwardLine("loss.less", "loss", ("w",), checkpoints=4),
    )
    first, second = program.runs
    assert first == RunLine(
        graph="train",
        values=("x", "t"),
        sources=(Reference("x"), Reference("t")),
        batch=32,
        epochs=10,
        shuffle=0,
        drop_last=True,
        steps=500,
    )
    assert (second.sources, second.batch, second.comment) == ((), 1, "and then without data")


def test_the_lines_of_states_and_runs_are_statements() -> None:
    listing = parse(PROGRAM).as_listing()
    lines = [listing.lines[line - 1] for line in listing.statements["program",]]
    assert [text.split()[0] for text in lines] == ["state", "state", "run", "run", "run"]
    assert {len(listing.statements["program", pc, 0]) for pc in (2, 3)} == {3}, "batch, call, next"
    run = listing.statements["program",][2]
    site = listing.site(run)
    assert site is not None
    assert site.path == ("program",), "a breakpoint at a run stops once"


def program(*lines: str, states: str = "state %w: f32[2] = [1,2]", end: str = "") -> str:
    """Return a program with a state %w, a graph @main with the statements `lines`, and the lines `end`."""
    body = "\n".join(lines)
    return f"{states}\ngraph @main(%x: f32[2]) -> (%y: f32[]) {{\n{body}\nreturn %y\n}}\n{end}"


Y = "%y: f32[] = ReduceSum(%x, keepdims=0)"
"""The last statement, without which the graph has no result."""

# (the text, the message, a part of the hint); ⟦ ⟧ enclose the underlined text
FAULTS = [
    (program(Y, states="state %w ⟦=⟧ [1,2]"), "a state needs a name and a tensor type", "state %w: f32[4,3]"),
    (program(Y, states="state %w: f32[2] = Identity(⟦%v⟧)"), "%v is not a state", "the states above it"),
    (program(Y, states="state %w: str[2] = zeros⟦⟧"), "zeros cannot make a str[2]", "zeros for %w"),
    (
        program(Y, states="state %w: f32[2] = ⟦@main⟧(%x)"),
        "a graph cannot compute a state",
        "write the op itself",
    ),
    (
        program(Y, states="state %w: f32[2] = [0,0]\nstate ⟦%w⟧: f32[2] = [0,0]"),
        "%w is defined twice",
        "update gives a state a new value",
    ),
    (program("⟦%w⟧ = Relu(%x)", Y), "%w hides a value of the same name", "it is a state, line 1"),
    (program("update ⟦%v⟧ = %x", Y), "%v is not a state", "declare it"),
    (program("update %w = %x, ⟦%w⟧ = %x", Y), "%w is updated twice", "each state once"),
    (program("update %w = ⟦%z⟧", Y), "%z is not defined", "define it above"),
    (program("⟦run @main steps 3⟧", Y), "run inside a block", "after the graphs"),
    (program(Y, end="run ⟦@nain⟧ steps 3"), "no graph @nain", "did you mean @main?"),
    (program(Y, end="run ⟦@main⟧ for %a, %b batch 2"), "@main has 1 input, not 2", "for %x in data"),
    (program(Y, end="run @main for %x batch ⟦0⟧"), "batch must be 1 or more", None),
    (program(Y, end="run @main for %x batch 2 ⟦batch⟧ 3"), "batch occurs twice", "a run looks like"),
    (program(Y, end="run @main ⟦epochs⟧ 3"), "epochs needs data: for %x in data(...)", "a run looks like"),
    (program(Y, end="run @main⟦⟧"), "the number of steps is missing", "steps 100"),
    (
        program(Y, end='run @main for ⟦%x in data("a"), data("b")⟧ batch 1'),
        "the number of values is 1, that of sources 2",
        "one source for each value",
    ),
    (program(Y, end="backward @g of ⟦@nain⟧ by (%w)"), "no graph @nain", "did you mean @main?"),
    (program(Y, end="backward @main of ⟦@main⟧ by (%w)"), "two graphs are named @main", None),
    (program(Y, end="backward @g of @main by ()⟦⟧"), "by needs at least one value", "it looks like"),
    (
        program(Y, end="backward @g of @main by (%w) checkpoints ⟦0⟧"),
        "checkpoints must be 1 or more",
        "checkpoints 8",
    ),
    (
        program(Y, end="backward @g of @main by (%w) checkpoints⟦⟧"),
        "expected an integer",
        "after checkpoints",
    ),
    (program("%y: f32[], saved %s = ⟦Relu⟧(%x)"), "only a call saves values", "saved %s = @loss"),
]


@pytest.mark.parametrize(("marked", "message", "hint"), FAULTS, ids=[fault[1] for fault in FAULTS])
def test_faults(marked: str, message: str, hint: str | None) -> None:
    start, end = marked.index("⟦"), marked.index("⟧") - 1
    before = marked[:start]
    with pytest.raises(ParseError) as caught:
        parse(marked.replace("⟦", "").replace("⟧", ""))
    error: NncdbgError = caught.value.errors[0]
    assert error.message.startswith(message)
    assert hint is None or hint in (error.hint or "")
    assert error.excerpt is not None
    assert error.excerpt.line == before.count("\n") + 1
    assert error.excerpt.column == len(before.rpartition("\n")[2]) + 1
    assert error.excerpt.width == max(1, end - start)


def test_a_faulty_state_is_reported_once() -> None:
    with pytest.raises(ParseError) as caught:
        parse(program("%z = Add(%w, %x)", "update %w = %z", Y, states="state %w = [1,2]"))
    assert len(caught.value.errors) == 1


EVALUATIONS = """
run @train for %x, %t batch 1
## on other data
evaluate @loss for %y, %z in data("y"), data("z") batch 100
evaluate @loss for %x, %t
"""


def test_an_evaluation_belongs_to_the_run_before_it() -> None:
    text = PROGRAM + EVALUATIONS.lstrip("\n")
    program = parse(text)
    assert program.text() == text
    assert parse(program.text()) == program
    assert [len(run.evaluations) for run in program.runs] == [0, 0, 2]
    first, second = program.runs[-1].evaluations
    assert (first.graph, first.values, first.batch, first.comment) == (
        "loss",
        ("y", "z"),
        100,
        "on other data",
    )
    assert (second.sources, second.batch) == ((), None)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("evaluate @main", "evaluate without a run"),
        ("run @main steps 3\nevaluate @main epochs 3", "epochs"),
        ("run @main steps 3\nevaluate @other", "other"),
        ("run @main steps 3\nevaluate @main for %x in data(1)", ""),
        ("run @main steps 3\nevaluate @main batch 8", "batch needs data"),
    ],
)
def test_a_wrong_evaluation_is_underlined(lines: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(program(end=lines))
    assert message in str(error.value)
    assert "^" in str(error.value)
