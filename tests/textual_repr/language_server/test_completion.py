"""Completions at a cursor, with the best matches first."""

from __future__ import annotations

import time

import pytest
from lsprotocol import types

from nncdbg.dtypes import NUMPY
from nncdbg.textual_repr.language_server.completion import completions, resolved
from nncdbg.textual_repr.language_server.document import Document, Place
from nncdbg.textual_repr.language_server.documentation import signature_help
from tests.textual_repr.language_server.edits import applied
from tests.textual_repr.language_server.marked import cursor

HEAD = """\
opset 18
store "w.onnx"
stream s4 "cuda:0"
stream s5 "cuda:1"
graph @main(%x: f32[2,3], %n: i64[], %c: bool[]) -> (%out: f32[2,3], %n: i64[]) {
  %a: f32[2,3] = Relu(%x)
  %"odd name": f32[2,3] = Neg(%a)
"""
TAIL = """
  %later = Relu(%x)
  return %out, %n
}
graph @layer(%t: f32[2,3], %k: i64[]) -> (%u: f32[2,3]) {
  %u = Relu(%t)
  return %u
}
"""
LOOP = "while @w (%s: f32[2,3] = %x, %j: i64[] = %n) {\n%go: bool[] = Less(%j, 3)\n"


def place(statements: str, head: str = HEAD, tail: str = TAIL) -> Place:
    text, line, column = cursor(head + statements + tail)
    document = Document("file:///a.nnc", text)
    return Place(document, document.analysis, line, column)


def offered(where: Place) -> list[str]:
    return [item.label for item in sorted(completions(where).items, key=lambda item: item.sort_text or "")]


# (statements, the first completions, names that are not completions)
TABLE = [
    ("%b = Add(‸", '%"odd name" %a %n %x', "%out %later Relu"),
    ("%b = Add(%a, ‸)", '%"odd name" %a %x %c %n', "%b"),
    ("%b = Add(%n, ‸)", "%n", ""),
    ("%b = Add(%n, %‸)", '%n %"odd name" %a %c %x', "axis"),
    ("%b = Add(%‸, %n)", "%n", ""),
    ("%b = Where(‸", "%c", ""),
    ("%b = Where(%c, %n, ‸", "%n", ""),
    ("%b = Clip(%a, ‸", '%"odd name" %a %x %c %n _', ""),
    ("%b = Softmax(%a, ‸)", "axis", "%a"),
    ("%b = Softmax(%a, ax‸is=1)", "axis", ""),
    ("%b = Softmax(%a, axis=‸)", "-1 0 1", "%a"),
    ("%b = Neg(%a) | s3->‸", "4 5", "wait record"),
    ("%b = Neg(%a) | s3->4 ‸", "host wait begin workspace record free", "4"),
    ("%b = Concat(%a, %x, ‸", '%"odd name" %a %x axis %c %n', ""),
    ("%b = Cast(%a, ‸", "to", ""),
    ("%b = Cast(%a, to=‸", " ".join(map(str, range(1, 10))), "%a"),
    ("%b = Conv(%a, %x, pads=[1,1], ‸", "group auto_pad strides", "pads %a"),
    ("%b = Add(%‸, %n, axis=1)", "%n", "axis"),
    ("%b = Softmax(%‸, axis=1)", '%"odd name" %a %x', "axis"),
    ('%b = Conv(%a, %x, auto_pad="‸")', '"NOTSET" "SAME_UPPER" "SAME_LOWER" "VALID"', '"i"'),
    ("%b = ReduceMax(%a, keepdims=‸", "1 0", ""),
    ("%b = @layer(‸", '%"odd name" %a %x %c %n', ""),
    ("%b = @layer(%a, ‸", "%n", "axis"),
    ("%b = @‸", "@layer", "@main Relu"),
    ("%b = ‸", "@layer data", "%a"),
    ("%b = Rel‸", "@layer", "%a"),
    ("%b: ‸", " ".join(list(NUMPY)[:4]), "Relu %a"),
    ("%b: f‸ = Relu(%x)", "f32 u8", "Relu"),
    ("%b: f32[‸", "", "Relu %a"),
    ("%b = Relu(%a) ‸", "loc", "%a"),
    ("%‸", "", "%a"),
    ("# %‸", "", "%a"),
    ("%b = Relu(%a) # ‸", "", "%a loc"),
    ('%w: f32[2] = data("‸")', "", "%a"),
    ("if ‸", "%c", "%out"),
    ("while (%s: i64[] = ‸", "%n", ""),
    ("while (%s: f32[2,3] = %x) ‸", "count times", "%a"),
    ("while (%s: f32[2,3] = %x) times ‸", "%n", ""),
    ("return ‸", "%out", "%x"),
    ("return %out, ‸", "%n", "%out"),
    (f"{LOOP}break ‸", "unless", "%a"),
    (f"{LOOP}break unless ‸", "%go %c", "%later"),
    (f"{LOOP}next ‸", "%s %j", "%a"),
    (f"{LOOP}ne‸xt %s = %s", "@layer next if while", "%a"),
    (f"{LOOP}next %s = %a, ‸", "%j", "%s"),
    (f"{LOOP}next %s = %a, %j = ‸", "%j %n", ""),
    (f"{LOOP}next %s = %a, %j = %j collect ‸", "%go %j %s", ""),
    (f"{LOOP}next %s = %a, %j = %j collect %s, %a\n}} -> (%q = ‸)", "%s %j collect[0] collect[1]", "%a"),
    (f"{LOOP}‸", "@layer next if while", ""),
    ("if %c {\nyield %x\n} ‸", "else", "%a"),
]


@pytest.mark.parametrize(("statements", "first", "never"), TABLE, ids=[row[0][-40:] for row in TABLE])
def test_matching_names_are_offered_first(statements: str, first: str, never: str) -> None:
    found = offered(place(statements))
    text = " ".join(found)
    assert text.startswith(first) if first else found == []
    assert not set(never.split()) & set(found)


def test_keywords_are_offered_outside_of_graphs() -> None:
    assert offered(place("‸\n", "")) == ["graph", "opset", "store", "prefix", "stream"]


ACCEPTED = [
    ("%b = Add(‸", '%"odd name"', '%b = Add(%"odd name"'),
    ('%b = Add(%"odd‸', '%"odd name"', '%b = Add(%"odd name"'),
    ("%b = Add(%o‸, %x)", '%"odd name"', '%b = Add(%"odd name", %x)'),
    ("%b = Re‸lu(%x)", "Neg", "%b = Neg(%x)"),
    ("%b = Softmax(%x, a‸)", "axis", "%b = Softmax(%x, axis=)"),
    ("%b = Softmax(%x, a‸x=1)", "axis", "%b = Softmax(%x, axis=1)"),
    ('%b = Conv(%a, %x, auto_pad="S‸")', '"VALID"', '%b = Conv(%a, %x, auto_pad="VALID")'),
    ('%b = Add(%"odd n‸ame", %x)', '%"odd name"', '%b = Add(%"odd name", %x)'),
    ("%b = @‸(%x)", "@layer", "%b = @layer(%x)"),
]


@pytest.mark.parametrize(("before", "label", "after"), ACCEPTED)
def test_an_accepted_item_replaces_the_word(before: str, label: str, after: str) -> None:
    where = place(before)
    item = next(item for item in completions(where).items if item.label == label)
    assert isinstance(item.text_edit, types.TextEdit)
    text = applied(where.document.text, [item.text_edit])
    assert text.split("\n")[where.line] == after


def test_ops_with_snippets_have_their_parentheses() -> None:
    items = {item.label: item for item in completions(place("%b = ‸"), snippets=True).items}
    assert items["Relu"].text_edit.new_text == "Relu($0)"  # type: ignore[union-attr]
    assert items["Relu"].detail == "(X: T) -> (Y: T)"


def test_resolve_returns_the_documentation() -> None:
    item = next(item for item in completions(place("%b = Conv‸")).items if item.label == "Conv")
    assert item.documentation is None
    text = resolved(item).documentation
    assert isinstance(text, types.MarkupContent)
    assert "convolution" in text.value
    attribute = next(i for i in completions(place("Conv(%x, %x, ‸")).items if i.label == "group")
    text = resolved(attribute).documentation
    assert isinstance(text, types.MarkupContent)
    assert "number of groups" in text.value


def test_completions_of_ten_thousand_values_are_limited_and_fast() -> None:
    lines = "\n".join(f"  %v{i}: f32[2,3] = Add(%x, %x)" for i in range(10_000))
    where = place(f"{lines}\n  %b = Add(%x, %v‸")
    completions(where)  # the ops' schemas are read once
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        found = completions(where)
        seconds.append(time.perf_counter() - start)
    assert found.is_incomplete
    assert len(found.items) == 200
    assert found.items[0].label == "%v9999"
    assert min(seconds) < 1, (
        "an analysis of the whole document would take longer; the bar is in the benchmarks"
    )


# (statements, the signature, the active parameter)
SIGNATURES = [
    ("%b = Add(‸", "Add(A: T, B: T) -> (C: T)", "A: T"),
    ("%b = Add(%a, ‸)", "Add(A: T, B: T) -> (C: T)", "B: T"),
    ("%b = Concat(%a, %x, %a‸)", "Concat(inputs...: T, axis: INT) -> (concat_result: T)", "inputs...: T"),
    ("%b = Softmax(%a, axis=‸)", "Softmax(input: T, axis=-1) -> (output: T)", "axis=-1"),
    ("%b = @layer(%a, ‸", "@layer(%t: f32[2,3], %k: i64[]) -> (%u: f32[2,3])", "%k: i64[]"),
    ("%b = Clip(%a, [1, 2‸], %a)", "Clip(input: T, min?: T, max?: T) -> (output: T)", "min?: T"),
]


@pytest.mark.parametrize(("statement", "label", "active"), SIGNATURES, ids=[row[0] for row in SIGNATURES])
def test_the_argument_under_the_cursor_is_shown(statement: str, label: str, active: str) -> None:
    found = signature_help(place(statement))
    assert found is not None
    (shown,) = found.signatures
    assert shown.label == label
    assert shown.parameters is not None
    assert found.active_parameter is not None
    span = shown.parameters[found.active_parameter].label
    assert not isinstance(span, str)
    assert label[slice(*span)] == active


@pytest.mark.parametrize("statement", ["%b = Add(%a, %x)‸", "‸%b = Add(%a)", "%b = Frob(‸)", "Relu(%a) # (‸"])
def test_there_is_no_signature_outside_of_operands(statement: str) -> None:
    assert signature_help(place(statement)) is None


def test_completion_while_typing_uses_the_previous_analysis() -> None:
    where = place("%b: f32[2,3] = Neg(%a)\n%d = Neg(‸")
    document, line, column = where.document, where.line, where.column
    before = document.analysis
    document.change([((line, column, line, column), "%")])
    assert document.around(line) is before
    document.change([((line, column + 1, line, column + 1), "b")])
    assert document.around(line) is before
    found = completions(Place(document, before, line, column + 2))
    assert [(i.label, i.text_edit.range.start.character) for i in found.items] == [("%b", column)]  # type: ignore[union-attr]
    document.change([((line - 1, 0, line - 1, 0), " ")])
    assert document.around(line) is document.analysis is not before


@pytest.mark.parametrize("change", [((5, 0, 5, 0), "\n"), ((4, 0, 5, 0), ""), (None, "graph @a() -> () {")])
def test_other_changes_analyze_the_document_again(
    change: tuple[tuple[int, int, int, int] | None, str],
) -> None:
    document = place("%b = Neg(‸").document
    before = document.analysis
    document.change([change])
    assert document.around(0) is not before
    assert document.around(0) is document.analysis


def test_names_for_a_breakpoint_condition_are_offered_before_a_statement() -> None:
    labels = offered(place("‸  %b = Add(%a, %x)"))
    assert set(labels[:5]) == {'%"odd name"', "%a", "%x", "%n", "%c"}
    assert 'any(isnan(%"odd name"))' in labels
    assert {"$iter", "max(", "isnan("} <= set(labels)
    assert "%b" not in labels
    assert "Relu" not in labels
    items = completions(place("‸  %b = Add(%a, %x)")).items
    assert all(item.filter_text == item.label for item in items), "the filter includes the typed sigil"
