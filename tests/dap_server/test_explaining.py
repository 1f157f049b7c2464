"""Explain Value: the statements that a value comes from, with statistics, causes and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nncdbg.dap_server.handlers.explaining import MOST_STATEMENTS, PICTURE
from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES

NAN = EXAMPLES / "nan_softmax.nnc"

LARGE = """#nncdbg 1
opset 18

graph @main(%x: f32[3,256,64]) -> (%y: f32[3,256,64]) {
  %h: f32[3,256,64] = Mul(%x, 2.0)
  %flat: f32[49152] = Reshape(%h, [49152])
  %y: f32[3,256,64] = Neg(%h)
  return %y
}
"""


def stopped_at_nan(client: Client) -> None:
    client.start(NAN)
    client.request("setBreakpoints", {"source": {"path": str(NAN)}, "breakpoints": [{"line": 23}]})
    client.move("continue", "breakpoint")


def explained(client: Client, **arguments: Any) -> Any:
    return client.request("nncdbg/explain", arguments)


def test_the_path_of_a_nan_ends_where_it_originates_with_the_cause(client: Client) -> None:
    stopped_at_nan(client)
    body = explained(client, expression="%terms")
    assert body["value"] == "%terms"
    first = body["steps"][0]
    assert (first["line"], first["op"], first["graph"]) == (22, "Mul", "@entropy")
    assert first["text"].startswith("%terms = ")
    (value,) = first["values"]
    assert (value["name"], value["stats"]["nan"]) == ("%terms", 5)
    (cause,) = value["origin"]
    assert cause["kind"] == "NaN"
    assert cause["evidence"]
    assert cause["hint"]
    inf = next(each for step in body["steps"] for each in step["values"] if each["name"] == "%logq")
    assert [each["kind"] for each in inf["origin"]] == ["Inf"]


def test_without_a_name_the_most_abnormal_value_is_explained(client: Client) -> None:
    client.start(NAN)
    assert explained(client)["value"] == "%logits"
    client.request("setBreakpoints", {"source": {"path": str(NAN)}, "breakpoints": [{"line": 23}]})
    client.move("continue", "breakpoint")
    assert explained(client)["value"] == "%terms"


def test_large_values_have_a_small_picture_and_small_values_their_elements(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "large.nnc").write_text(LARGE)
    client.start("large.nnc", stopOnExit=True)
    client.move("next")
    client.move("next")
    step, given = explained(client, expression="%h")["steps"]
    (value,) = step["values"]
    rows, columns = value["picture"]["shape"]
    assert value["picture"]["of"] == [256, 64]
    assert PICTURE / 4 <= rows * columns <= PICTURE
    assert "elements" not in value
    assert {each["name"]: each["note"] for each in given["values"]} == {"%x": "input"}
    assert explained(client, expression="%flat")["steps"][0]["values"][0]["picture"]["shape"] == [1, 192]


def test_an_answer_is_bounded_and_bad_names_are_refused(client: Client) -> None:
    stopped_at_nan(client)
    body = explained(client, expression="%terms", count=1)
    assert len(body["steps"]) == 1
    assert body["more"]
    for count in (0, MOST_STATEMENTS + 1):
        assert f"request 1 to {MOST_STATEMENTS}" in client.refused("nncdbg/explain", {"count": count})
    assert "%nope" in client.refused("nncdbg/explain", {"expression": "%nope"})
    assert "not computed yet" in client.refused("nncdbg/explain", {"expression": "%sum"})


def test_the_default_is_the_value_of_the_finding(client: Client) -> None:
    client.start(NAN)
    client.request("setExceptionBreakpoints", {"filters": ["inf"]})
    client.move("continue", "exception")
    assert client.request("nncdbg/explain")["value"] == "%logq"
    client.request("setExceptionBreakpoints", {"filters": ["nan"]})
    client.move("continue", "exception")
    assert client.request("nncdbg/explain")["value"] == "%terms"
