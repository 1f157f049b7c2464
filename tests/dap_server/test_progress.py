"""Progress of long operations: reported at a limited rate, always ended, and cancellable."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nncdbg.dap_server.progress import PATIENCE
from tests.dap_server.client import Client, Message

pytestmark = pytest.mark.usefixtures("forked_processes")

FLAGS = {"supportsProgressReporting": True}

LOOP = """#nncdbg 1
graph @main(%x: f32[1]) -> (%y) {
  while @spin (%i: i64[] = 0, %s: f32[1] = %x) {
    %go: bool[] = Less(%i, 100000000)
    break unless %go
    %s.1: f32[1] = Sin(%s)
    %i.1: i64[] = Add(%i, 1)
    next %i = %i.1, %s = %s.1
  } -> (%y = %s)
  return %y
}
"""

SLOW = """
import time
import nncdbg

@nncdbg.op("progress.Wait")
def wait(xp, x):
    time.sleep(0.02)
    return x

@nncdbg.op("progress.Long")
def long(xp, x):
    time.sleep(1.0)
    raise ValueError("no")
"""


def events(client: Client) -> list[tuple[str, Message]]:
    return [
        (message["event"], message["body"])
        for message in client.messages
        if message.get("event", "").startswith("progress")
    ]


def ended_once(client: Client) -> None:
    """Check that each progress ends once, after its updates."""
    open_now: set[str] = set()
    seen: set[str] = set()
    for event, body in events(client):
        number = body["progressId"]
        if event == "progressStart":
            assert number not in seen
            seen.add(number)
            open_now.add(number)
        else:
            assert number in open_now, (event, body)
        if event == "progressEnd":
            open_now.remove(number)
    assert open_now == set()


def straight(folder: Path, count: int, op: str) -> Path:
    lines = [f"  %v{i}: f32[1] = {op}({'%x' if i == 0 else f'%v{i - 1}'})" for i in range(count)]
    text = "\n".join(lines)
    model = folder / "model.nnc"
    model.write_text(
        f"#nncdbg 1\ngraph @main(%x: f32[1]) -> (%v{count - 1}) {{\n{text}\n  return %v{count - 1}\n}}\n"
    )
    (folder / "ops.py").write_text(SLOW)
    return model


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    model = tmp_path / "loop.nnc"
    model.write_text(LOOP)
    return model


def start(client: Client, model: Path, **options: object) -> None:
    client.launch(model, initialize=FLAGS, inputs={"x": "ones"}, stopOnEntry=True, **options)
    client.request("configurationDone")
    client.expect_stop("entry")
    # On a busy machine, loading takes long enough for a progress report.
    client.discard(lambda message: message.get("event", "").startswith("progress"))


def updates(client: Client, number: str) -> list[Message]:
    return [
        body for event, body in events(client) if event == "progressUpdate" and body["progressId"] == number
    ]


def test_a_run_reports_the_executed_share_of_the_graph(client: Client, tmp_path: Path) -> None:
    start(client, straight(tmp_path, 100, "progress.Wait"), opLibrary=["ops.py"])
    client.request("continue", {"threadId": 1})
    began = time.monotonic()
    started = client.expect_event("progressStart")
    assert (started["title"], started["cancellable"]) == ("Running", True)
    assert "requestId" not in started
    client.expect_event("terminated")
    took = time.monotonic() - began
    reported = updates(client, started["progressId"])
    percentages = [body["percentage"] for body in reported]
    assert percentages == sorted(percentages)
    assert len(percentages) >= 3, events(client)
    assert percentages[0] > 0
    assert percentages[-1] <= 100
    assert len(reported) <= 4 * took + 1, "at most four a second"
    # The reported percentage is the executed share.
    for body in reported:
        assert body["message"] == f"statement {round(body['percentage'])}"
    ended_once(client)


def test_a_quick_step_is_not_reported(client: Client, tmp_path: Path) -> None:
    start(client, straight(tmp_path, 100, "progress.Wait"), opLibrary=["ops.py"])
    known = len(events(client))
    before = time.monotonic()
    client.move("next")
    reported = events(client)[known:]
    assert reported == [] or time.monotonic() - before >= PATIENCE


def test_a_run_is_cancelled_by_its_progress(client: Client, loop: Path) -> None:
    start(client, loop)
    client.request("continue", {"threadId": 1})
    started = client.expect_event("progressStart")
    assert "percentage" not in started, "the length of a loop is unknown"
    first = client.expect_event("progressUpdate")
    second = client.expect_event("progressUpdate")
    assert int(second["message"].split()[1]) > int(first["message"].split()[1]) > 0
    client.request("cancel", {"progressId": started["progressId"]})
    client.expect_event("progressEnd", progressId=started["progressId"])
    client.expect_stop("pause")
    ended_once(client)
    client.request("cancel", {"progressId": started["progressId"]})
    client.request("cancel", {"progressId": "no such thing"})
    assert client.move("next")["reason"] == "step"


def test_moving_back_reports_no_percentage(client: Client, loop: Path) -> None:
    start(client, loop)
    client.request("continue", {"threadId": 1})
    client.expect_event("progressUpdate")
    client.request("pause", {"threadId": 1})
    client.expect_stop("pause")
    client.request("reverseContinue", {"threadId": 1})
    started = client.expect_event("progressStart")
    assert "percentage" not in started
    client.request("cancel", {"progressId": started["progressId"]})
    client.expect_event("stopped")
    ended_once(client)


def test_a_long_op_is_reported_and_its_failure_ends_the_progress(client: Client, tmp_path: Path) -> None:
    start(client, straight(tmp_path, 1, "progress.Long"), opLibrary=["ops.py"])
    client.request("continue", {"threadId": 1})
    client.expect_event("progressStart")
    client.expect_event("progressEnd")
    client.expect_stop("exception")
    ended_once(client)


@pytest.mark.parametrize("command", ["disconnect", "terminate"])
def test_the_end_of_a_session_ends_the_progress(client: Client, loop: Path, command: str) -> None:
    start(client, loop)
    client.request("continue", {"threadId": 1})
    client.expect_event("progressStart")
    client.request(command)
    client.expect_event("progressEnd")
    if command == "terminate":
        client.expect_event("terminated")
    ended_once(client)


def test_a_client_without_progress_support_gets_no_reports(client: Client, loop: Path) -> None:
    client.start(loop, inputs={"x": "ones"})
    client.request("continue", {"threadId": 1})
    time.sleep(1.2)
    client.request("pause", {"threadId": 1})
    client.expect_stop("pause")
    assert events(client) == []


def test_a_long_launch_is_reported_and_can_be_cancelled(client: Client, tmp_path: Path) -> None:
    model = straight(tmp_path, 2, "progress.Wait")
    slow = tmp_path / "slow.py"
    wait = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
    slow.write_text(wait + SLOW.replace("progress.", "other."))
    client.request("initialize", {"adapterID": "nncdbg", **FLAGS})
    options = {"program": str(model), "inputs": {"x": "ones"}, "stopOnEntry": True}
    seq = client.send("launch", {**options, "opLibrary": ["slow.py", "ops.py"]})
    started = client.expect_event("progressStart")
    assert (started["title"], started["requestId"]) == ("Loading the program", seq)
    client.request("cancel", {"progressId": started["progressId"]})
    (tmp_path / "go").touch()
    response = client.expect_response(seq)
    assert (response["success"], response["message"]) == (False, "cancelled")
    client.expect_event("progressEnd")
    ended_once(client)
    # The cancelled launch leaves no state, and the next one works.
    client.request("launch", {**options, "opLibrary": ["ops.py"]})
    client.expect_event("initialized")
    client.request("configurationDone")
    client.expect_stop("entry")
