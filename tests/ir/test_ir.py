"""Kinds of statements, walks, folds and rewriting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

import nncdbg
from nncdbg.ir.kinds import Kind, called_graph, kind_of
from nncdbg.ir.names import all_defined, free_names, reads
from nncdbg.ir.records import Graph, Node, Path, Value
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import block_at, blocks, calls_in, fold, graphs_called, node_at, walk, walk_nodes

PROGRAM = nncdbg.parse("""opset 17

graph @main(%x: f32[4], %c: bool[]) -> (%y) {
  %a = Relu(%x)
  if %c {
    %d = @twice(%a)
    yield %d
  } else {
    while (%s = %a) times 3 {
      %f = Sin(%s)
      next %s = %f
    } -> (%e = %s)
    yield %e
  } -> (%b)
  %y = Add(%b, %a)
  return %y
}

graph @twice(%x: f32[4]) -> (%z) {
  %z = Add(%x, %x)
  return %z
}
""")
MAIN = PROGRAM.graph
ELSE, BODY = ("main", 1, 1), ("main", 1, 1, 0, 0)


def test_kinds_follow_from_the_op() -> None:
    ops = {"Relu": Kind.OP, "@twice": Kind.CALL, "if": Kind.IF, "update": Kind.UPDATE, "break": Kind.BREAK}
    assert {op: kind_of(op) for op in ops} == ops
    assert (called_graph("@twice"), called_graph("Relu")) == ("twice", None)
    assert [node.kind for node in MAIN.nodes] == [Kind.OP, Kind.IF, Kind.OP]


def test_blocks_come_in_the_order_of_the_text() -> None:
    paths = [path for path, _ in blocks(PROGRAM)]
    assert paths == [("main",), ("main", 1, 0), ELSE, BODY, ("twice",)]
    assert [path for path, _ in blocks({"key": MAIN})][:2] == [("key",), ("key", 1, 0)]
    assert all(block_at(PROGRAM, path) is block for path, block in blocks(PROGRAM))


def test_statements_come_before_those_in_their_blocks() -> None:
    ops = ["Relu", "if", "@twice", "while", "Sin", "Add"]
    assert [node.op for node in walk_nodes(MAIN)] == ops
    assert [node.op for node in walk_nodes(MAIN, PROGRAM.graphs)] == [*ops[:3], "Add", *ops[3:]]
    assert [node.op for node in walk_nodes(MAIN.nodes[1])] == ops[1:-1]
    assert all(node_at(PROGRAM, path, pc) is node for path, _, pc, node in walk(PROGRAM))
    assert [(path, pc) for path, _, pc, node in walk(MAIN) if node.op in ("while", "Sin")] == [
        (ELSE, 0),
        (BODY, 0),
    ]
    assert node_at(PROGRAM, BODY, 1) is None
    with pytest.raises(LookupError):
        block_at(PROGRAM, ("main", 0, 0))


def test_calls_are_found_in_blocks() -> None:
    assert calls_in(PROGRAM) == ["twice"]
    assert graphs_called("main", PROGRAM.graphs) == ["main", "twice"]


def test_names_that_are_read_and_defined() -> None:
    assert free_names(MAIN) == []
    assert reads(MAIN.nodes[1]) == ["c", "a", "a"]
    assert sorted({value.name for value in all_defined(MAIN)} - {""}) == sorted("xcabdesfy")


def test_fold_gives_the_results_of_the_blocks() -> None:
    def depth(path: Path, block: Graph, inner: Mapping[int, Sequence[int]]) -> int:
        return 1 + max((each for results in inner.values() for each in results), default=0)

    assert fold(MAIN, depth) == 3


def test_rewriting_nothing_keeps_the_objects() -> None:
    assert rewrite(MAIN, lambda path, pc, node: node) is MAIN


def test_rewriting_goes_bottom_up_and_keeps_what_does_not_change() -> None:
    seen = []

    def twice(path: Path, pc: int, node: Node) -> Sequence[Node]:
        seen.append((path, pc))
        return [node, replace(node, outputs=(Value("g"),))] if node.op == "Sin" else [node]

    made = rewrite(MAIN, twice)
    assert seen == [(("main",), 0), (("main", 1, 0), 0), (BODY, 0), (ELSE, 0), (("main",), 1), (("main",), 2)]
    assert [node.outputs[0].name for node in block_at(made, BODY).nodes] == ["f", "g"]
    assert made.nodes[0] is MAIN.nodes[0]
    assert made.nodes[1].subgraphs[0] is MAIN.nodes[1].subgraphs[0]
    assert (
        rewrite(MAIN, lambda path, pc, node: node, lambda path, new: replace(new, comment="c")).comment == "c"
    )


def test_deep_nesting_does_not_exceed_the_stack() -> None:
    graph = Graph("g", (), (Value("x"),), (Node("Relu", ("y",), (Value("x"),)),))
    for _ in range(3000):
        graph = Graph("g", (), (), (Node("if", ("c",), (), {}, (graph, Graph("g"))),))
    assert sum(1 for _ in walk(graph)) == sum(1 for _ in walk_nodes(graph)) == 3001
    assert "y" in free_names(graph)
    assert next(walk_nodes(rewrite(graph, lambda path, pc, node: replace(node, comment="c")))).comment == "c"
