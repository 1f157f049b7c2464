"""The parser ends for any text, and raises only ParseError."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.errors import ParseError
from nncdbg.textual_repr import parse, print_program
from tests.laws import examples

GOLDEN = [
    path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[1] / "golden").glob("*.nnc"))
]
MINUTE = 60_000
"""Milliseconds within which the parser ends, on a busy machine."""

PIECES = st.sampled_from(
    [
        "%x",
        "@f",
        "graph @f() -> () {",
        "}",
        "} else {",
        "} -> (",
        "if %x {",
        "while (%s = %x) {",
        "next",
        "yield %x",
        "return",
    ]
    + [
        "=",
        "(",
        ")",
        "[",
        "]",
        ",",
        ":",
        "_",
        '"',
        "\\",
        "#",
        "##",
        "##!",
        "loc(",
        "data(",
        "f32[",
        "nan:0x",
        "-",
        "9" * 5000,
    ]
    + [
        "\n",
        "\r",
        " ",
        "\t",
        "\x00",
        "\ud800",
        "break unless %x",
        "collect[0]",
        "count",
        "times",
        "opset",
        "store",
        "b",
        ".",
    ]
)


def check(text: str) -> None:
    """Check that a text parses and prints to a fixed point, or fails with errors with a place and a hint."""
    try:
        program = parse(text)
    except ParseError as failure:
        check_errors(failure, text)
        return
    again = print_program(program)
    assert parse(again) == program
    assert print_program(parse(again)) == again


def check_errors(failure: ParseError, text: str) -> None:
    """Check that each error has a hint and a place inside the text."""
    assert len(failure.errors) > 0
    assert str(failure)
    count = text.count("\n") + 1
    for error in failure.errors:
        assert error.hint, error.message
        assert error.excerpt is not None
        assert 1 <= error.excerpt.line <= count
        assert 1 <= error.excerpt.column <= len(error.excerpt.text) + 1


@given(st.text())
@examples(100, deadline=MINUTE)
def test_any_text_parses_or_is_an_error(text: str) -> None:
    check(text)


@given(st.binary().map(lambda data: data.decode("latin-1")))
@examples(100, deadline=MINUTE)
def test_any_bytes_parse_or_are_an_error(text: str) -> None:
    check(text)


@given(st.lists(PIECES, max_size=30))
@examples(300, deadline=MINUTE)
def test_any_sequence_of_tokens_parses_or_is_an_error(pieces: list[str]) -> None:
    check("graph @f(%x) -> (%x) {\n" + "".join(pieces))


@given(st.sampled_from(GOLDEN), st.data())
@examples(300, deadline=MINUTE)
def test_a_changed_file_parses_or_is_an_error(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 20)))
        text = text[:start] + data.draw(st.just("") | PIECES | st.text(max_size=2)) + text[stop:]
    check(text)


@given(st.sampled_from(GOLDEN), st.data())
@examples(200, deadline=MINUTE)
def test_exchanged_and_missing_lines_parse_or_are_an_error(text: str, data: st.DataObject) -> None:
    lines = text.split("\n")
    one, other = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    lines[one], lines[other] = lines[other], lines[one]
    del lines[data.draw(st.integers(0, len(lines) - 1))]
    check("\n".join(lines))


@pytest.mark.parametrize(
    "text",
    [
        "graph @f(%x) -> (%x) {\n%y = Op(" + "[" * 100_000,
        "graph @f(%x) -> (%x) {\n%y = Op(" + "%x, " * 50_000,
        "graph @f(%x) -> (%x) {\n%y: f32[" + '"' * 50_001,
        "graph @f(%x) -> (%x) {\n%y: f32[" + "1," * 50_000,
        "graph @f(%x) -> (%x) {\n%y = " + "\\" * 50_001,
        "graph @f(%x) -> (%x) {\n" + "if %x {\n" * 5_000,
        "graph @f(%x) -> (%x) {\n" + "}\n" * 20_000,
        "graph @f(%x) -> (%x) {\n" + "%y = Op(%u)\n" * 2_000,
        "%y = Op(%u)\n" * 20_000,
    ],
    ids=range(9),
)
def test_extreme_texts_parse_fast(text: str) -> None:
    check(text)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_parser_restores_the_state_of_the_garbage_collector(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ParseError):
            parse("graph")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
