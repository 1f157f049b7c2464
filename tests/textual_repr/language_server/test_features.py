"""Responses of the server over stdio."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.textual_repr.language_server.client import SECONDS, Client, RequestError
from tests.textual_repr.language_server.marked import cursor, of_protocol, ranges

_numbers = count()

LAYER = "graph @layer(%t: f32[N,3]) -> (%u: f32[N,3]) {\n  %u: f32[N,3] = Relu(%t)\n  return %u\n}\n"


def main(*lines: str) -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return f"#nncdbg 1\nopset 18\ngraph @main(%x: f32[2,3], %c: bool[]) -> () {{\n{body}  return\n}}\n"


def opened(client: Client, text: str) -> str:
    """Open a new document with this text, and return its URI."""
    uri = f"file:///t/{next(_numbers)}.nnc"
    client.open(uri, text)
    return uri


def at(client: Client, feature: str, text: str, **more: Any) -> tuple[Any, str]:
    """Return the response at ``‸`` and the URI of the document."""
    plain, line, column = cursor(text)
    uri = opened(client, plain)
    return client.request_at(feature, uri, line, column, **more), uri


# The marks are the definition and its references.
PLACES = [
    main("⟦%a⟧ = Relu(%x)", "%b = Neg(⟦%‸a⟧)", "%d = Add(⟦%a⟧, ⟦%a⟧)"),
    main('⟦%"a b"⟧ = Relu(%x)', '%b = Neg(⟦%"a‸ b"⟧)'),
    main('⟦%"𝒳"⟧ = Relu(%x)', '%"𝒴" = Neg(⟦%‸"𝒳"⟧)'),
    main("if %c {", "⟦%a⟧ = Relu(%x)", "yield ⟦%‸a⟧", "} else {", "%a = Neg(%x)", "yield %a", "} -> (%r)"),
    main("if %c {", "%a = Relu(%x)", "yield %a", "} else {", "⟦%a⟧ = Neg(%x)", "yield ⟦%a‸⟧", "} -> (%r)"),
    main("while (⟦%‸s⟧: f32[2,3] = %x) {", "%t = Relu(⟦%s⟧)", "next ⟦%s⟧ = %t", "} -> (%z = ⟦%s⟧)"),
    main("while (%s: f32[2,3] = %x) count ⟦%i⟧: i64[] {", "%t = Less(⟦%i‸⟧, 5)", "next %s = %s", "}"),
    main("⟦%h⟧ = Relu(%x)", "while (%s: f32[2,3] = ⟦%‸h⟧) {", "%t = Add(%s, ⟦%h⟧)", "next %s = %t", "}"),
    main("while (%s: f32[2,3] = %x) {", "next %s = %s", "} -> (⟦%z⟧ = %s)", "%q = Relu(⟦%‸z⟧)"),
    "graph @main(%x: f32[2,3]) -> (⟦%y⟧) {\n⟦%y⟧ = Relu(%x)\nreturn ⟦%‸y⟧\n}\n",
    main("%y = @layer(%x)", "%u = Relu(%y)") + LAYER.replace("%t", "⟦%t⟧").replace("Relu(⟦%t", "Relu(⟦%‸t"),
    main("%y = ⟦@lay‸er⟧(%x)", "%z = ⟦@layer⟧(%y)") + LAYER.replace("@layer", "⟦@layer⟧"),
]


@pytest.mark.parametrize("text", PLACES)
def test_definition_references_and_highlights_agree(client: Client, text: str) -> None:
    with_marks, line, column = cursor(text)
    plain, marks = ranges(with_marks)
    column -= sum(c in "⟦⟧" for c in with_marks.split("\n")[line][:column])
    row = plain.split("\n")[line]
    column = len(row[:column].encode("utf-16-le")) // 2
    uri = opened(client, plain)
    units = [_units(plain, mark) for mark in marks]
    all_places = client.request_at("references", uri, line, column, context={"includeDeclaration": True})
    assert sorted(of_protocol(all_places)) == units
    assert sorted(of_protocol(client.request_at("documentHighlight", uri, line, column))) == units
    definition = of_protocol([client.request_at("definition", uri, line, column)])
    assert definition[0] in units
    uses = client.request_at("references", uri, line, column, context={"includeDeclaration": False})
    assert sorted([*of_protocol(uses), *definition]) == units
    names = {plain.split("\n")[mark[0]][mark[1] : mark[2]] for mark in marks}
    assert len(names) == 1


def _units(text: str, mark: tuple[int, int, int]) -> tuple[int, int, int]:
    row = text.split("\n")[mark[0]]
    start, end = (len(row[:column].encode("utf-16-le")) // 2 for column in mark[1:])
    return mark[0], start, end


def test_the_definition_is_the_statement_of_the_value(client: Client) -> None:
    answer, _ = at(client, "definition", main("%a = Relu(%x)", "%b = Neg(%a)", "%d = Add(%b, %‸a)"))
    assert of_protocol([answer]) == [(3, 2, 4)]


# (text, parts of the response)
HOVERS = [
    (main("%a = Relu(%x)", "%b = Neg(%‸a)"), ["%a: f32[2,3]", "inferred", "line 4", "%a = Relu(%x)"]),
    (main("%a: f32[?,3] = Relu(%x)", "%b = Neg(%‸a)"), ["%a: f32[2,3]", "written as `f32[?,3]`"]),
    (main("%k: f32[4] = [1, 2, 3, nan]", "%b = Neg(%‸k)"), ["a constant", "min 1", "max 3", "nan 1"]),
    (main('%k: f32[4] = data("w.x")', "%b = Neg(%‸k)"), ["`w.x` in store 0"]),
    ('store "a.onnx"\n' + main('%k: f32[4] = data("w.x")', "%b = Neg(%‸k)")[10:], ["`w.x` in `a.onnx`"]),
    (main("%a = So‸ftmax(%x)"), ["Softmax(input: T) -> (output: T)", "since opset 13", "default `-1`"]),
    (main("%a = Softmax(%x, ax‸is=1)"), ["`axis` (INT, default `-1`)", "an attribute of `Softmax`"]),
    (main("while (%s: f32[2,3] = %x) {", "%t = Relu(%‸s)", "next %s = %t", "}"), ["carried by a loop"]),
    (
        main("%y = @la‸yer(%x)") + "## two\n## lines\n" + LAYER,
        ["graph @layer(%t: f32[N,3])", "two\nlines", "called 1 time"],
    ),
    (main("wh‸ile (%s: f32[2,3] = %x) {", "next %s = %s", "}"), ["a loop"]),
    (main("%a = Relu(%x) | s‸3->4 wait e1"), ["logical stream 3, bound to stream 4"]),
    ('stream s4 "cuda:3"\n' + main("%a = Relu(%x) | s3->‸4")[10:], ["bound to stream 4, on cuda:3"]),
    (main("%a = Relu(%x) | s0 begin s1->2 s‸3"), ["stream 3"]),
]


@pytest.mark.parametrize(("text", "words"), HOVERS)
def test_hover_describes_the_symbol(client: Client, text: str, words: list[str]) -> None:
    answer, _ = at(client, "hover", text)
    assert answer["contents"]["kind"] == "markdown"
    for word in words:
        assert word in answer["contents"]["value"]


@pytest.mark.parametrize(
    "text",
    [
        main("%a = Relu(%x) | s3->4 wait e‸1"),
        main("%a ‸= Relu(%x)"),
        main("%a = Relu(%zz‸z)"),
        main("%a = My.‸Op(%x)"),
        "‸",
    ],
)
def test_hover_outside_of_symbols_is_empty(client: Client, text: str) -> None:
    assert at(client, "hover", text)[0] is None


# (text, the new name, its form in the text)
NAMES = [
    (main("%‸a = Relu(%x)", "%b = Neg(%a)"), "hidden", "hidden"),
    (main("%‸a = Relu(%x)", "%b = Neg(%a)"), "%hidden", "hidden"),
    (main("%‸a = Relu(%x)", "%b = Neg(%a)"), "conv:0", '"conv:0"'),
    (main("%‸a = Relu(%x)", "%b = Neg(%a)"), '"two\\nlines"', '"two\\nlines"'),
    (main("%‸a = Relu(%x)", "%b = Neg(%a)"), "שלום", '"שלום"'),
    (main('%"odd‸ one" = Relu(%x)', '%b = Neg(%"odd one")'), "even", "even"),
    (main("%y = @la‸yer(%x)") + LAYER, "block 1", '"block 1"'),
]


@pytest.mark.parametrize(("text", "name", "written"), NAMES)
def test_rename_changes_every_use(client: Client, text: str, name: str, written: str) -> None:
    plain, line, column = cursor(text)
    uri = opened(client, plain)
    offered = client.request_at("prepareRename", uri, line, column)
    old = offered["placeholder"]
    answer = client.request_at("rename", uri, line, column, newName=name)
    changed = _edited(plain, answer["changes"][uri])
    sigil = "@" if "@la" in text else "%"
    assert changed == plain.replace(sigil + old, sigil + written)
    assert [d["code"] for d in client.open(f"{uri}x", changed)] == [
        d["code"] for d in client.open(f"{uri}y", plain)
    ]


# (text, the new name, a part of the message)
CLASHES = [
    (main("%‸a = Relu(%x)", "%b = Neg(%a)"), "b", "%b is already defined at line 5"),
    (main("%‸a = Relu(%x)", "%b = Neg(%a)"), "x", "%x is already defined at line 3"),
    (
        main("%‸a = Relu(%x)", "if %c {", "%i = Neg(%a)", "yield %i", "} else {", "yield %x", "}"),
        "i",
        "line 6",
    ),
    (main("%y = @la‸yer(%x)") + LAYER, "main", "a graph @main already exists"),
    (main("%‸a = Relu(%x)"), "", "at least one character"),
    (main("%‸a = Relu(%x)"), '"\\q"', "unknown escape"),
]


@pytest.mark.parametrize(("text", "name", "words"), CLASHES)
def test_an_invalid_rename_is_an_error(client: Client, text: str, name: str, words: str) -> None:
    with pytest.raises(RequestError, match=words.replace("(", "\\(")):
        at(client, "rename", text, newName=name)


def test_two_branches_may_use_one_name(client: Client) -> None:
    text = main("if %c {", "%‸a = Neg(%x)", "yield %a", "} else {", "%b = Relu(%x)", "yield %b", "}")
    answer, uri = at(client, "rename", text, newName="b")
    assert len(answer["changes"][uri]) == 2


@pytest.mark.parametrize("text", [main("%a = Re‸lu(%x)"), main("%a = Relu(%n‸one)"), main("%a = @n‸one(%x)")])
def test_other_words_cannot_be_renamed(client: Client, text: str) -> None:
    assert at(client, "prepareRename", text)[0] is None


def _edited(text: str, edits: list[dict[str, Any]]) -> str:
    lines = text.split("\n")

    def offset(position: dict[str, int]) -> int:
        row = lines[position["line"]] if position["line"] < len(lines) else ""
        data = row.encode("utf-16-le")[: 2 * position["character"]]
        return sum(len(line) + 1 for line in lines[: position["line"]]) + len(data.decode("utf-16-le"))

    places = [(offset(e["range"]["start"]), offset(e["range"]["end"]), e["newText"]) for e in edits]
    for start, end, new in sorted(places, reverse=True):
        text = text[:start] + new + text[end:]
    return text


BLOCKS = (
    main(
        "%y = @layer(%x)",
        "while @body (%s: f32[2,3] = %y) {",
        "  if %c @then {",
        "    %a = @layer(%s)",
        "    yield %a",
        "  } else {",
        "    yield %s",
        "  } -> (%r)",
        "  next %s = %r",
        "} -> (%z = %s)",
    )
    + LAYER
)


def test_document_symbols_are_graphs_and_blocks(client: Client) -> None:
    uri = opened(client, BLOCKS)
    answer = client.request("textDocument/documentSymbol", {"textDocument": {"uri": uri}})

    def shape(symbols: list[dict[str, Any]]) -> list[Any]:
        rows = []
        for s in symbols:
            span = s["range"]["start"]["line"], s["range"]["end"]["line"]
            assert span[0] <= s["selectionRange"]["start"]["line"] <= span[1]
            rows.append((s["name"], *span, shape(s["children"])))
        return rows

    assert shape(answer) == [
        (
            "@main",
            2,
            14,
            [
                ("@layer", 3, 3, []),
                (
                    "while @body",
                    4,
                    12,
                    [("if @then", 5, 8, [("@layer", 6, 6, [])]), ("else", 8, 10, [])],
                ),
            ],
        ),
        ("@layer", 15, 18, []),
    ]


def test_blocks_and_comments_fold(client: Client) -> None:
    uri = opened(client, BLOCKS + "# one\n# two\n\n# three\n")
    answer = client.request("textDocument/foldingRange", {"textDocument": {"uri": uri}})
    assert [(f["startLine"], f["endLine"], f["kind"]) for f in answer] == [
        (2, 13, "region"),
        (4, 11, "region"),
        (5, 7, "region"),
        (8, 9, "region"),
        (15, 17, "region"),
        (19, 20, "comment"),
    ]


def test_the_selection_expands_by_block(client: Client) -> None:
    uri = opened(client, BLOCKS)
    params = {"textDocument": {"uri": uri}, "positions": [{"line": 6, "character": 18}]}
    found = client.request("textDocument/selectionRange", params)[0]
    lines = []
    while found:
        lines.append((found["range"]["start"]["line"], found["range"]["end"]["line"]))
        found = found.get("parent")
    assert lines == [(6, 6), (6, 6), (5, 8), (4, 12), (2, 14), (0, 19)]


def _decoded(client: Client, text: str, data: list[int]) -> list[tuple[str, str, int]]:
    legend = client.capabilities["semanticTokensProvider"]["legend"]["tokenTypes"]
    lines = text.split("\n")
    line = column = 0
    found = []
    for down, right, length, kind, modifiers in zip(*[iter(data)] * 5, strict=True):
        line, column = line + down, right if down else column + right
        row = lines[line].encode("utf-16-le")
        found.append((row[2 * column : 2 * (column + length)].decode("utf-16-le"), legend[kind], modifiers))
    return found


def test_semantic_tokens_have_kinds(client: Client) -> None:
    text = main('%"𝒳": f32[2,3] = Softmax(%x, axis=1) # c', '%k = @layer(%"𝒳")')
    uri = opened(client, text)
    answer = client.request("textDocument/semanticTokens/full", {"textDocument": {"uri": uri}})
    found = [token for token in _decoded(client, text, answer["data"]) if token[1] != "operator"]
    start = found.index(('%"𝒳"', "variable", 1))
    assert found[start : start + 11] == [
        ('%"𝒳"', "variable", 1),
        ("f32[2,3]", "type", 0),
        ("Softmax", "function", 0),
        ("%x", "parameter", 0),
        ("axis", "property", 0),
        ("1", "number", 0),
        ("# c", "comment", 0),
        ("%k", "variable", 1),
        ("@layer", "namespace", 0),
        ('%"𝒳"', "variable", 0),
        ("return", "keyword", 0),
    ]
    place = {"start": {"line": 4, "character": 0}, "end": {"line": 4, "character": 5}}
    part = client.request("textDocument/semanticTokens/range", {"textDocument": {"uri": uri}, "range": place})
    tokens = [token for token in _decoded(client, text, part["data"]) if token[1] != "operator"]
    assert tokens == found[start + 7 : start + 10]


def test_a_delta_of_semantic_tokens_equals_the_full_tokens(client: Client) -> None:
    text = main("%a = Relu(%x)", "%b = Neg(%a)")
    uri = opened(client, text)
    params = {"textDocument": {"uri": uri}}
    first = client.request("textDocument/semanticTokens/full", params)
    place = {"start": {"line": 3, "character": 0}, "end": {"line": 3, "character": 0}}
    client.change(uri, 2, {"range": place, "text": "# new\n"})
    delta = client.request(
        "textDocument/semanticTokens/full/delta", {**params, "previousResultId": first["resultId"]}
    )
    data = list(first["data"])
    for edit in delta["edits"]:
        data[edit["start"] : edit["start"] + edit["deleteCount"]] = edit.get("data", [])
    assert data == client.request("textDocument/semanticTokens/full", params)["data"]
    assert sum(len(edit.get("data", [])) for edit in delta["edits"]) < 20
    lost = client.request("textDocument/semanticTokens/full/delta", {**params, "previousResultId": "none"})
    assert lost["data"] == data


LOOSE = """#nncdbg 1
# of the file
opset 18

# above the graph
## of the graph
graph @main( %x:f32[2,3],%c:bool[]) -> (%y){
# above the constant
  %k:f32[]=1.5   # behind the constant
## of the statement
# and more
%a = Add(%x,%k)  # behind
  if %c {
    yield %a
    # above the brace
  } else {
    yield %x
  } -> (%y)
  # above return
  return %y # last
  # end of the graph
}
# end of the file
"""

TIDY = """#nncdbg 1
opset 18

# of the file
# above the graph
## of the graph
graph @main(%x: f32[2,3], %c: bool[]) -> (%y) {
  # above the constant
  %k: f32[] = 1.5  # behind the constant
  # and more
  ## of the statement
  %a = Add(%x, %k)  # behind
  if %c {
    yield %a
    # above the brace
  } else {
    yield %x
  } -> (%y)
  # above return
  return %y  # last
  # end of the graph
}
# end of the file
"""


def _formatted(client: Client, text: str) -> tuple[str, list[dict[str, Any]]]:
    uri = opened(client, text)
    options = {"tabSize": 2, "insertSpaces": True}
    edits = client.request("textDocument/formatting", {"textDocument": {"uri": uri}, "options": options})
    return _edited(text, edits), edits


def test_formatting_keeps_comments(client: Client) -> None:
    assert _formatted(client, LOOSE)[0] == TIDY


def test_a_formatted_text_does_not_change(client: Client) -> None:
    assert _formatted(client, TIDY) == (TIDY, [])


def test_formatting_edits_only_changed_lines(client: Client) -> None:
    _, edits = _formatted(
        client, TIDY.replace("Add(%x, %k)", "Add(%x,%k)").replace("return %y  #", "return %y #")
    )
    assert [(e["range"]["start"]["line"], e["range"]["end"]["line"]) for e in edits] == [(11, 12), (19, 20)]


@pytest.mark.parametrize("path", ["examples", "docs"])
def test_formatting_an_example_keeps_its_program(client: Client, path: str, repository: Path) -> None:
    from nncdbg.textual_repr import parse

    for file in sorted((repository / path).rglob("*.nnc")):
        text = file.read_text("utf-8")
        assert parse(_formatted(client, text)[0]) == parse(text)


def test_a_text_with_errors_is_not_formatted(client: Client) -> None:
    text = main("%a = Relu(")
    assert _formatted(client, text) == (text, [])
    notification = client.notifications.get(timeout=SECONDS)
    assert notification["method"] == "window/showMessage"
    assert "cannot format the text: expected a literal" in notification["params"]["message"]


def test_workspace_symbols_are_graphs_of_open_and_saved_files(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "a b" / "é.nnc").write_text(LAYER, "utf-8")
    (tmp_path / "b.nnc").write_text("graph @other() -> () {\n", "utf-8")
    (tmp_path / "junk.nnc").write_bytes(bytes(range(256)))
    (tmp_path / ".hidden" / "c.nnc").write_text(LAYER, "utf-8")
    client = Client(tmp_path.as_uri())
    client.open((tmp_path / "b.nnc").as_uri(), "graph @edited() -> () {\n")
    found = {s["name"]: s["location"]["uri"] for s in client.request("workspace/symbol", {"query": ""})}
    assert set(found) == {"@layer", "@edited"}
    assert found["@layer"] == (tmp_path / "a b" / "é.nnc").as_uri()
    assert [s["name"] for s in client.request("workspace/symbol", {"query": "lyr"})] == ["@layer"]
    assert client.close() == 0
