"""The compiler and the language server infer the same types and report the same errors."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

import nncdbg
from nncdbg.engine.compilation.code import Compiler
from nncdbg.errors import GraphError, NncdbgError
from nncdbg.ir.constants import initial_data
from nncdbg.ir.records import Path, Program, Type
from nncdbg.text.listing import Listing
from nncdbg.textual_repr.language_server.analysis import Analysis
from nncdbg.textual_repr.language_server.analyzer import Analyzer
from nncdbg.textual_repr.parser import parse
from nncdbg.textual_repr.printer import listing

Types: TypeAlias = "dict[Path, dict[str, Type | None]]"


def analyzed(text: str) -> Analysis:
    """The language server's analysis of a text."""
    steps = Analyzer().steps(text.splitlines())
    while True:
        try:
            next(steps)
        except StopIteration as end:
            analysis: Analysis = end.value
            return analysis


def editor_types(analysis: Analysis) -> Types:
    """The types of all values by block."""
    return {
        block.path: {name: chunk.types.of(block, name) for name in block.names}
        for chunk in analysis.chunks
        for block in chunk.types.types
    }


def of_compiler(program: Program) -> tuple[Types, tuple[int, NncdbgError] | None]:
    """The types of the entry graph's values by block, and the first error with its line."""
    places: list[int] = []
    text: Listing = listing(program)

    def report(path: Path, pc: int, error: NncdbgError) -> NncdbgError:
        places.append(text.line(path, pc))
        return error

    compiler = Compiler(program, lambda constant: initial_data(constant, program), report)
    graph = program.graphs[program.entry]
    try:
        code = compiler.compile(graph, [None] * len(graph.inputs))
    except GraphError as error:
        return {}, (places[0], error)
    found: Types = {}
    stack = [code]
    while stack:
        each = stack.pop()
        captured = {each.names[slot] for _, slot in each.captures}
        found[each.path] = {n: t for n, t in each.types.items() if n not in captured}
        stack.extend(body for bodies in each.bodies.values() for body in bodies)
    return found, None


def program_text(inputs: str, outputs: str, body: str, more: str = "") -> str:
    lines = "\n".join(f"  {line}" for line in body.strip().split("\n"))
    return f"#nncdbg 1\nopset 18\n\ngraph @main({inputs}) -> ({outputs}) {{\n{lines}\n}}\n{more}"


CALLED = """
graph @twice(%a: f32[N,4]) -> (%b: f32[N,4]) {
  %b = Add(%a, %a)
  return %b
}
"""

BRANCH = """
if {condition} {{
  %a = {one}
  yield %a
}} else {{
  %b = {other}
  yield %b
}} -> (%y{type})
return %y
"""

LOOP = """
while (%s{type} = %x) count %i times 3 {{
  %n = {step}
  %seen = Mul(%n, 2)
  next %s = %n collect %seen
}} -> (%y = %s, %all{collected} = collect[0])
return %y
"""


def branch(one: str, other: str, *, condition: str = "%c", type_: str = "") -> str:
    return BRANCH.format(condition=condition, one=one, other=other, type=type_)


def loop(step: str, *, type_: str = "", collected: str = "") -> str:
    return LOOP.format(step=step, type=type_, collected=collected)


X = "%c: bool[], %x: f32[N,4]"

GOOD = {
    "operators": "%z = Relu(%x)\n%y = ReduceSum(%z, keepdims=0)\nreturn %y",
    "literals": "%z = Add(%x, 1)\n%y = Gather(%z, [0, 1])\nreturn %y",
    "an op without a schema": "%z = acme.Thing(%x)\n%y: f32[7] = acme.Thing(%z)\nreturn %y",
    "a size from its declaration only": "%z = NonZero(%x)\n%y: i64[2,5] = Identity(%z)\nreturn %y",
    "branches of the same type": branch("Relu(%x)", "Neg(%x)"),
    "branches of two sizes": branch("Relu(%x)", "Concat(%x, %x, axis=1)"),
    "branches of two ranks": branch("Relu(%x)", "ReduceSum(%x, keepdims=0)"),
    "branches of two element types": branch("Relu(%x)", "Cast(%x, to=7)"),
    "branches with a declared type": branch("Relu(%x)", "Neg(%x)", type_=": f32[?,4]"),
    "branches of two ranks with a declared type": branch(
        "Relu(%x)", "ReduceSum(%x, keepdims=0)", type_=": f32[?,4]"
    ),
    "a loop": loop("Add(%s, %x)"),
    "a loop whose carried value grows": loop("Concat(%s, %x, axis=0)"),
    "a loop with declared types": loop("Relu(%s)", type_=": f32[?,4]", collected=": f32[3,?,4]"),
    "a call": "%y = @twice(%x)\nreturn %y",
    "a call with another size": "%z: f32[5,4] = acme.Thing(%x)\n%y = @twice(%z)\nreturn %y",
}

BAD: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "operands that do not broadcast": (
        "%z: f32[3,5] = acme.Thing(%x)\n%y = Add(%x, %z)\nreturn %y",
        "shapes [N,4] and [3,5] do not broadcast: sizes 4 and 5 do not broadcast",
        {},
    ),
    "a wrong operand": (
        "%z: f32[3,5] = acme.Thing(%x)\n%y = MatMul(%x, %z)\nreturn %y",
        "a has 4 columns, but b has 3 rows",
        {"operand": 1},
    ),
    "a wrong rank": (
        "%z = ReduceSum(%x, keepdims=0)\n%y = Gemm(%z, %x)\nreturn %y",
        "A has 0 axes, expected 2",
        {"operand": 0},
    ),
    "an axis out of range": (
        "%y = Concat(%x, %x, axis=5)\nreturn %y",
        "axis 5 is out of range for 2 axes",
        {"attribute": "axis"},
    ),
    "an unknown attribute": (
        "%y = Relu(%x, slope=2)\nreturn %y",
        "Relu has no attribute 'slope' in opset 18",
        {"attribute": "slope"},
    ),
    "an attribute of another type": (
        "%y = Concat(%x, %x, axis=0.5)\nreturn %y",
        "Concat: the attribute 'axis' is 0.5, not an integer",
        {"attribute": "axis"},
    ),
    "a missing attribute": ("%y = Concat(%x, %x)\nreturn %y", "Concat needs the attribute 'axis'", {}),
    "too many operands": ("%y = Relu(%x, %x)\nreturn %y", "Relu takes 1 operand, not 2", {"operand": 1}),
    "an operand that is not given": ("%y = Add(%x, _)\nreturn %y", "Add needs its operand B", {"operand": 1}),
    "too many outputs": ("%y, %z = Relu(%x)\nreturn %y", "Relu has 1 output, not 2", {"output": 1}),
    "a declared type": (
        "%y: f32[N,5] = Relu(%x)\nreturn %y",
        "%y is declared f32[N,5] but the op returns f32[N,4]",
        {"output": 0},
    ),
    "a declared output": (
        "%y = Cast(%x, to=7)\nreturn %y",
        "%y is i64[N,4], but the graph declares f32[...]",
        {"operand": 0},
    ),
    "a condition": (
        branch("Relu(%x)", "Neg(%x)", condition="%x"),
        "the condition must be a bool, not f32[N,4]",
        {"operand": 0},
    ),
    "a declared result of branches": (
        branch("Relu(%x)", "Neg(%x)", type_=": f32[N,5]"),
        "%y is declared f32[N,5] but a branch returns f32[N,4]",
        {"output": 0},
    ),
    "a branch that contradicts the declared result": (
        branch("Relu(%x)", "Cast(%x, to=7)", type_=": f32[N,4]"),
        "%y is declared f32[N,4] but a branch returns i64[N,4]",
        {"output": 0},
    ),
    "an error in a branch": (
        branch("Relu(%x)", "Transpose(%x, perm=[0])"),
        "perm [0] is not a permutation of 2 axes",
        {"attribute": "perm"},
    ),
    "a first value": (
        loop("Relu(%s)", type_=": f32[N,5]"),
        "%s is declared f32[N,5] but its first value is f32[N,4]",
        {"output": 1},
    ),
    "a carried value": (
        loop("Cast(%s, to=7)"),
        "%n is i64[...], but %s is f32[...]",
        {"operand": 0},
    ),
    "a collected value": (
        loop("Relu(%s)", collected=": i64[3]"),
        "%all is declared i64[3] but the loop returns f32[...]",
        None,
    ),
    "an operand of a call": (
        "%z = Cast(%x, to=7)\n%y = @twice(%z)\nreturn %y",
        "@twice takes f32[N,4] as %a, not i64[N,4]",
        {"operand": 0},
    ),
    "a result of a call": (
        "%y: f32[N,7] = @twice(%x)\nreturn %y",
        "%y is declared f32[N,7] but @twice returns f32[N,4]",
        {"output": 0},
    ),
}


def text_of(body: str, outputs: str = "%y") -> str:
    lines = "\n".join(f"  {line}" for line in body.strip().split("\n"))
    return f"#nncdbg 1\nopset 18\n\ngraph @main({X}) -> ({outputs}) {{\n{lines}\n}}\n{CALLED}"


@pytest.mark.parametrize("name", GOOD)
def test_compiler_and_editor_infer_the_same_types(name: str) -> None:
    text = text_of(GOOD[name])
    found, error = of_compiler(parse(text))
    assert error is None
    analysis = analyzed(text)
    assert [p.message for p in analysis.problems if p.severity == "error"] == []
    inferred = editor_types(analysis)
    assert found[("main",)]["x"] is not None
    assert found == {path: types for path, types in inferred.items() if path[0] == "main"}


@pytest.mark.parametrize("name", BAD)
def test_compiler_and_editor_report_the_same_error(name: str) -> None:
    body, message, fields = BAD[name]
    text = text_of(body, "%y: f32[...]" if "output" in name and "declared" in name else "%y")
    _, found = of_compiler(parse(text))
    assert found is not None
    line, error = found
    assert error.message == message
    if fields is not None:
        assert (error.operand, error.attribute, error.output) == tuple(
            map(fields.get, ("operand", "attribute", "output"))
        )
    first = next(p for p in analyzed(text).problems if p.severity == "error")
    assert (first.message, first.span.line + 1 >= line) == (message, True)


def test_error_of_a_run_has_line_and_column() -> None:
    with pytest.raises(GraphError) as caught:
        nncdbg.Debugger(parse(text_of("%y = Relu(%x, slope=2)\nreturn %y")))
    assert (caught.value.line, caught.value.attribute) == (5, "slope")
    assert caught.value.column is not None


def test_editor_continues_after_an_error() -> None:
    text = text_of("%a = Relu(%x, slope=2)\n%b: i64[2] = Neg(%x)\n%y = Add(%b, %x)\nreturn %y")
    found = [(p.span.line, p.code) for p in analyzed(text).problems if p.severity == "error"]
    assert found == [(4, "attribute"), (5, "type"), (6, "type")]
