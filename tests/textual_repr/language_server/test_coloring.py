"""Semantic tokens of a range equal those of the whole text in its lines."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws import examples
from tests.textual_repr.language_server.client import Client

REPOSITORY = Path(__file__).parents[3]
TEXTS = sorted(path for folder in ("examples", "docs") for path in (REPOSITORY / folder).rglob("*.nnc"))
_numbers = count()


def opened(client: Client, text: str) -> str:
    uri = f"file:///tokens/{next(_numbers)}.nnc"
    client.open(uri, text)
    return uri


def placed(data: list[int]) -> list[tuple[int, ...]]:
    """Return tokens with their lines and columns in the text."""
    line = column = 0
    found = []
    for down, right, *rest in zip(*[iter(data)] * 5, strict=True):
        line, column = line + down, right if down else column + right
        found.append((line, column, *rest))
    return found


def whole(client: Client, uri: str) -> list[tuple[int, ...]]:
    answer = client.request("textDocument/semanticTokens/full", {"textDocument": {"uri": uri}})
    return placed(answer["data"])


def of_lines(client: Client, uri: str, first: int, last: int) -> list[tuple[int, ...]]:
    """Return the tokens that the server sends for the range from line `first` to line `last`."""
    places = {"start": {"line": first, "character": 0}, "end": {"line": last, "character": 1000}}
    params = {"textDocument": {"uri": uri}, "range": places}
    return placed(client.request("textDocument/semanticTokens/range", params)["data"])


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
@examples(20)
@given(data=st.data())
def test_tokens_of_a_range_equal_those_of_the_text(client: Client, path: Path, data: st.DataObject) -> None:
    text = path.read_text("utf-8")
    uri = opened(client, text)
    every = whole(client, uri)
    lines = text.count("\n") + 1
    for _ in range(5):
        first = data.draw(st.integers(0, lines + 3))
        last = data.draw(st.integers(first, lines + 3))
        assert of_lines(client, uri, first, last) == [token for token in every if first <= token[0] <= last]


def test_tokens_of_a_range_are_current_after_an_edit(client: Client) -> None:
    text = "graph @main(%x: f32[2]) -> (%y) {\n  %y = Relu(%x)\n  return %y\n}\n"
    uri = opened(client, text)
    place = {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 0}}
    client.change(uri, 2, {"range": place, "text": "  # 𝒳\n"})
    comment, *statement = of_lines(client, uri, 1, 2)
    assert comment[:3] == (1, 2, 4)
    assert {token[0] for token in statement} == {2}
    assert [comment, *statement] == [token for token in whole(client, uri) if token[0] in (1, 2)]


def test_the_server_offers_tokens_of_a_range(client: Client) -> None:
    offered = client.capabilities["semanticTokensProvider"]
    assert offered["range"] is True
    assert offered["full"] == {"delta": True}
