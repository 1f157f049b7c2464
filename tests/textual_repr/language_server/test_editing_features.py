"""Completion, signature help, hints, actions, lenses, calls and links of the running server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.textual_repr.language_server.client import Client

TEXT = """\
opset 18
store "w.onnx"
graph @main(%"é 𝄞": f32[2,3], %x: f32[2,3]) -> (%out: f32[2,3]) {
  %"ü" = Add(%"é 𝄞", %x)
  %h = @layer(%"ü")
  %out = Reluu(%h)
  return %out
}
graph @layer(%t: f32[2,3]) -> (%u: f32[2,3]) {
  %u = Softmax(%t, axis=1)
  return %u
}
"""


@pytest.fixture(scope="module")
def uri(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("with blank")
    (folder / "w.onnx").write_bytes(b"")
    found = (folder / "ä.nnc").as_uri()
    client.open(found, TEXT)
    yield found
    client.notify("textDocument/didClose", {"textDocument": {"uri": found}})


def at(line: int, start: int, end: int) -> dict[str, dict[str, int]]:
    return {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}


def test_the_server_announces_its_capabilities(client: Client) -> None:
    capabilities = client.capabilities
    assert capabilities["completionProvider"]["resolveProvider"]
    assert {"%", "@"} <= set(capabilities["completionProvider"]["triggerCharacters"])
    assert capabilities["signatureHelpProvider"]["triggerCharacters"] == ["(", ","]
    assert set(capabilities["codeActionProvider"]["codeActionKinds"]) == {
        "quickfix",
        "refactor.rewrite",
        "refactor.inline",
        "refactor.extract",
    }
    for name in ("inlayHintProvider", "codeLensProvider", "callHierarchyProvider", "documentLinkProvider"):
        assert capabilities[name]


def test_completion_and_resolve_return_edits_and_documentation(client: Client, uri: str) -> None:
    # The second operand follows `%"é 𝄞", `, in which the clef counts as two.
    answer = client.request_at("completion", uri, 3, 23)
    items = {item["label"]: item for item in answer["items"]}
    assert set(items) == {"%x", '%"é 𝄞"'}
    assert items["%x"]["textEdit"] == {"range": at(3, 22, 24), "newText": "%x"}
    ops = client.request_at("completion", uri, 5, 12)["items"]
    relu = next(item for item in ops if item["label"] == "Relu")
    assert relu["textEdit"]["range"] == at(5, 9, 14)
    assert "documentation" not in relu
    assert "rectified" in client.request("completionItem/resolve", relu)["documentation"]["value"]


def test_signature_help_has_the_active_parameter(client: Client, uri: str) -> None:
    answer = client.request_at("signatureHelp", uri, 3, 24)
    assert answer["activeParameter"] == 1
    assert answer["signatures"][0]["label"] == "Add(A: T, B: T) -> (C: T)"


def test_inlay_hints_are_inferred_types(client: Client, uri: str) -> None:
    found = client.request(
        "textDocument/inlayHint",
        {"textDocument": {"uri": uri}, "range": {**at(3, 0, 0), "end": at(4, 0, 9)["end"]}},
    )
    assert [(h["position"]["line"], h["label"]) for h in found] == [(3, " : f32[2,3]"), (4, " : f32[2,3]")]


def actions(client: Client, uri: str, place: dict[str, dict[str, int]], **context: object) -> list[dict]:  # type: ignore[type-arg]
    params = {"textDocument": {"uri": uri}, "range": place, "context": {"diagnostics": [], **context}}
    return list(client.request("textDocument/codeAction", params))


def test_code_actions_are_filtered_by_kind(client: Client, uri: str) -> None:
    (fix,) = actions(client, uri, at(5, 10, 10), only=["quickfix"])
    assert fix["title"] == "Replace by Relu"
    assert fix["edit"]["changes"][uri] == [{"range": at(5, 9, 14), "newText": "Relu"}]
    (inline,) = actions(client, uri, at(4, 0, 0), only=["refactor.inline"])
    assert inline["title"] == "Flatten @layer into this graph"
    assert '%h = Softmax(%"ü", axis=1)' in inline["edit"]["changes"][uri][0]["newText"]
    titles = [action["title"] for action in actions(client, uri, at(3, 0, 5), only=["refactor"])]
    assert titles == ['Write the type: %"ü": f32[2,3]', "Group into a layer"]


def test_a_fix_contains_its_diagnostic(client: Client, uri: str) -> None:
    diagnostics = client.change(uri, 2, {"text": TEXT})
    wrong = next(each for each in diagnostics if each["code"] == "unknown-op")
    (fix,) = actions(client, uri, at(5, 10, 10), only=["quickfix"], diagnostics=[wrong])
    assert fix["diagnostics"] == [wrong]
    assert fix["isPreferred"]


def test_lenses_calls_and_links_are_answered(client: Client, uri: str) -> None:
    document = {"textDocument": {"uri": uri}}
    lenses = client.request("textDocument/codeLens", document)
    assert lenses[0]["command"] == {
        "title": "Debug graph",
        "command": "nncdbg.debugGraph",
        "arguments": [uri, "main"],
    }
    (item,) = client.request_at("prepareCallHierarchy", uri, 4, 9)
    assert item["name"] == "@layer"
    (caller,) = client.request("callHierarchy/incomingCalls", {"item": item})
    assert caller["from"]["name"] == "@main"
    (called,) = client.request("callHierarchy/outgoingCalls", {"item": caller["from"]})
    assert called["to"] == item
    (link,) = client.request("textDocument/documentLink", document)
    assert link["target"].endswith("/with%20blank0/w.onnx")


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("completion", {"position": {"line": 0, "character": 0}}),
        ("signatureHelp", {"position": {"line": 0, "character": 0}}),
        ("inlayHint", {"range": at(0, 0, 0)}),
        ("codeAction", {"range": at(0, 0, 0), "context": {"diagnostics": []}}),
        ("codeLens", {}),
        ("prepareCallHierarchy", {"position": {"line": 0, "character": 0}}),
        ("documentLink", {}),
    ],
)
@pytest.mark.parametrize(
    "text", [None, "", "\0\x07binary\udcff".encode("utf-8", "replace").decode(), "}\n}\n} else {", "%"]
)
def test_every_request_is_answered_for_any_text(
    client: Client,
    method: str,
    more: dict,  # type: ignore[type-arg]
    text: str | None,
) -> None:
    place = "file:///odd%20text.nnc"
    if text is not None:
        client.open(place, text)
    answer = client.request(f"textDocument/{method}", {"textDocument": {"uri": place}, **more})
    if method == "codeLens" or text is None:
        assert not answer
    else:
        assert answer is None or isinstance(answer, (list, dict))
    if text is not None:
        client.notify("textDocument/didClose", {"textDocument": {"uri": place}})
        client.diagnostics(place, None)
