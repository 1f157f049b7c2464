"""Every error in a text is reported once, underlined, and with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from nncdbg.errors import Excerpt, NncdbgError, ParseError
from nncdbg.textual_repr import parse

FOLDER = Path(__file__).with_name("errors")


def errors_of(text: str) -> tuple[NncdbgError, ...]:
    with pytest.raises(ParseError) as caught:
        parse(text)
    return caught.value.errors


def body(*lines: str) -> str:
    """Return a graph with an input %x, a condition %c, and the statements `lines`."""
    return "\n".join(["graph @main(%x: f32[2], %c: bool[]) -> (%x) {", *lines, "return %x", "}"])


# (the statements, the message, a part of the hint); ⟦ ⟧ enclose the underlined text
TABLE = [
    ("%y = Relu(⟦%xx⟧)", "%xx is not defined", "did you mean %x?"),
    ('%y = Relu(⟦%"a b"⟧)', '%"a b" is not defined', "define it above"),
    ("⟦%x⟧ = Relu(%x)", "%x is defined twice", "defined at line 1"),
    ("%y, ⟦%y⟧ = Split(%x)", "%y is defined twice", "defined at line 2"),
    ("%y = Relu(⟦%z⟧)\n%z = Relu(%x)", "%z is used before it is defined at line 3", "move its definition up"),
    ("%y = Relu(⟦%y⟧)", "cycle: %y is used before it is defined at line 2", "%y needs %y"),
    (
        "%y = Relu(⟦%z⟧)\n%u = Relu(%y)\n%z = Relu(%u)",
        "cycle: %z is used before it is defined at line 4",
        "%y needs %z needs %u needs %y",
    ),
    (
        "if %c {\nyield ⟦%z⟧\n} else {\nyield %x\n} -> (%y)\n%z = Relu(%y)",
        "cycle: %z is used before it is defined at line 7",
        "%y needs %z needs %y",
    ),
    (
        "if %c {\n%i = Relu(%x)\nyield\n} else {\nyield\n}\n%y = Relu(⟦%i⟧)",
        "%i is not visible here",
        "line 3",
    ),
    (
        "if %c {\n%i = Relu(%x)\nyield\n} else {\n%j = Relu(⟦%i⟧)\nyield\n}",
        "%i is not visible here",
        "line 3",
    ),
    ("if %c {\n⟦%x⟧ = Relu(%c)\nyield\n} else {\nyield\n}", "%x hides a value of the same name", "line 1"),
    ("%y = ⟦@nowhere⟧(%x)", "no graph @nowhere", "define it"),
    ("%y = ⟦@mian⟧(%x, %c)", "no graph @mian", "did you mean @main?"),
    ("%y = ⟦@main⟧(%x)", "@main has 2 inputs, not 1", "write one operand for each input"),
    ("⟦@main⟧(%x, %c)", "@main has 1 output, not 0", "for an unused"),
    ("%y, %z = ⟦@main⟧(%x, %c)", "@main has 1 output, not 2", "%x, saved %s"),
    ("while (%s = %x) {\n⟦next⟧\n}", "next omits %s", "every carried value"),
    ("while (%s = %x) {\nnext %s = %s, ⟦%t⟧ = %s\n}", "%t is not carried by this loop", "carries %s"),
    ("while (%s = %x) {\nnext %s = %s, ⟦%s⟧ = %x\n}", "%s is assigned twice", "carries %s"),
    ("while (%s = %x) {\nnext %s = %s\n} -> (%y = ⟦%t⟧)", "%t is not carried by this loop", "it carries %s"),
    (
        "while (%s = %x) {\nnext %s = %s\n} -> (%y = ⟦collect[0]⟧)",
        "collect[0] does not exist",
        "collects 0 values",
    ),
    (
        "while (%s = %x) {\nnext %s = %s\n} -> (%y = %s, %z = ⟦%s⟧)",
        "this result is used twice",
        "existing name",
    ),
    (
        "if %c {\nyield %x\n} else {\n⟦yield⟧\n} -> (%y)",
        "the number of results differs: 1 in the first branch, 0 in this one",
        "see line 3",
    ),
    (
        "if %c {\nyield %x\n} else {\nyield %x\n} -> (⟦%y, %z⟧)",
        "2 results where the branches yield 1",
        "for an unused",
    ),
    ("⟦break unless %c⟧", "break is not allowed in a graph", "top level of a loop's body"),
    (
        "while () {\nif %c {\n⟦break unless %c⟧\nyield\n} else {\nyield\n}\nnext\n}",
        "break is not allowed in a branch",
        "top level",
    ),
    ("while () {\n⟦yield⟧\n}", "yield in a loop's body", "ends in next"),
    ("⟦next⟧", "next in a graph", "ends in return"),
    ("while () {\n⟦}⟧", "the block has no next", "ends in next"),
    ("if %c {\nyield\n⟦}⟧", "`if` without `else`", "} else {"),
    ("while () {\nnext\n⟦} else {⟧\n}", "`else` without `if`", "a loop's body"),
    ("%c2: f32[2] = ⟦[1, 2, 3]⟧", "the data has the sizes [3]", "f32[2]"),
    ("%c2: f32[2,2] = ⟦[[1, 2], [3]]⟧", "the rows of the array differ in length", "[1, 2]"),
    ("%c2: f32[2] = ⟦[1, [2]]⟧", "numbers and lists are mixed", "same depth"),
    ("%c2: i8[] = ⟦300⟧", "300 is out of range for i8", "-128 to 127"),
    ("%c2: u4[1] = ⟦[-1]⟧", "-1 is out of range for u4", "0 to 15"),
    ("%c2: i64[] = ⟦1.5⟧", "1.5 is not an integer", "i64"),
    ("%c2: bool[] = ⟦1⟧", "1 is not true or false", "bool"),
    ("%c2: f32[] = ⟦1e39⟧", "f32 cannot represent 1e+39", "wider"),
    ("%c2: f4e2m1fn[] = ⟦8.0⟧", "f4e2m1fn cannot represent 8.0", "wider"),
    ("%c2: f8e4m3fn[] = ⟦inf⟧", "f8e4m3fn cannot represent inf", "wider"),
    ("%c2: f32[] = ⟦nan:0x1⟧", "nan:0x1 is not a NaN of f32", "bits"),
    ("%c2: str[] = ⟦5⟧", "5 is not a string", 'write "5"'),
    ('%c2: f32[] = ⟦"5"⟧', '"5" is not a float', "1.5"),
    ("%c2 = ⟦5⟧", "an inline constant needs its type", "%c2: i64[]"),
    ("%y: ⟦f31⟧[2] = Relu(%x)", "no element type f31", "did you mean f"),
    ("%y: f32[⟦2;3⟧] = Relu(%x)", "not a size", "? or a quoted symbol"),
    ("%y = Relu(%x⟦⟧", "expected ',' or ')', found the end of the line", "write ) at"),
    ("%y = Relu(%x) ⟦extra⟧", "expected the end of the statement, found 'extra'", "one statement"),
    ("%y = Relu(a=1, ⟦%x⟧)", "an operand after an attribute, found '%x'", "write operands before"),
    ("%y = Relu(%x, a=1, ⟦a⟧=2)", "the attribute a occurs twice", "remove one"),
    (
        "%y = Relu(%x, a=⟦1e99⟧)",
        "the number is out of range for f32, the type of float attributes",
        "1e99:f64",
    ),
    ("%y = Relu(⟦0.5:f64⟧)", "an operand gets its type from its position", "only the number"),
    ('%"a⟦\\q⟧" = Relu(%x)', "unknown escape \\q in a string", "\\xNN"),
    ('%y = Relu("a⟦\\q⟧b")', "unknown escape \\q in a string", "\\xNN"),
    ('%y = Relu(⟦"abc)⟧', "the string is not closed", 'end it with "'),
    ('%y = ⟦"if"⟧(%x)', "an op cannot be named if", "without quotes"),
    ("%y = ⟦nan⟧(%x)", "nan is a keyword", '"nan"(...)'),
    ("%y = ⟦%x⟧", "expected an op, a call or a literal, found '%x'", "Identity(%x)"),
    ("⟦hello⟧ world", "not a statement, found 'hello'", "a statement looks like"),
    ("%y ⟦Relu⟧(%x)", "expected '=', found 'Relu'", "write = after"),
    ("%y = Relu(%x) loc(⟦12⟧)", "expected a string, found '12'", 'loc("net.py":12'),
    ("⟦opset⟧ 18", "opset must be before the first graph", "to the top"),
]


@pytest.mark.parametrize(("marked", "message", "hint"), TABLE, ids=[row[0][:40] for row in TABLE])
def test_an_error_is_reported_once_and_underlined(marked: str, message: str, hint: str) -> None:
    before, _, rest = marked.partition("⟦")
    underlined = rest.partition("⟧")[0]
    (error,) = errors_of(body(marked.replace("⟦", "").replace("⟧", "")))
    excerpt = error.excerpt
    assert error.message == message
    assert hint in (error.hint or "")
    assert isinstance(excerpt, Excerpt)
    assert excerpt.line == 2 + before.count("\n")
    assert excerpt.column == 1 + len(before.rpartition("\n")[2])
    assert excerpt.width == max(1, len(underlined))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text has no graph"),
        ("#nncdbg 2\n", "version 2 of the text is not supported"),
        ("%y = Relu(%x)", "a statement outside a graph"),
        ("graph @f() -> () {\nreturn\n", "this block is not closed"),
        ("graph @f() -> () {\n}\n", "the block has no return"),
        ("graph @f() -> () {\nreturn\n}\n}", "unmatched closing brace"),
        ("graph @f() -> () {\nreturn\n}\ngraph @f() -> () {\nreturn\n}", "two graphs are named @f"),
        ("graph @f(%x) -> (%x) {\nreturn\n}", "the graph has 1 output, but return has 0"),
        ("graph @f(%x, %y) -> (%x) {\nreturn %y\n}", "return has %y where the graph's output is %x"),
        ("graph @f() -> () {\nreturn\nPrint()\n}", "this line is never reached"),
        ("opset 1\nopset 2\ngraph @f() -> () {\nreturn\n}", "this domain has two opset lines"),
        ("graph f() -> () {\nreturn\n}", "expected '@', found 'f'"),
    ],
)
def test_an_error_of_the_whole_text_is_reported(text: str, message: str) -> None:
    (error,) = errors_of(text)
    assert error.message == message
    assert error.hint
    assert error.excerpt is not None


def test_one_report_has_ten_errors_of_a_file() -> None:
    text = (FOLDER / "ten.nnc").read_text()
    with pytest.raises(ParseError) as caught:
        parse(text, file="ten.nnc")
    assert len(caught.value.errors) == 10
    assert f"{caught.value}\n" == (FOLDER / "ten.txt").read_text()


def test_a_broken_header_causes_no_further_errors() -> None:
    text = "graph @f(%x f32[2]) -> (%y) {\n%y = Relu(%k)\nreturn %y\n}\ngraph @g() -> () {\n@f()\nreturn\n}"
    (error,) = errors_of(text)
    assert error.message.startswith("expected ':'")


def test_the_exception_of_a_single_error_has_its_message_and_excerpt() -> None:
    with pytest.raises(ParseError, match="%u is not defined") as caught:
        parse(body("%y = Relu(%u)"), file="net.nnc")
    assert "at net.nnc:2:11" in str(caught.value)
    assert caught.value.excerpt == caught.value.errors[0].excerpt
