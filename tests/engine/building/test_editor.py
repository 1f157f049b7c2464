"""Edits of a program: statements keep their ids, and values know their readers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.ir.records import Graph
from tests.engine.programs import runnable
from tests.laws import examples

X = np.array([0.5, -1.0, 2.0], np.float32)
FEW = examples(50)

CHAIN = """
graph @main(%x: f32[3]) -> (%y: f32[3]) {
  %a: f32[3] = Relu(%x)
  %b: f32[3] = Neg(%a)
  %c: f32[3] = Add(%a, %b)
  %y: f32[3] = Mul(%c, 2.0)
  return %y
}
"""


def run(program: nncdbg.Program) -> list[float]:
    (found,) = nncdbg.run(program, {"x": X}).values()
    values: list[float] = found.tolist()
    return values


def reads(graph: Graph) -> Counter[str]:
    """Count the reads of each name, from the records of a graph."""
    found: Counter[str] = Counter()
    waiting = [graph]
    for block in waiting:
        found.update(value.name for value in block.outputs)
        for node in block.nodes:
            found.update(each for each in node.inputs if isinstance(each, str))
            waiting += node.subgraphs
    return found


def values_of(edit: nncdbg.Editor) -> list[nncdbg.EditedValue]:
    blocks = [edit.graph(), *(block for statement in edit for block in statement.blocks)]
    inside = [value for block in blocks for value in (*block.inputs, *(each for each, _ in block.constants))]
    return [*inside, *(value for statement in edit for value in statement.results)]


def check_edges(edit: nncdbg.Editor) -> None:
    """Compare the cached reverse edges with those computed from the operands."""
    blocks = [edit.graph(), *(block for statement in edit for block in statement.blocks), edit.graph("layer")]
    found: dict[int, Counter[tuple[int, int]]] = {}
    for reader, operands in (
        *((statement, statement.operands) for statement in edit),
        *((block, block.results) for block in dict.fromkeys(blocks)),
    ):
        for index, operand in enumerate(operands):
            if isinstance(operand, nncdbg.EditedValue):
                found.setdefault(id(operand), Counter())[id(reader), index] += 1
    for value in values_of(edit):
        cached = Counter((id(use.reader), use.index) for use in value.uses)
        assert cached == found.get(id(value), Counter()), value


@FEW
@given(runnable(random=False), st.data())
def test_both_directions_of_the_edges_agree_after_any_edits(text: str, data: Any) -> None:
    """E3: after random edits, the cached uses are those computed from scratch."""
    program = nncdbg.parse(text)
    edit = nncdbg.Editor(program)
    ids = {statement.id: statement for statement in edit}
    assert edit.program() is program
    for _ in range(data.draw(st.integers(1, 8))):
        statements = [*edit]
        if not statements:
            break
        statement = data.draw(st.sampled_from(statements))
        block = statement.block
        assert block is not None
        floats = [value for value in values_of(edit) if str(value.type) in ("f32[3]", "None")]
        other = data.draw(st.sampled_from(floats))
        kind = data.draw(st.sampled_from(["insert", "replace", "rewire", "delete", "move", "branch"]))
        try:
            if kind == "insert":
                block.insert("Tanh", other, before=statement)
            elif kind == "replace" and len(statement.outputs) == 1:
                statement.replace("Abs", other)
            elif kind == "rewire" and statement.outputs and statement.results:
                statement.outputs[0].replace_uses(other)
            elif kind == "delete":
                statement.delete()
            elif kind == "move":
                statement.move(before=data.draw(st.sampled_from(statements)))
            elif kind == "branch":
                condition = block.insert("Equal", other, other, before=statement)
                peak = block.insert(
                    "ReduceMin",
                    block.insert("Cast", condition, to=6, before=statement),
                    before=statement,
                    keepdims=0,
                )
                block.branch(
                    block.insert("Cast", peak, to=9, before=statement), [other], [other], before=statement
                )
        except nncdbg.NncdbgError:
            pass
        check_edges(edit)
        now = {each.id: each for each in edit}
        assert all(ids.get(number, each) is each for number, each in now.items())
        ids |= now
    try:
        made = edit.program()
    except nncdbg.GraphError:
        return  # A value is read before its definition, or of another type.
    assert nncdbg.parse(str(made)) == made
    counted = reads(made.graph)
    names = {value.name: value for value in values_of(edit)}
    assert {name: len(value.uses) for name, value in names.items() if value.uses and name in counted} == {
        name: number for name, number in counted.items() if name in names
    }
    assert nncdbg.Editor(made).program() is made


def test_statements_are_deleted_and_inserted_during_an_iteration() -> None:
    """E10: an iteration visits each statement that is still there, and none that it inserts."""
    edit = nncdbg.Editor(nncdbg.parse(CHAIN))
    main = edit.graph()
    visited = []
    for statement in main:
        visited.append(statement.op)
        if statement.op == "Relu":
            later = main[1]
            assert later.op == "Neg"
            later.outputs[0].replace_uses(statement.outputs[0])
            later.delete()
        if statement.op == "Add":
            for _ in range(3):
                main.insert("Exp", statement.outputs[0], after=statement)
    assert visited == ["Relu", "Add", "Mul"]
    assert [statement.op for statement in main] == ["Relu", "Add", "Exp", "Exp", "Exp", "Mul"]
    assert run(edit.program()) == (4 * np.maximum(X, 0)).tolist()


def test_ids_are_stable() -> None:
    """E10: an id belongs to one statement, whatever is inserted, moved or deleted around it."""
    edit = nncdbg.Editor(nncdbg.parse(CHAIN))
    main = edit.graph()
    before = {statement.id: statement.op for statement in main}
    new = main.insert("Abs", main.inputs[0], name="n", before=main[0]).statement
    assert new is not None
    main[1].replace("Abs", new.outputs[0])
    new.move(before=main[1])
    assert new.id not in before
    after = {statement.id: statement.op for statement in main if statement is not new}
    assert after == {**before, min(before): "Abs"}


def test_a_phi_is_created_with_one_call() -> None:
    """E10: an `if` with results, whose blocks can be filled later."""
    edit = nncdbg.Editor(nncdbg.parse(CHAIN))
    main = edit.graph()
    a, c = edit.value("%a"), edit.value("%c")
    total = main.insert("ReduceSum", a, keepdims=0, after=a.statement)
    condition = main.insert("Greater", total, 100.0, name="big", after=total.statement)
    (chosen,) = main.branch(condition, [a], [c], names=["chosen"], after=c.statement)
    edit.value("%y").statement.set_operand(0, chosen)  # type: ignore[union-attr]
    statement = chosen.statement
    assert statement is not None
    then, otherwise = statement.blocks
    scaled = otherwise.insert("Mul", c, 3.0, name="scaled")
    otherwise.set_operand(0, scaled)
    program = edit.program()
    assert "if %big {" in str(program)
    assert "yield %scaled" in str(program)
    assert run(program) == [0.0, 0.0, 0.0]
    assert then.results == (a,)


def test_the_edited_program_has_new_types() -> None:
    edit = nncdbg.Editor(nncdbg.parse(CHAIN))
    a = edit.value("%a")
    cast = edit.graph().insert("Cast", a, name="wide", to=11, after=a.statement)
    a.replace_uses(cast)
    program = edit.program()
    types = {value.name: str(value.type) for node in program.graph.nodes for value in node.outputs}
    assert types == {"a": "f32[3]", "wide": "f64[3]", "b": "f64[3]", "c": "f64[3]", "y": "f64[3]"}
    assert str(program.graph.outputs[0].type) == "f64[3]"
    assert nncdbg.run(program, {"x": X})["y"].dtype == np.float64


def test_constants_layers_and_loops_are_edited() -> None:
    program = nncdbg.load(Path(__file__).parents[3] / "examples" / "first_steps.nnc")
    edit = nncdbg.Editor(program)
    for statement in edit:
        if statement.op == "Relu":
            layer = edit.graph("@layer")
            assert statement.block is layer
            scale = layer.constant("scale", np.full(4, 2, np.float32))
            statement.outputs[0].replace_uses(
                layer.insert("Mul", statement.outputs[0], scale, after=statement)
            )
        if statement.op == "break":
            statement.delete()
    made = edit.program()
    assert made.graphs["main"] is not program.graphs["main"]
    x = {"x": np.ones((2, 4), np.float32)}
    assert nncdbg.run(made, x)["steps"] == 6
    assert program == nncdbg.load(program.source or "")


def test_states_keep_their_names() -> None:
    program = nncdbg.load(Path(__file__).parents[3] / "examples" / "train_mlp.nnc", steps=2)
    edit = nncdbg.Editor(program)
    optimizers = [statement for statement in edit if statement.op == "nncdbg.SGD"]
    assert optimizers
    for statement in optimizers:
        given = {**statement.attributes, "lr": 0.0}
        statement.replace(statement.op, *statement.operands, **given)
    made = edit.program()
    assert nncdbg.parse(str(made)) == made
    losses = nncdbg.run(made)["l"]
    assert len(losses) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda edit: edit.value("a").statement.delete(), "%a is still read by <statement 1: %b = Neg>"),
        (lambda edit: edit.graph().insert("Conv", edit.value("a")), "Conv"),
        (lambda edit: edit.graph().insert("Relu", object()), "object cannot be an operand"),
        (lambda edit: edit.value("nothing"), "@main has no values %nothing"),
        (lambda edit: edit.graph("nothing"), "no graph nothing"),
        (lambda edit: edit.graph().branch(edit.value("a"), [edit.value("a")], []), "yield 1 and 0 values"),
        (lambda edit: edit.value("a").statement.move(before=edit.value("a").statement), "into itself"),
    ],
)
def test_wrong_edits_are_refused(change: Any, message: str) -> None:
    edit = nncdbg.Editor(nncdbg.parse(CHAIN))
    with pytest.raises(nncdbg.NncdbgError) as caught:
        change(edit)
    assert message in caught.value.message
    assert edit.program() == nncdbg.parse(CHAIN)


def test_a_value_that_is_read_before_its_definition_is_reported() -> None:
    edit = nncdbg.Editor(nncdbg.parse(CHAIN))
    edit.value("a").statement.move(after=edit.value("c").statement)  # type: ignore[union-attr]
    with pytest.raises(nncdbg.GraphError, match="Neg -> %b in graph @main: %a is not defined"):
        edit.program()
