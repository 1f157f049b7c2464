"""Printing and parsing are exact inverses, including line numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given

from nncdbg.errors import ParseError
from nncdbg.ir.records import Graph, Node, Program, Value
from nncdbg.textual_repr import listing, parse, parse_with_listing, parser, print_program
from tests.laws import examples
from tests.textual_repr.strategies import programs

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.nnc"))
SLOW = examples(200)


@contextmanager
def recursion_limit(limit: int) -> Iterator[None]:
    """Raise the recursion limit for the comparison of nested records; the parser does not recurse."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@given(programs())
@SLOW
def test_parse_inverts_print(program: Program) -> None:
    text = print_program(program)
    again = parse(text)
    assert again == program
    assert print_program(again) == text


@given(programs())
@examples(60)
def test_listing_agrees_with_the_text(program: Program) -> None:
    text = print_program(program)
    printed = listing(program)
    _, read = parse_with_listing(text)
    assert "\n".join((*printed.lines, "")) == text
    assert (read.statements, read.headers) == (printed.statements, printed.headers)
    hidden = listing(program, locations=False)
    assert (hidden.statements, hidden.headers) == (printed.statements, printed.headers)
    assert len(hidden.lines) == len(printed.lines)
    assert print_program(parse(print_program(program, locations=False)), locations=False) == print_program(
        program, locations=False
    )


@given(programs())
@examples(60)
def test_the_fast_path_agrees_with_the_full_parser(program: Program) -> None:
    text = print_program(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "read_plain", lambda lines, index, *others: index)
        program_slow, listing_slow = parse_with_listing(text)
    assert parse_with_listing(text) == (program_slow, listing_slow)


@pytest.mark.parametrize(
    "line",
    [
        '%y: f32[2] = Conv(%x, %w, pads=[1,1], k=2.5) loc("net.py":12, node "a")',
        "%y = Conv(%x, %w, _, pads=[1,1])",
        "%y = Add(%x, 1, axis=0)",
        '%y = Relu(%x) loc(node "n")',
        "  %y: bf16[N,?] = a.b(%x)",
        '%y = Conv(%x, %w, pads=[1,1], k=2.5) : f32[2] loc("net.py":12, node "a")',
        "%y = a.b(%x) : bf16[N,?]",
        "%y: f32[2] = a.b(%x) : f32[2]",
        "%y = Relu(%x) : f32[2], f32[2]",
        "%y = Relu(%x) : f32[;]",
        "%y = data(%x)",
        "%y = Relu(%x, a=1, %w)",
        "%y = Relu(%x, a=1, a=2)",
        "%y = Relu(%x, %y)",
        "%x = Relu(%x)",
        "%y: f32[;] = Relu(%x)",
    ],
)
def test_the_fast_path_agrees_with_the_full_parser_on_a_line(line: str) -> None:
    text = f"graph @f(%x, %w) -> (%x) {{\n{line}\nreturn %x\n}}"

    def outcome() -> object:
        try:
            return parse_with_listing(text)
        except ParseError as failure:
            return str(failure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "read_plain", lambda lines, index, *others: index)
        slow = outcome()
    assert outcome() == slow


def test_golden_files_exist() -> None:
    assert len(GOLDEN) >= 8


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_is_canonical(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    program, from_text = parse_with_listing(text, file=str(path))
    assert print_program(program) == text
    assert parse(print_program(program)) == program
    printed = listing(program)
    assert (*printed.lines, "") == from_text.lines
    assert (printed.statements, printed.headers) == (from_text.statements, from_text.headers)


def _nested(depth: int) -> Program:
    """Return a program with `depth` nested blocks, loops and branches in turn."""
    node = Node("Relu", ("x",), (Value(f"y{depth}"),))
    for level in reversed(range(depth)):
        inner = f"y{level + 1}"
        if level % 2:
            branch = Graph(f"b{level}", (), (Value(inner),), (node,))
            other = Graph("", (), (Value("x"),))
            node = Node("if", ("c",), (Value(f"y{level}"),), {}, (branch, other))
        else:
            body = Graph(f"w{level}", (Value(""), Value(f"s{level}")), (Value(inner),), (node,))
            node = Node("while", (None, "x"), (Value(f"y{level}"),), {}, (body,))
    main = Graph("main", (Value("x"), Value("c")), (Value("y0"),), (node,))
    return Program({"main": main}, "main")


@pytest.mark.parametrize("depth", [1, 200, 900])
def test_deep_blocks_print_and_parse_without_recursion(depth: int) -> None:
    program = _nested(depth)
    text = print_program(program)
    again = parse(text)
    assert print_program(again) == text
    with recursion_limit(50_000):
        assert again == program


def test_crlf_and_a_byte_order_mark_are_accepted() -> None:
    text = GOLDEN[0].read_text(encoding="utf-8")
    assert parse("\ufeff" + text.replace("\n", "\r\n")) == parse(text)


def test_comments_belong_to_the_following_statement() -> None:
    text = (
        "## a graph\n## of two lines\ngraph @main(%x) -> (%y) {\n  # lost\n  ## a statement\n"
        "  %y = Relu(%x)  # lost too\n  return %y\n}\n"
    )
    graph = parse(text).graphs["main"]
    assert graph.comment == "a graph\nof two lines"
    assert graph.nodes[0].comment == "a statement"


def test_the_sample_of_the_manual_is_canonical() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "TEXT.md").read_text(encoding="utf-8")
    sample = manual.split("```\n")[1]
    assert print_program(parse(sample)) == sample
