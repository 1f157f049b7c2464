"""Steps forward, into, out and back; pause, cancellation and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dap_server.client import Client, Message
from tests.dap_server.conftest import EXAMPLES

FIRST_STEPS = EXAMPLES / "first_steps.nnc"

FOREVER = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  while @spin (%s: f32[4] = %x) {
    %a: f32[4] = Mul(%s, 0.5)
    %b: f32[4] = Add(%a, 1.0)
    next %s = %b
  } -> (%y: f32[4] = %s)
  return %y
}
"""


BACK = ("stepBack", "reverseContinue", "nncdbg/reverseStepIn", "nncdbg/reverseStepOut")


def line(client: Client) -> int:
    """Return the line of the innermost frame."""
    found: int = client.top_frame()["line"]
    return found


def names(client: Client) -> list[str]:
    return [frame["name"] for frame in client.request("stackTrace", {"threadId": 1})["stackFrames"]]


def forever(folder: Path) -> Path:
    path = folder / "forever.nnc"
    path.write_text(FOREVER, encoding="utf-8")
    return path


def test_steps_forward_and_back_over_layers_loops_and_branches(client: Client) -> None:
    client.start(FIRST_STEPS)
    assert client.request("threads") == {"threads": [{"id": 1, "name": "main"}]}
    walk: list[tuple[str, dict[str, Any], int]] = [
        ("next", {}, 11),  # over @layer
        ("stepBack", {}, 10),
        ("stepIn", {}, 33),
        ("next", {"granularity": "line"}, 34),
        ("stepBack", {}, 33),
        ("stepBack", {}, 10),  # out of it, from its first statement
        ("stepIn", {}, 33),
        ("stepOut", {}, 11),
        ("nncdbg/reverseStepIn", {}, 36),  # the last statement executed was that layer's return
        ("nncdbg/reverseStepOut", {}, 10),
        ("next", {"singleThread": True}, 11),
        ("next", {}, 12),
        ("stepIn", {}, 13),
        ("next", {"granularity": "statement"}, 14),
        ("next", {}, 15),
        ("next", {}, 16),
        ("next", {}, 17),
        ("next", {}, 18),
        ("next", {}, 19),
        ("next", {}, 13),  # the next iteration
        ("stepBack", {}, 19),  # back across the iterations
        ("next", {}, 13),
        ("nncdbg/reverseStepOut", {}, 12),  # out of the loop
        ("next", {}, 21),
        ("stepBack", {}, 12),
        ("next", {}, 21),
        ("next", {}, 22),
        ("stepIn", {}, 23),  # the branch
        ("stepBack", {}, 22),
        ("stepIn", {}, 23),
        ("stepOut", {}, 28),
        ("reverseContinue", {}, 10),
    ]
    for number, (command, arguments, expected) in enumerate(walk):
        reason = "entry" if expected == 10 and command in BACK else "step"
        client.move(command, reason, **arguments)
        assert line(client) == expected, f"{number}: {command}"
    for command in BACK:
        assert "this is the start of the program" in client.refused(command, {"threadId": 1})
    for command in ("next", "stepBack", "continue", "goto"):
        message = client.refused(command, {"threadId": 7, "targetId": 1})
        assert message == "there is no thread 7 (use thread 1)"
    assert line(client) == 10


def test_instructions_are_the_statements_of_micro_programs(client: Client) -> None:
    client.start(FIRST_STEPS)
    client.move("stepIn")
    client.move("next", granularity="instruction")
    assert names(client)[:2] == ["the micro program of ReduceMean", "@layer"]
    client.move("stepOut")
    assert line(client) == 34
    client.move("next", granularity="instruction")  # Sub has none: a plain step
    assert line(client) == 35
    client.move("stepOut")
    client.move("next")
    client.move("stepIn")
    assert line(client) == 13
    client.move("next", granularity="instruction")
    softmax = client.top_frame()
    assert softmax["source"]["name"] == "Softmax.nnc"
    assert softmax["source"]["sourceReference"] > 0
    first = softmax["line"]
    client.move("next", granularity="instruction")
    assert line(client) == first + 1
    client.move("stepBack", granularity="instruction")
    assert line(client) == first
    client.move("stepOut")
    assert line(client) == 14
    client.move("stepBack", granularity="instruction")
    assert client.top_frame()["source"]["name"] == "Softmax.nnc"
    client.move("stepOut")
    client.move("stepBack")
    assert line(client) == 13
    client.move("next")
    assert line(client) == 14
    client.move("stepBack", granularity="instruction")  # this time it did not run as its micro program
    assert line(client) == 13
    client.move("stepIn", granularity="instruction")
    assert client.top_frame()["source"] == softmax["source"]


def test_a_frame_is_restarted_where_it_was_entered(client: Client) -> None:
    client.start(FIRST_STEPS)
    client.request("setBreakpoints", {"source": {"path": str(FIRST_STEPS)}, "breakpoints": [{"line": 17}]})
    client.move("continue", "breakpoint")
    client.move("continue", "breakpoint")
    frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    client.request("restartFrame", {"frameId": frames[0]["id"]})
    client.expect_stop("restart")
    assert line(client) == 13  # the first iteration
    assert names(client)[0].endswith("#0")
    client.request("restartFrame", {"frameId": frames[1]["id"]})
    client.expect_stop("restart")
    assert line(client) == 10
    assert "the frame no longer exists" in client.refused("restartFrame", {"frameId": frames[0]["id"]})
    client.move("continue", "breakpoint")
    assert line(client) == 17


def test_a_move_outside_the_protocol_sends_continued(client: Client) -> None:
    client.start(FIRST_STEPS)
    client.move("next")
    client.none_of("continued")
    client.move("nncdbg/reverseStepIn")
    client.expect_event("continued", threadId=1, allThreadsContinued=True)
    client.move("stepBack")
    client.none_of("continued")


def test_an_endless_run_can_be_paused_and_continued(client: Client, tmp_path: Path) -> None:
    client.start(forever(tmp_path))
    assert client.request("pause", {"threadId": 1}) == {}  # already stopped: no effect
    client.request("continue", {"threadId": 1})
    assert "the program is running" in client.refused("next", {"threadId": 1})
    client.request("pause", {"threadId": 1})
    client.expect_stop("pause")
    before = int(names(client)[0].rpartition("#")[2])
    client.request("pause", {"threadId": 1})
    client.move("next")
    client.request("continue", {"threadId": 1})
    client.request("pause", {"threadId": 1})
    client.expect_stop("pause")
    client.none_of("stopped")
    assert int(names(client)[0].rpartition("#")[2]) >= before
    client.request("reverseContinue", {"threadId": 1})
    client.request("pause", {"threadId": 1})
    client.wait_for(lambda message: message.get("event") == "stopped")


def test_terminating_the_thread_ends_the_program(client: Client, tmp_path: Path) -> None:
    client.start(forever(tmp_path))
    client.request("continue", {"threadId": 1})
    assert "`threadIds` is empty" in client.refused("terminateThreads", {})
    assert "there is no thread 2" in client.refused("terminateThreads", {"threadIds": [1, 2]})
    client.request("terminateThreads", {"threadIds": [1]})
    client.expect_event("thread", reason="started")
    client.expect_event("thread", reason="exited")
    client.expect_event("terminated")


def test_from_the_stop_at_the_end_the_program_can_step_back_or_end(client: Client) -> None:
    client.start(FIRST_STEPS, stopOnExit=True)
    client.move("continue", "exit")
    client.move("stepBack")
    assert line(client) == 29
    client.move("next", "exit")
    client.move("next", "exit")  # a further step has no effect
    client.request("continue", {"threadId": 1})
    client.expect_event("terminated")
    client.request("stepIn", {"threadId": 1})  # sent before the client has received the end


def test_steps_that_arrive_faster_than_stops_are_all_made(client: Client) -> None:
    client.start(FIRST_STEPS)
    moves = ["stepIn"] * 12 + ["stepBack"] * 4
    lines = [client.move(command) and line(client) for command in moves]
    client.request("restart")
    client.expect_stop("entry")
    sent = [client.send(command, {"threadId": 1}) for command in moves]
    assert all(client.expect_response(seq)["success"] for seq in sent)
    for _ in sent:
        client.expect_stop("step")
    assert line(client) == lines[-1]


def test_steps_beyond_the_end_have_no_effect(client: Client) -> None:
    client.start(EXAMPLES / "nan_softmax.nnc", stopOnExit=True)
    sent = [client.send("next", {"threadId": 1}) for _ in range(12)]
    assert all(client.expect_response(seq)["success"] for seq in sent)
    stops = [client.expect_event("stopped")["reason"] for _ in sent]
    assert stops == ["step"] * 4 + ["exit"] * 8


def test_a_pause_drops_the_steps_that_wait(client: Client, tmp_path: Path) -> None:
    client.start(forever(tmp_path))
    sent = [client.send("next", {"threadId": 1}) for _ in range(3)]
    assert client.expect_response(sent[0])["success"]
    client.request("setFunctionBreakpoints", {"breakpoints": []})  # served while the step runs
    client.request("pause", {"threadId": 1})
    client.expect_stop("pause")
    assert all(client.expect_response(seq)["success"] for seq in sent[1:])
    client.request("loadedSources")
    client.none_of("stopped")


def test_cancelling_an_unknown_request_has_no_effect(client: Client, tmp_path: Path) -> None:
    assert client.request("cancel", {"requestId": 999}) == {}
    client.start(forever(tmp_path))
    assert client.request("cancel", {"requestId": 999}) == {}
    assert client.request("cancel", {"progressId": "none"}) == {}
    assert client.request("cancel") == {}
    done = client.send("stackTrace", {"threadId": 1})
    assert client.expect_response(done)["success"]
    client.request("cancel", {"requestId": done})
    client.move("stepIn")


def slow_page(client: Client, folder: Path) -> Message:
    """Stop in a program of 20,000 statements and return the arguments of a slow disassembly."""
    path = folder / "long.nnc"
    lines = [f"  %v{number + 1}: f32[] = Add(%v{number}, 1.0)" for number in range(20_000)]
    text = "\n".join(["graph @main(%v0: f32[]) -> (%v20000: f32[]) {", *lines, "  return %v20000", "}", ""])
    path.write_text(text, encoding="utf-8")
    client.start(path)
    reference = client.top_frame()["instructionPointerReference"]
    return {"memoryReference": reference, "instructionCount": 20_000}


def cancelled(client: Client, seq: int) -> bool:
    answer = client.expect_response(seq)
    assert answer["success"] or answer["message"] == "cancelled"
    return not answer["success"]


def test_running_and_queued_requests_can_be_cancelled(client: Client, tmp_path: Path) -> None:
    arguments = slow_page(client, tmp_path)
    running = client.send("disassemble", arguments)
    waiting = client.send("disassemble", arguments)
    kept = client.send("threads")
    client.request("cancel", {"requestId": waiting})
    client.request("cancel", {"requestId": running})
    assert cancelled(client, waiting)
    assert cancelled(client, running)
    assert client.expect_response(kept)["success"]
    order = [m["request_seq"] for m in client.messages if m["type"] == "response"][-5:]
    assert order.index(waiting) < order.index(running)  # the queued request is answered without a wait


def test_a_step_cancels_pending_reads(client: Client, tmp_path: Path) -> None:
    arguments = slow_page(client, tmp_path)
    reads = [client.send("disassemble", arguments) for _ in range(3)]
    typed = client.send("evaluate", {"expression": "p %v0", "context": "repl"})
    client.move("next")
    assert [cancelled(client, seq) for seq in reads] == [True] * 3
    assert client.expect_response(typed)["success"]  # a typed command is not cancelled
    assert line(client) == 3


@pytest.mark.parametrize("allocator", ["debug", "arena"])
def test_step_in_targets_are_listed_and_entered(client: Client, allocator: str) -> None:
    client.start(FIRST_STEPS, allocator=allocator)

    def targets() -> dict[str, int]:
        frame = client.top_frame()
        found = client.request("stepInTargets", {"frameId": frame["id"]})["targets"]
        assert all(each["line"] == frame["line"] for each in found)
        return {each["label"]: each["id"] for each in found}

    entry = client.top_frame()["id"]
    layer = targets()
    assert list(layer) == ["@layer"]
    client.move("stepIn", targetId=layer["@layer"])
    assert line(client) == 33
    assert client.request("stepInTargets", {"frameId": entry})["targets"] == []
    assert client.request("stepInTargets", {"frameId": 424242})["targets"] == []
    assert "unknown or expired target" in client.refused(
        "stepIn", {"threadId": 1, "targetId": layer["@layer"]}
    )
    client.move("stepOut")
    client.move("next")
    assert list(targets()) == ["loop @sharpen"]
    client.move("stepIn", targetId=targets()["loop @sharpen"])
    micro = targets()
    assert list(micro)[0] == "micro program of Softmax"
    client.move("stepIn", targetId=micro["micro program of Softmax"])
    assert client.top_frame()["source"]["name"] == "Softmax.nnc"
    client.move("stepOut")
    client.move("stepBack")
    assert targets() == micro
