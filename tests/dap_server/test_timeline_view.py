"""The timeline of a run: current position, marks, edits and branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nncdbg.dap_server.handlers.timeline import LONGEST, MOST_BRANCHES, MOST_MOMENTS
from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES


def test_marks_are_set_listed_visited_and_deleted(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    assert client.request("nncdbg/marks", {}) == {"marks": []}
    start = {"name": "start", "statements": 0, "branch": 0, "here": True}
    assert client.request("nncdbg/marks", {"action": "set", "name": "start"}) == {"marks": [start]}
    client.move("next")
    client.evaluate("mark later", "repl")
    marks = client.request("nncdbg/marks", {"action": "list"})["marks"]
    assert [(mark["name"], mark["here"]) for mark in marks] == [("start", False), ("later", True)]
    client.request("nncdbg/marks", {"action": "goto", "name": "start"})
    client.expect_event("continued")
    client.expect_stop("entry")
    client.request("nncdbg/marks", {"action": "goto", "name": "later"})
    client.expect_stop("goto")
    left = client.request("nncdbg/marks", {"action": "delete", "name": "start"})["marks"]
    assert [mark["name"] for mark in left] == ["later"]
    for action in ("goto", "delete"):
        message = client.refused("nncdbg/marks", {"action": action, "name": "start"})
        assert message == "there is no mark 'start' (marks: later)"
    assert "a mark needs a name" in client.refused("nncdbg/marks", {"action": "set"})
    assert "action" in client.refused("nncdbg/marks", {"action": "drop"})


def test_a_mark_can_be_renamed(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    for name in ("one", "two"):
        client.request("nncdbg/marks", {"action": "set", "name": name})
    renamed = client.request("nncdbg/marks", {"action": "rename", "name": "one", "to": "first of all"})[
        "marks"
    ]
    assert [mark["name"] for mark in renamed] == ["first of all", "two"]
    taken = client.refused("nncdbg/marks", {"action": "rename", "name": "two", "to": "first of all"})
    assert "the mark 'first of all' already exists" in taken
    assert "no mark 'one'" in client.refused("nncdbg/marks", {"action": "rename", "name": "one", "to": "x"})
    assert "pass it as `to`" in client.refused("nncdbg/marks", {"action": "rename", "name": "two"})
    client.move("next")
    client.request("nncdbg/marks", {"action": "goto", "name": "first of all"})
    client.expect_stop("entry")


LONG = """\
#nncdbg 1
opset 18

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  while @count (%s: f32[2] = %x) count %i: i64[] times 3000 {
    %s.1: f32[2] = Add(%s, 1.0)
    next %s = %s.1
  } -> (%y: f32[2] = %s)
  return %y
}
"""


def timeline(client: Client) -> list[dict[str, Any]]:
    branches: list[dict[str, Any]] = client.request("nncdbg/timeline")["branches"]
    return branches


def table(branches: list[dict[str, Any]]) -> str:
    """Return a line for each branch and moment."""
    lines = []
    for branch in branches:
        star = "*" if branch["current"] else " "
        parent = "" if branch["parent"] is None else f" from {branch['parent']} at {branch['since']}"
        lines.append(f"{star}{branch['number']} {branch['title']}{parent}")
        for each in branch["moments"]:
            name = f" {each['name']}" if "name" in each else ""
            line = f" line {each['line']}" if "line" in each else ""
            lines.append(f"  {each['statements']} {each['kind']}{name}{line}")
    return "\n".join(lines)


def test_the_timeline_has_the_start_and_the_current_position(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    assert table(timeline(client)) == "*0 the original run\n  0 start line 10\n  0 now line 10"
    client.move("next")
    client.move("next")
    client.move("stepBack")
    now = timeline(client)[0]["moments"][-1]
    assert now["line"] == client.top_frame()["line"]
    assert now["text"] == "%scores = MatMul(%h, %w) : f32[2,3]"
    assert now["graph"] == "main"


def test_an_edit_starts_a_branch(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("next")
    client.request("nncdbg/marks", {"action": "set", "name": "after the layer"})
    client.request("setExpression", {"expression": "%h", "value": "0", "frameId": client.top_frame()["id"]})
    client.move("next")
    client.request(
        "setExpression", {"expression": "%scores", "value": "1", "frameId": client.top_frame()["id"]}
    )
    assert table(timeline(client)) == (
        "*2 %scores set from 1 at 6\n"
        "  6 edit %scores line 12\n"
        "  6 now line 12\n"
        " 1 %h set from 0 at 5\n"
        "  5 edit %h line 11\n"
        "  6 left line 12\n"
        " 0 the original run\n"
        "  0 start line 10\n"
        "  5 mark after the layer line 11\n"
        "  5 left line 11"
    )
    client.request("nncdbg/moment", {"branch": 1, "statements": 6})
    client.expect_event("continued")
    client.expect_stop("goto")
    assert client.evaluate("max(abs(%h))") == "0.0"
    assert client.evaluate("max(abs(%scores))") == "0.0"
    client.request("nncdbg/moment", {"branch": 0, "statements": 3})
    client.expect_stop("goto")
    first = timeline(client)[0]
    assert (first["number"], first["moments"][1]["kind"], first["moments"][1]["statements"]) == (0, "now", 3)
    assert first["moments"][1]["graph"] == "layer"


def test_the_timeline_in_a_loop_has_checkpoints(client: Client, tmp_path: Path) -> None:
    (tmp_path / "long.nnc").write_text(LONG)
    client.start("long.nnc", stopOnExit=True)
    client.move("stepIn")
    client.move("next")
    assert table(timeline(client)) == "*0 the original run\n  0 start line 5\n  2 now line 7"
    client.move("stepIn", granularity="instruction")
    client.request("setBreakpoints", {"source": client.top_frame()["source"], "breakpoints": [{"line": 9}]})
    client.move("continue", "breakpoint")
    [branch] = timeline(client)
    kinds = [each["kind"] for each in branch["moments"]]
    assert kinds[0] == "start"
    assert kinds[-1] == "now"
    kept = [each for each in branch["moments"] if each["kind"] == "checkpoint"]
    assert 2 <= len(kept) <= 20
    assert all(each["line"] in (6, 7) and each["graph"] == "count" for each in kept)
    client.request("nncdbg/moment", {"statements": kept[0]["statements"]})
    client.expect_stop("goto")
    assert timeline(client)[0]["moments"][-1]["statements"] == kept[0]["statements"]
    client.move("continue", "breakpoint")
    client.move("continue", "exit")
    now = timeline(client)[0]["moments"][-1]
    assert (now["kind"], now["line"]) == ("now", 9)
    client.move("stepBack")
    assert timeline(client)[0]["moments"][-1]["line"] == 9


def test_a_micro_program_that_was_stepped_into_is_a_moment(client: Client) -> None:
    client.start(EXAMPLES / "nan_softmax.nnc")
    client.move("next")
    client.move("stepIn")
    client.move("stepIn", granularity="instruction")
    moments = timeline(client)[0]["moments"]
    assert [each["kind"] for each in moments] == ["start", "micro", "now"]
    assert moments[1]["name"] == "Softmax"


def test_an_answer_is_bounded(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("next")
    frame = client.top_frame()["id"]
    name = "n" * 2 * LONGEST
    for number in range(MOST_BRANCHES + 5):
        client.request("setExpression", {"expression": "%h", "value": str(number), "frameId": frame})
    for number in range(MOST_MOMENTS + 50):
        client.request("nncdbg/marks", {"action": "set", "name": f"{name}{number}"})
    body = client.request("nncdbg/timeline")
    assert len(body["branches"]) == MOST_BRANCHES
    assert body["leftOut"] == 6
    present, *others = body["branches"]
    assert len(present["moments"]) == MOST_MOMENTS
    assert present["leftOut"] == MOST_MOMENTS + 52 - MOST_MOMENTS
    assert present["moments"][-1]["kind"] == "now"
    # The last position of each other branch is always listed.
    assert all(each["moments"][-1]["kind"] == "left" for each in others)
    client.request("nncdbg/marks", {"action": "goto", "name": f"{name}3"})
    client.expect_stop("goto")


def test_an_invalid_moment_is_refused(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    assert "no branch 7" in client.refused("nncdbg/moment", {"branch": 7, "statements": 0})
    assert "0 or more" in client.refused("nncdbg/moment", {"statements": -1})
    assert "statements" in client.refused("nncdbg/moment", {})
    client.request("nncdbg/moment", {"statements": 10**9})  # the program ends before
    client.expect_event("terminated")
    assert timeline(client)[0]["moments"][-1]["kind"] == "now"
    assert "the program has ended" in client.refused("nncdbg/moment", {"statements": 0})
