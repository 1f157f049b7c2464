"""The whole graph, and its state at each stop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from nncdbg.dap_server.handlers.graph import MOST_OPENED
from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES

FIRST = EXAMPLES / "first_steps.nnc"
NAN = EXAMPLES / "nan_softmax.nnc"


def graph(client: Client, *opened: str) -> Any:
    return client.request("nncdbg/graph", {"open": list(opened)})


def labels(body: Any) -> list[str]:
    return [each["label"] for each in body["nodes"]]


def named(body: Any, *labelled: str) -> list[tuple[str, str, str]]:
    nodes = body["nodes"]
    found = ((nodes[a]["label"] if a >= 0 else "input", nodes[b]["label"], v) for a, b, v, _ in body["edges"])
    return [each for each in found if each[1] in labelled]


def test_all_statements_in_order_with_types_lines_and_data_flow(client: Client) -> None:
    client.start(FIRST)
    body = graph(client)
    assert (
        labels(body)
        == ["@layer", "MatMul", "while @sharpen", "Greater", "if @soften or @keep"] + labels(body)[5:]
    )
    assert labels(body)[-1] == "return"
    first, matmul = body["nodes"][:2]
    assert (first["kind"], first["values"], first["line"]) == ("layer", ["%h"], 10)
    assert (matmul["type"], matmul["kind"]) == ("f32[2,3]", "op")
    assert named(body, "@layer", "MatMul") == [("input", "@layer", "%x"), ("@layer", "MatMul", "%h")]
    assert body["leftOut"] == 0
    assert body["source"]["path"].endswith("first_steps.nnc")


def test_an_opened_layer_is_replaced_by_its_statements(client: Client) -> None:
    client.start(FIRST)
    layer, _, loop = graph(client)["nodes"][:3]
    body = graph(client, layer["id"], loop["id"])
    assert labels(body)[:3] == ["ReduceMean", "Sub", "Relu"]
    assert [each["title"] for each in body["blocks"]] == ["@main", "@layer", "@sharpen"]
    assert body["blocks"][1]["node"] == layer["id"]
    assert ("input", "ReduceMean", "%x") in named(body, "ReduceMean")
    carried = [each for each in body["edges"] if each[3]]
    assert carried
    assert all(a >= b for a, b, _, _ in carried), "a carried value goes back to the next iteration"


def test_the_state_has_a_statement_for_each_block_on_the_stack(client: Client) -> None:
    client.start(FIRST)
    layer = graph(client)["nodes"][0]
    client.move("stepIn")
    client.move("next")
    state = client.request("nncdbg/graphState")
    outer, inner = state["stack"]
    assert f"{outer['block']}/{outer['pc']}" == layer["id"]
    body = graph(client, layer["id"])
    assert f"{inner['block']}/{inner['pc']}" == body["nodes"][1]["id"]
    assert state["flags"] == {}
    assert "statistics" not in state


def test_abnormal_results_and_statistics_by_statement(client: Client) -> None:
    client.start(NAN)
    client.request("setBreakpoints", {"source": {"path": str(NAN)}, "breakpoints": [{"line": 23}]})
    client.move("continue", "breakpoint")
    state = client.request("nncdbg/graphState", {"statistics": True})
    assert sorted(state["flags"].values()) == ["inf", "nan"]
    assert set(state["flags"]) <= set(state["statistics"])
    absmax, mean, std, zeros = state["statistics"][next(iter(state["statistics"]))]
    assert absmax >= abs(mean)
    assert std >= 0
    assert 0 <= zeros <= 1


def test_layers_that_have_returned_keep_their_statistics(client: Client) -> None:
    client.start(FIRST, stopOnExit=True)
    client.move("stepIn")
    client.move("next")
    inside = client.request("nncdbg/graphState", {"statistics": True})
    client.move("stepOut")
    left = client.request("nncdbg/graphState", {"statistics": True})
    assert inside["stack"][1]["block"] not in [each["block"] for each in left["stack"]]
    assert not left["ended"]
    mean = f"{inside['stack'][1]['block']}/0"
    assert left["statistics"][mean] == inside["statistics"][mean]
    client.move("continue", "exit")
    ended = client.request("nncdbg/graphState", {"statistics": True})
    assert ended["ended"]
    opened = [each["id"] for each in graph(client)["nodes"] if each["kind"] not in ("op", "end")]
    shown = graph(client, *opened)["nodes"]
    assert graph(client, *opened) == client.request("nncdbg/graph", {"all": True})
    missing = {each["label"] for each in shown if each["id"] not in ended["statistics"]}
    # The branch that was not taken has none.
    assert missing == {"return", "next", "yield", "break"}


def test_two_calls_of_one_graph_have_their_own_statistics(client: Client, tmp_path: Path) -> None:
    (tmp_path / "twice.nnc").write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[2]) -> (%z: f32[2]) {\n  %y: f32[2] = @double(%x)\n"
        "  %z: f32[2] = @double(%y)\n  return %z\n}\n\ngraph @double(%a: f32[2]) -> (%b: f32[2]) {\n"
        "  %b: f32[2] = Add(%a, %a)\n  return %b\n}\n"
    )
    client.start("twice.nnc", stopOnExit=True, inputs={"x": [1, 3]})
    client.move("continue", "exit")
    first, second, _ = graph(client)["nodes"]
    statistics = client.request("nncdbg/graphState", {"statistics": True})["statistics"]
    assert [statistics[f"{each['id']}/0"][0] for each in (first, second)] == [6.0, 12.0]


def test_statements_of_states_and_constants_are_marked(client: Client) -> None:
    client.start(EXAMPLES / "train_mlp.nnc")
    body = graph(client)
    aside = [each["label"] for each in body["nodes"] if each.get("aside")]
    assert aside == ["RandomNormal", "ConstantOfShape", "RandomNormal", *["nncdbg.FullLike"] * 3]
    assert body["states"] == ["%w1", "%b1", "%w2", "%m1", "%mb", "%m2"]
    run = next(each["id"] for each in body["nodes"] if each["kind"] == "loop")
    opened = graph(client, run)
    step = next(each["id"] for each in opened["nodes"] if each["kind"] == "layer")
    assert "update" in [each["label"] for each in graph(client, run, step)["nodes"] if each.get("aside")]


def test_a_graph_of_5000_statements_is_answered_in_full(client: Client, tmp_path: Path) -> None:
    count = 5000
    lines = [f"  %h{i}: f32[4] = Add(%h{i - 1}, %h{max(0, i - 20)})" for i in range(1, count)]
    (tmp_path / "deep.nnc").write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[4]) -> (%y: f32[4]) {\n  %h0: f32[4] = Relu(%x)\n"
        + "\n".join(lines)
        + f"\n  %y: f32[4] = Neg(%h{count - 1})\n  return %y\n}}\n"
    )
    client.start("deep.nnc")
    took = []
    for _ in range(3):
        began = time.perf_counter()
        body = graph(client)
        took.append(time.perf_counter() - began)
    assert len(body["nodes"]) == count + 2
    assert len(body["edges"]) == 2 * (count - 1) + 3 - 1
    # A guard against quadratic time; an idle machine takes about 0.3 s.
    assert min(took) < 5


def test_opening_too_many_statements_is_refused(client: Client) -> None:
    client.start(FIRST)
    assert f"open at most {MOST_OPENED} statements" in client.refused(
        "nncdbg/graph", {"open": ["x"] * (MOST_OPENED + 1)}
    )


def test_a_loop_that_ends_without_results_has_a_state(client: Client) -> None:
    path = EXAMPLES / "refine_loop.nnc"
    client.start(path)
    line = next(
        n for n, text in enumerate(path.read_text().splitlines(), 1) if text.strip().startswith("break")
    )
    client.request("setBreakpoints", {"source": {"path": str(path)}, "breakpoints": [{"line": line}]})
    client.move("continue", "breakpoint")
    body = client.request("nncdbg/graphState", {"statistics": True})
    assert len(body["stack"]) == 2
    assert body["statistics"]
