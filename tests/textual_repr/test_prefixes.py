"""Prefixes shared by names: exact round trips, the choice of prefixes, and errors."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.ir.records import Graph, Node, Program, Value
from nncdbg.text.lexemes import Prefixes, name_text
from nncdbg.text.listing import Listing
from nncdbg.textual_repr import listing, parse, print_program
from nncdbg.textual_repr.printer import chosen_prefixes
from tests.laws import examples
from tests.textual_repr.strategies import names, prefix_texts, programs
from tests.textual_repr.test_errors import errors_of
from tests.textual_repr.test_identity import GOLDEN, SLOW

SHARED = Path(os.environ.get("NNCDBG_SHARED", Path(__file__).parents[3] / "shared")) / "models"
EXPORTED = Path(__file__).parents[1] / "models" / "exported"
MODELS = sorted([*EXPORTED.glob("*.onnx"), *SHARED.glob("*.onnx")])
"""Includes the models of the shared folder if that exists."""


def chain(*names: str) -> Program:
    """Return a program in which each value is the Relu of the previous one."""
    nodes = tuple(Node("Relu", (a,), (Value(b),)) for a, b in zip(names, names[1:], strict=False))
    return Program({"main": Graph("main", (Value(names[0]),), (Value(names[-1]),), nodes)}, "main")


def without_prefixes(program: Program) -> Program:
    return replace(program, prefixes={})


@given(programs())
@examples(40)
def test_full_lines_equal_the_text_without_prefixes(program: Program) -> None:
    def statements(shown: Listing) -> list[str]:
        """Return the lines after the head, without blanks, which a line end may replace."""
        first = shown.lines.index("")
        lines = enumerate(shown.full_lines()[first:], first + 1)
        return ["".join(line.split()) for number, line in lines if number not in shown.wrapped]

    assert statements(listing(program)) == statements(listing(without_prefixes(program)))


@given(st.lists(names | prefix_texts.flatmap(lambda text: names.map(text.__add__)), unique=True, min_size=2))
@SLOW
def test_full_names_read_back_and_the_text_is_a_fixed_point(given_names: list[str]) -> None:
    program = replace(chain(*given_names), prefixes={"p": "a", "a": "/conv1/", "b.c": "p::", "d": '"'})
    text = print_program(program)
    again = parse(text)
    assert again == program
    assert again.prefixes == program.prefixes
    assert print_program(again) == text


@given(st.dictionaries(st.sampled_from("abcdef"), st.text("xy/", min_size=1, max_size=4)), st.text("xy/"))
def test_a_name_uses_its_longest_prefix(declared: dict[str, str], name: str) -> None:
    written = Prefixes(declared).spell(name)
    having = [text for text in declared.values() if name.startswith(text) and name != text]
    if having:
        label, _, rest = written.partition("::")
        assert len(declared[label]) == max(map(len, having))
        assert declared[label] + rest == name
    else:
        assert written == name_text(name)


def test_prefixes_do_not_affect_equality_of_programs() -> None:
    names = [f"/model/decoder/layers.0/self_attn/Relu_{i}_output_0" for i in range(9)]
    assert parse(print_program(chain(*names))) == chain(*names)


@pytest.mark.parametrize("path", [*MODELS, *GOLDEN], ids=lambda path: path.stem)
def test_a_model_keeps_its_names(path: Path) -> None:
    program = replace(nncdbg.parse(path.read_text()) if path in GOLDEN else nncdbg.load(path), prefixes=None)
    text = print_program(program)
    assert parse(text).graphs == program.graphs
    assert print_program(parse(text)) == text


def test_declared_prefixes_are_kept() -> None:
    text = (
        'prefix one "/a/"\nprefix unused "/b/"\n\ngraph @main(%one::x) -> (%one::x) {\n  return %one::x\n}\n'
    )
    assert print_program(parse(text)) == "#nncdbg 1\n" + text
    assert parse(text).prefixes == {"one": "/a/", "unused": "/b/"}
    plain = text.partition("\n\n")[2].replace("one::", "/a/")
    assert print_program(parse(plain)) == "#nncdbg 1\n\n" + plain


# -- the choice ------------------------------------------------------------------------------------


def test_short_names_need_no_prefix() -> None:
    assert chosen_prefixes(chain(*(f"layer/Relu_{i}" for i in range(500)))) == {}


def test_long_names_get_the_most_effective_prefixes() -> None:
    found = chosen_prefixes(
        chain(
            *(f"/model/decoder/{part}/Relu_{i}_output_0" for part in ("rnn", "attention") for i in range(9))
        )
    )
    assert found == {"attention": "/model/decoder/attention/", "rnn": "/model/decoder/rnn/"}


def test_labels_of_equal_components_are_distinct() -> None:
    names = [f"branch_{b}_of_the_model/decoder/rnn/Relu_{i}_output_0" for b in "ab" for i in range(9)]
    assert chosen_prefixes(chain(*names)) == {
        "a.rnn": "branch_a_of_the_model/decoder/rnn/",
        "b.rnn": "branch_b_of_the_model/decoder/rnn/",
    }


@given(st.lists(st.text("ab/._:1", min_size=20, max_size=60), unique=True, min_size=8, max_size=40))
def test_chosen_prefixes_read_back(names: list[str]) -> None:
    program = chain(*names)
    assert parse(print_program(program)) == program


# -- errors ----------------------------------------------------------------------------------------

BODY = "graph @main(%x) -> (%x) {\nreturn %x\n}\n"
ERRORS = [
    ('prefix ⟦a⟧ "/b/"', "the prefix a is declared twice", 'it is "/a/"'),
    ('prefix b ⟦""⟧', "the prefix is empty", "a prefix looks like"),
    ('prefix b ⟦"/b⟧', "the string is not closed", 'end it with "'),
    ('prefix b "⟦\\q⟧"', "unknown escape \\q in a string", "use the escapes"),
    ("prefix b ⟦/b/⟧", "expected a string, found '/b/'", 'write "/b/"'),
    ('prefix ⟦"b"⟧ "/b/"', "expected a label", "a prefix looks like"),
    ('prefix b "/b/" ⟦c⟧', "expected the end of the statement, found 'c'", "one statement per line"),
]


def marked(line: str) -> tuple[str, int, int]:
    """Return the line without its marks, and the column and width of the marked text."""
    start, end = line.index("⟦"), line.index("⟧") - 1
    return line.replace("⟦", "").replace("⟧", ""), start + 1, end - start


@pytest.mark.parametrize(("line", "message", "hint"), ERRORS)
def test_an_invalid_declaration_is_reported_once(line: str, message: str, hint: str) -> None:
    plain, column, width = marked(line)
    uses = "graph @main(%a::x) -> (%a::x) {\n%b::y = Relu(%a::x)\nreturn %a::x\n}\n"
    (error,) = errors_of(f'prefix a "/a/"\n{plain}\n{uses if plain.startswith("prefix b") else BODY}')
    assert error.message.startswith(message)
    assert hint in (error.hint or "")
    assert error.excerpt is not None
    assert (error.excerpt.line, error.excerpt.column, error.excerpt.width) == (2, column, width)


USES = [
    ("%y = Relu(%⟦c⟧::x)", "the prefix c is not declared", 'prefix c "..."'),
    ("%⟦c⟧::y = Relu(%a::x)", "the prefix c is not declared", "before the first graph"),
    ("%y = Relu(%a::x) loc(node ⟦c⟧::n)", "the prefix c is not declared", "before the first graph"),
    ("%y = data(⟦c⟧::n)", "the prefix c is not declared", "before the first graph"),
    ("%y = Relu(%a::⟦)⟧", "expected a name after a::, found ')'", 'a::"conv:0"'),
    ('%y = Relu(%a::"⟦\\q⟧")', "unknown escape \\q in a string", "use the escapes"),
    ("%y = Relu(⟦%a::z⟧)", "%/a/z is not defined", ""),
    ("⟦%/a/x⟧ = Relu(%a::x)", "%/a/x is defined twice", "line 2"),
    ('⟦prefix⟧ c "/c/"', "prefix must be before the first graph", "to the top"),
]


@pytest.mark.parametrize(("line", "message", "hint"), USES)
def test_an_invalid_use_is_underlined(line: str, message: str, hint: str) -> None:
    plain, column, width = marked(line)
    error = errors_of(f'prefix a "/a/"\ngraph @main(%a::x) -> (%a::x) {{\n{plain}\nreturn %a::x\n}}\n')[0]
    assert error.message == message
    assert hint in (error.hint or "")
    assert error.excerpt is not None
    assert (error.excerpt.line, error.excerpt.column, error.excerpt.width) == (3, column, width)


def test_many_prefixes_take_linear_time() -> None:
    declared = {f"p{i}": "/" + "a/" * (i % 300) + str(i) for i in range(3_000)}
    program = replace(chain(*(f"/{'a/' * 299}{i}/x" for i in range(1_000))), prefixes=declared)
    assert parse(print_program(program)) == program
