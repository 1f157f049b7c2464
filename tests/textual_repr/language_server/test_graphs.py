"""Features for whole graphs: lenses, call hierarchy, and links to files."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types
from pygls.uris import from_fs_path

from nncdbg.textual_repr.language_server.decorations import code_lenses
from nncdbg.textual_repr.language_server.document import Document, Place
from nncdbg.textual_repr.language_server.navigation import (
    document_links,
    incoming_calls,
    outgoing_calls,
    prepared,
)
from tests.textual_repr.language_server.marked import cursor

TEXT = """\
graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %a = @"inner one"(%x)
  while (%s: f32[2] = %a) times 2 {
    %b = @"inner one"(%s)
    next %s = %b
  } -> (%c = %s)
  %y = @last(%c)
  return %y
}

graph @"inner one"(%x: f32[2]) -> (%y: f32[2]) {
  %y = @last(%x)
  return %y
}
graph @last(%x: f32[2]) -> (%y: f32[2]) {
  %y = Relu(%x)
  return %y
}
"""
URI = "file:///a%20b.nnc"


def ranges(found: list[types.Range]) -> list[tuple[int, int, int]]:
    return [(r.start.line, r.start.character, r.end.character) for r in found]


def test_each_graph_has_lenses() -> None:
    found = [
        (lens.range.start.line, lens.command.title, lens.command.command)
        for lens in code_lenses(Document(URI, TEXT))
        if lens.command is not None
    ]
    assert found == [
        (0, "Debug graph", "nncdbg.debugGraph"),
        (0, "6 statements", ""),
        (10, "2 statements", ""),
        (10, "2 calls", "nncdbg.showReferences"),
        (14, "2 statements", ""),
        (14, "2 calls", "nncdbg.showReferences"),
    ]


def test_lenses_have_the_arguments_of_their_commands() -> None:
    lenses = list(code_lenses(Document(URI, TEXT)))
    commands = [lens.command for lens in lenses if lens.command is not None and lens.command.arguments]
    assert commands[0].arguments == [URI, "main"]
    assert commands[1].arguments is not None
    uri, position, locations = commands[1].arguments
    assert (uri, position) == (URI, types.Position(10, 6))
    assert locations is not None
    assert ranges([location.range for location in locations]) == [(1, 7, 19), (3, 9, 21)]


def test_an_empty_text_has_no_lenses() -> None:
    assert list(code_lenses(Document(URI, ""))) == []


def test_incoming_calls_of_a_graph_are_listed() -> None:
    document = Document(URI, TEXT)
    found = [(c.from_.name, ranges(list(c.from_ranges))) for c in incoming_calls(document, "inner one")]
    assert found == [("@main", [(1, 7, 19), (3, 9, 21)])]
    assert [c.from_.name for c in incoming_calls(document, "last")] == ["@main", '@"inner one"']
    assert incoming_calls(document, "main") == []


def test_outgoing_calls_of_a_graph_are_listed() -> None:
    document = Document(URI, TEXT)
    found = [(c.to.name, c.to.data, ranges(list(c.from_ranges))) for c in outgoing_calls(document, "main")]
    assert found == [
        ('@"inner one"', "inner one", [(1, 7, 19), (3, 9, 21)]),
        ("@last", "last", [(6, 7, 12)]),
    ]
    assert outgoing_calls(document, "last") == []
    assert outgoing_calls(document, "nothing") == []


@pytest.mark.parametrize(
    ("before", "after", "name", "lines"),
    [
        ("%y = @last(%c)", "%y = @la‸st(%c)", "@last", (14, 17)),
        ("graph @last", "graph @l‸ast", "@last", (14, 17)),
        ("%y = @last(%x)", "‸%y = @last(%x)", '@"inner one"', (10, 13)),
    ],
)
def test_the_hierarchy_starts_at_the_cursor(
    before: str, after: str, name: str, lines: tuple[int, int]
) -> None:
    text, line, column = cursor(TEXT.replace(before, after, 1))
    document = Document(URI, text)
    items = prepared(Place(document, document.analysis, line, column))
    assert items is not None
    (item,) = items
    assert (item.name, (item.range.start.line, item.range.end.line)) == (name, lines)


def test_existing_files_are_linked(tmp_path: Path) -> None:
    (tmp_path / "weights é.onnx").write_bytes(b"")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "net.py").write_text("")
    text = """\
store "weights é.onnx"
store "missing.onnx"
graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %y = Relu(%x) loc("net.py":12, node "net.py":1, from "gone.py":3)
  %z: str[] = "net.py":5
  %w = Neg(%x) loc("net.py")
  return %y
}
"""
    uri = from_fs_path(str(tmp_path / "graph.nnc"))
    assert uri is not None
    found = list(document_links(Document(uri, text), [tmp_path / "source"]))
    assert ranges([link.range for link in found]) == [(0, 7, 21), (3, 21, 27), (3, 39, 45)]
    store, source, _ = (link.target or "" for link in found)
    assert store == from_fs_path(str((tmp_path / "weights é.onnx").resolve()))
    assert source.endswith("/source/net.py#L12")


@pytest.mark.parametrize("name", ["x" * 5000, "a\\0b", "\\U0010ffff", ""])
def test_invalid_file_names_are_not_linked(name: str) -> None:
    assert list(document_links(Document("file:///a.nnc", f'store "{name}"\nRelu() loc("{name}":1)'))) == []
    assert list(document_links(Document("untitled:a", 'store "setup.py"'))) == []
