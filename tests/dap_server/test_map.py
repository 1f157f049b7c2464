"""Layers and ops around the current statement, as a graph to draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nncdbg.dap_server.handlers.graph import LEVELS, MOST_INPUTS, MOST_STATEMENTS, MOST_TOGGLED, SLIDE
from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES

FIRST = EXAMPLES / "first_steps.nnc"


def drawn(client: Client, **arguments: Any) -> str:
    """Return the map as text: clusters with their nodes, then edges."""
    body = client.request("nncdbg/map", arguments)
    lines = []
    for cluster in body["clusters"]:
        lines.append(f"{cluster['kind']} {cluster['title']}")
        for node in body["nodes"]:
            if node["cluster"] == cluster["id"]:
                flag = f" {node['flag']}" if "flag" in node else ""
                lines.append(f"  {node['line']} {node['label']} {node['state']}{flag}")
    labels = {each["id"]: each["label"] for each in body["nodes"]}
    for edge in body["edges"]:
        flags = f"{' carried' if 'carried' in edge else ''}{' ' + edge['flag'] if 'flag' in edge else ''}"
        lines.append(f"{labels[edge['from']]} -> {labels[edge['to']]}: {edge['value']}{flags}")
    return "\n".join(lines)


def current(client: Client) -> list[str]:
    nodes = client.request("nncdbg/map")["nodes"]
    return [each["label"] for each in nodes if each["state"] == "current"]


def test_the_map_at_the_start_and_with_an_open_layer(client: Client) -> None:
    client.start(FIRST)
    assert drawn(client) == (
        "graph @main\n"
        "  6 %x done\n"
        "  10 @layer current\n"
        "  11 MatMul next\n"
        "  12 while @sharpen next\n"
        "  21 Greater next\n"
        "  22 if @soften or @keep next\n"
        "  28 Softmax next\n"
        "  29 return next\n"
        "%x -> @layer: %x\n"
        "@layer -> MatMul: %h\n"
        "MatMul -> while @sharpen: %scores\n"
        "while @sharpen -> Greater: %steps\n"
        "while @sharpen -> if @soften or @keep: %sharp\n"
        "Greater -> if @soften or @keep: %many\n"
        "if @soften or @keep -> Softmax: %final\n"
        "while @sharpen -> return: %steps\n"
        "Softmax -> return: %probs"
    )
    layer = client.request("nncdbg/map")["nodes"][1]["id"]
    opened = drawn(client, open=[layer])
    assert "layer @layer\n  33 ReduceMean next\n  34 Sub next\n  35 Relu next\n  36 return next\n" in opened
    assert "%x -> ReduceMean: %x\n" in opened
    assert "Relu -> MatMul: %out\n" in opened


def test_the_map_follows_a_loop_and_steps_back(client: Client) -> None:
    client.start(FIRST)
    client.move("next")
    client.move("next")
    client.move("stepIn")
    for _ in range(9):
        client.move("next")
    text = drawn(client)
    assert (
        "loop @sharpen #1\n"
        "  13 Softmax done\n"
        "  14 ReduceMax done\n"
        "  15 Less current\n"
        "  16 break next\n"
        "  17 Mul next\n"
        "  18 Add next\n"
        "  19 next next\n"
    ) in text
    assert "MatMul -> Softmax: %scores\n" in text
    assert "Mul -> Softmax: %s.1 carried\n" in text
    assert "Add -> Add: %taken.1 carried\n" in text
    cluster = client.request("nncdbg/map")["clusters"][1]
    assert "@sharpen #1 current" in drawn(client, closed=[cluster["node"]])
    client.move("stepBack")
    assert current(client) == ["ReduceMax"]
    client.move("nncdbg/reverseStepOut")
    assert current(client) == ["while @sharpen"]


def test_the_map_in_a_micro_program_and_at_the_end(client: Client) -> None:
    client.start(FIRST, stopOnExit=True)
    client.move("stepIn")
    client.move("stepIn", granularity="instruction")
    body = client.request("nncdbg/map")
    micro = body["clusters"][-1]
    assert (micro["kind"], micro["title"]) == ("micro", "the micro program of ReduceMean")
    inside = [each for each in body["nodes"] if each["cluster"] == micro["id"]]
    assert inside[0]["state"] == "current"
    assert body["sources"][inside[0]["source"]]["sourceReference"] > 0
    assert any(each["from"].endswith(":x") and each["to"] == inside[0]["id"] for each in body["edges"])
    client.move("continue", "exit")
    assert current(client) == ["return"]
    assert [each["title"] for each in client.request("nncdbg/map")["clusters"]] == ["@main"]


def test_nodes_and_edges_with_nan_and_inf_are_flagged(client: Client) -> None:
    client.start(EXAMPLES / "nan_softmax.nnc")
    client.request("setExceptionBreakpoints", {"filters": ["nan"]})
    client.move("continue", "exception")
    text = drawn(client)
    assert "  21 Log done inf\n  22 Mul current nan\n  23 ReduceSum next\n" in text
    assert "Log -> Mul: %logq inf\n" in text
    assert "Mul -> ReduceSum: %terms nan\n" in text
    assert "@normalize -> Log: %probs\n" in text


def test_an_edit_flags_the_edited_value(client: Client) -> None:
    client.start(FIRST)
    client.move("next")
    frame = client.top_frame()["id"]
    client.request("setExpression", {"expression": "%h", "value": "0 / 0", "frameId": frame})
    text = drawn(client)
    assert "  10 @layer done nan\n" in text
    assert "@layer -> MatMul: %h nan\n" in text


def test_the_neighbourhood_is_bounded(client: Client, tmp_path: Path) -> None:
    many = range(500)
    inputs = ", ".join(f"%x{n}: f32[2]" for n in many)
    lines = [f"  %v{n}: f32[2] = Add(%x{n}, %{f'v{n - 1}' if n else 'x0'})" for n in many]
    head = f"#nncdbg 1\nopset 18\n\ngraph @main({inputs}) -> (%v499: f32[2]) {{"
    (tmp_path / "many.nnc").write_text("\n".join([head, *lines, "  return %v499", "}", ""]))
    client.start("many.nnc", stopOnExit=True)
    client.request("nncdbg/moment", {"statements": 200})
    client.expect_stop("goto")
    body = client.request("nncdbg/map")
    statements = [each for each in body["nodes"] if each["kind"] != "input"]
    assert len(statements) == MOST_STATEMENTS
    assert len(body["nodes"]) - len(statements) == MOST_INPUTS
    before_current = (MOST_STATEMENTS - SLIDE) // 2
    assert [each["state"] for each in statements].index("current") == before_current
    [cluster] = body["clusters"]
    first = 200 - before_current
    assert (cluster["before"], cluster["after"]) == (first, 501 - first - MOST_STATEMENTS)
    known = {each["id"] for each in body["nodes"]}
    assert all(each["from"] in known and each["to"] in known for each in body["edges"])
    shown = [each["id"] for each in body["nodes"]]
    for _ in range(SLIDE - 1):
        client.move("next")
        assert [each["id"] for each in client.request("nncdbg/map")["nodes"]] == shown
    client.move("next")
    assert [each["id"] for each in client.request("nncdbg/map")["nodes"]] != shown
    too_many = [str(number) for number in range(MOST_TOGGLED + 1)]
    assert f"at most {MOST_TOGGLED}" in client.refused("nncdbg/map", {"open": too_many})
    assert client.request("nncdbg/map", {"open": too_many[1:], "closed": []})["clusters"]


def test_a_deep_stack_is_bounded(client: Client, tmp_path: Path) -> None:
    deep = "\n".join(
        f"graph @g{n}(%a: f32[2]) -> (%b: f32[2]) {{\n  %b: f32[2] = @g{n + 1}(%a)\n  return %b\n}}\n"
        for n in range(20)
    )
    text = (
        "#nncdbg 1\nopset 18\n\n"
        "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %y: f32[2] = @g0(%x)\n  return %y\n}\n\n"
        f"{deep}\ngraph @g20(%a: f32[2]) -> (%b: f32[2]) {{\n  %b: f32[2] = Abs(%a)\n  return %b\n}}\n"
    )
    (tmp_path / "deep.nnc").write_text(text)
    client.start("deep.nnc")
    for _ in range(21):
        client.move("stepIn")
    body = client.request("nncdbg/map")
    assert [each["title"] for each in body["clusters"]] == [f"@g{n}" for n in range(21 - LEVELS, 21)]
    assert current(client) == ["Abs"]
