"""Values near the current statement, with their logged statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nncdbg.dap_server.handlers.explaining import MOST_VALUES, MOST_VISITS, NEAR
from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES

REFINE = EXAMPLES / "refine_loop.nnc"

KINDS = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%last: f32[4]) {
  %"a plain one": f32[4] = Abs(%x)
  %huge: f32[4] = Add(%x, 1e20)
  %tiny: f32[4] = Mul(%x, 1e-39)
  %zero: f32[4] = Sub(%x, %x)
  %uninitialized: i32[4] = nncdbg.Empty(shape=[4], dtype="i32", init="none")
  %nan: f32[4] = Div(%zero, %zero)
  %last: f32[4] = Add(%x, 1.0)
  return %last
}
"""


def nearby(client: Client, **arguments: Any) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = client.request("nncdbg/nearby", arguments)["values"]
    return values


def names(values: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in values]


def test_abnormal_values_are_first_then_the_newest(client: Client, tmp_path: Path) -> None:
    (tmp_path / "kinds.nnc").write_text(KINDS)
    client.start("kinds.nnc", stopOnExit=True)
    assert names(nearby(client)) == ["%x"]
    for _ in range(7):
        client.move("next")
    listed = [(each["rank"], each["name"], each["why"]) for each in nearby(client)]
    assert listed == [
        (0, "%nan", "4 NaN"),
        (1, "%uninitialized", "partly written"),
        (2, "%tiny", "4 subnormal"),
        (2, "%huge", "beyond 1.84e+19: its square overflows"),
        (3, "%last", ""),
        (3, "%zero", ""),
        (3, '%"a plain one"', ""),
        (3, "%x", ""),
    ]
    at_the_end = client.move("continue", "exit")
    assert at_the_end["threadId"] == 1
    assert names(nearby(client))[0] == "%nan"


def test_values_have_their_statistics_and_the_line_of_their_statement(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("stepIn")
    client.move("next")
    body = client.request("nncdbg/nearby")
    assert [frame["title"] for frame in body["frames"]] == ["@layer", "@main"][: len(body["frames"])]
    assert "NaN and Inf first" in body["rule"]
    mean, given = body["values"]
    assert (mean["name"], mean["op"], mean["line"], mean["type"]) == ("%mean", "ReduceMean", 33, "f32[2,1]")
    assert (given["name"], given["op"], given["line"]) == ("%a", None, 32)
    for value in (mean, given):
        statistics = client.request("nncdbg/stats", {"expressions": [value["name"]]})["statistics"][0]
        assert value["stats"] == statistics["stats"]
    assert client.evaluate(mean["name"], frameId=body["frames"][0]["frameId"]).startswith("f32[2,1]")
    assert "series" not in mean


def endless(folder: Path) -> None:
    """Write the loop without its early end at a small change."""
    text = REFINE.read_text().replace("times 30", "times 3000").replace("1e-06", "-1.0")
    (folder / "long.nnc").write_text(text)


def test_a_series_covers_the_iterations_of_a_loop(client: Client, tmp_path: Path) -> None:
    endless(tmp_path)
    client.start("long.nnc")
    client.move("next")
    client.move("next")
    client.move("stepIn")
    means = []
    for _ in range(4):
        client.move("next")
        value = next(each for each in nearby(client) if each["name"] == "%quotient")
        means.append(value["stats"]["mean"])
        assert value.get("series", {"mean": means})["mean"] == means
        for _ in range(8):
            client.move("next")
    client.move("next")
    client.move("next")
    # After steps back, later iterations are left out; after steps forward, none is counted twice.
    for _ in range(9):
        client.move("stepBack")
    value = next(each for each in nearby(client) if each["name"] == "%quotient")
    assert value["series"]["mean"] == means
    for _ in range(9):
        client.move("next")
    value = next(each for each in nearby(client) if each["name"] == "%quotient")
    assert value["series"]["mean"][:4] == means
    assert len(value["series"]["mean"]) == 5
    assert value["series"]["nonfinite"] == [0] * 5
    assert all("series" not in each for each in nearby(client) if each["name"] in ("%a", "%x"))


def test_an_edited_value_is_ranked_by_its_new_elements(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("next")
    frame = client.top_frame()["id"]
    client.request("setExpression", {"expression": "%h", "value": "0 / 0", "frameId": frame})
    first = nearby(client)[0]
    assert (first["name"], first["rank"], first["why"]) == ("%h", 0, "8 NaN")


def test_an_answer_is_bounded(client: Client, tmp_path: Path) -> None:
    lines = [f"  %v{n}: f32[2] = Add(%{f'v{n - 1}' if n else 'x'}, 1.0)" for n in range(NEAR + 100)]
    last = f"%v{NEAR + 99}"
    head = f"#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[2]) -> ({last}: f32[2]) {{"
    (tmp_path / "many.nnc").write_text("\n".join([head, *lines, f"  return {last}", "}", ""]))
    client.start("many.nnc", stopOnExit=True)
    client.move("continue", "exit")
    body = client.request("nncdbg/nearby")
    assert (len(body["values"]), body["considered"]) == (40, NEAR)
    assert body["values"][0]["name"] == last
    assert len(nearby(client, count=MOST_VALUES)) == MOST_VALUES
    for count in (0, MOST_VALUES + 1):
        assert f"request 1 to {MOST_VALUES}" in client.refused("nncdbg/nearby", {"count": count})


def test_the_history_is_bounded(client: Client, tmp_path: Path) -> None:
    endless(tmp_path)
    client.start("long.nnc")
    where = {"source": client.top_frame()["source"]}
    client.request("setBreakpoints", {**where, "breakpoints": [{"line": 12, "condition": "$iter == 2000"}]})
    client.move("continue", "breakpoint")
    value = next(each for each in nearby(client) if each["name"] == "%quotient")
    assert len(value["series"]["mean"]) == MOST_VISITS
    assert None not in value["series"]["mean"]
