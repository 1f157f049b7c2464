"""Parsing and printing of types: tensors, and sequences and optionals of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.errors import ParseError
from nncdbg.ir.records import OptionalType, SequenceType, TensorType, Type
from nncdbg.text.lexemes import Flaw
from nncdbg.text.types import parse_type, print_type, type_end
from nncdbg.textual_repr.parser import parse

TENSORS: st.SearchStrategy[Type] = st.builds(
    TensorType,
    st.sampled_from(["f32", "i64", "str"]),
    st.none() | st.tuples() | st.tuples(st.integers(0, 9), st.sampled_from(["N", "a b", ")", None])),
)
TYPES = st.recursive(
    TENSORS, lambda inner: st.builds(SequenceType, inner) | st.builds(OptionalType, inner), max_leaves=3
)


@given(TYPES)
def test_a_type_reads_back(type_: Type) -> None:
    text = print_type(type_)
    assert parse_type(text) == type_
    assert type_end(f"x: {text}) -> (", 3) == 3 + len(text)


@pytest.mark.parametrize("text", ["seq( f32[2] )", "opt(seq(f32[]) )"])
def test_blanks_are_ignored(text: str) -> None:
    assert parse_type(text) == parse_type(text.replace(" ", ""))


@pytest.mark.parametrize(
    "text", ["seq(f32[2]", "seq()", "seq(f32)", "seq(foo[2])", "list(f32[2])", "seq(f32[2]))"]
)
def test_an_invalid_type_is_an_error(text: str) -> None:
    with pytest.raises(Flaw):
        parse_type(text)


def test_a_program_with_sequences_and_optionals_reads_back() -> None:
    text = """#nncdbg 1
opset 21

graph @main(%s: seq(f32[2]), %o: opt(seq(i64[]))) -> (%y: f32[2], %t: seq(f32[2])) {
  %e = Optional(type=type(f32[2])) : opt(f32[2])
  %y = SequenceAt(%s, 0) : f32[2]
  %t = SequenceInsert(%s, %y) : seq(f32[2])
  return %y, %t
}
"""
    program = parse(text)
    assert program.graphs["main"].inputs[1].type == OptionalType(SequenceType(TensorType("i64", ())))
    assert program.graphs["main"].nodes[0].attributes["type"] == TensorType("f32", (2,))
    assert str(program) == text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%c: seq(f32[2]) = [1.0, 2.0]", "only a tensor"),
        ("%c = SequenceEmpty() : seq(foo[2])", "no element type foo"),
        ("%c: seq(f32[2] = SequenceEmpty()", "expected a type"),
    ],
)
def test_errors_in_types_are_reported(line: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(f"graph @main() -> (%c) {{\n  {line}\n  return %c\n}}\n")
