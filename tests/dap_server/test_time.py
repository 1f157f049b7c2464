"""Going to a line, backward through history and forward by running."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dap_server.client import Client, Message
from tests.dap_server.conftest import EXAMPLES
from tests.dap_server.test_moving import FIRST_STEPS, line

BACK, FORWARD = "back to when it last ran", "forward, running up to it"


def targets(client: Client, wanted: int, path: Path = FIRST_STEPS) -> list[Message]:
    found: list[Message] = client.request("gotoTargets", {"source": {"path": str(path)}, "line": wanted})[
        "targets"
    ]
    return found


def directions(found: list[Message]) -> list[tuple[int, str]]:
    """Return (line, direction) of each target."""
    return [(each["line"], each["label"].split(", ", 1)[1].split(":")[0]) for each in found]


def go(client: Client, target: Message) -> int:
    client.request("goto", {"threadId": 1, "targetId": target["id"]})
    client.expect_stop("goto")
    return line(client)


def iteration(client: Client) -> str:
    name: str = client.top_frame()["name"]
    return name.rpartition("#")[2]


@pytest.mark.parametrize("allocator", ["debug", "arena"])
def test_goto_reaches_lines_before_and_ahead(client: Client, allocator: str) -> None:
    client.start(FIRST_STEPS, allocator=allocator)
    assert directions(targets(client, 10)) == [(10, FORWARD)]  # it has not run, and might once more
    client.move("next")
    assert directions(targets(client, 8)) == [
        (10, BACK),
        (10, FORWARD),
    ]  # a constant's line: the statement after it
    assert go(client, targets(client, 10)[0]) == 10
    assert directions(targets(client, 34)) == [(34, FORWARD)]  # in a layer that is not compiled yet
    client.request("setBreakpoints", {"source": {"path": str(FIRST_STEPS)}, "breakpoints": [{"line": 33}]})
    assert go(client, targets(client, 34)[0]) == 34  # no breakpoint stops it on the way
    assert go(client, targets(client, 28)[0]) == 28
    # Into finished blocks, to the last time before their statement ran.
    inside = targets(client, 17)
    assert directions(inside) == [(17, BACK), (17, FORWARD)]
    assert go(client, inside[0]) == 17
    last = int(iteration(client))
    assert last > 0
    # In the loop: the iteration before, or the next one.
    again = targets(client, 17)
    assert directions(again) == [(17, BACK), (17, FORWARD)]
    assert go(client, again[0]) == 17
    assert int(iteration(client)) == last - 1
    assert go(client, again[1]) == 17
    assert int(iteration(client)) == last
    ahead = targets(client, 18)
    # Ahead in this iteration, and run in the previous one.
    assert directions(ahead) == [(18, FORWARD), (18, BACK)]
    assert go(client, ahead[0]) == 18
    assert int(iteration(client)) == last
    assert go(client, targets(client, 35)[0]) == 35
    assert go(client, targets(client, 10)[0]) == 10


def test_an_unreached_line_leaves_the_program_in_place(client: Client) -> None:
    client.start(FIRST_STEPS)
    assert go(client, targets(client, 28)[0]) == 28
    taken = [number for number in (23, 26) if len(targets(client, number)) == 2]
    assert len(taken) == 1
    other = ({23, 26} - set(taken)).pop()
    (forward,) = targets(client, other)
    client.request("goto", {"threadId": 1, "targetId": forward["id"]})
    client.wait_for(lambda m: m.get("event") == "stopped")
    output = client.wait_for(lambda m: m.get("event") == "output" and m["body"]["category"] == "important")
    assert "the program ends before it reaches this statement" in output["body"]["output"]
    assert line(client) == 28


def test_goto_works_in_a_micro_program(client: Client) -> None:
    client.start(FIRST_STEPS)
    go(client, targets(client, 13)[0])
    client.move("next", granularity="instruction")
    client.move("next")
    client.move("next")
    source = client.top_frame()["source"]
    here = line(client)
    found = client.request("gotoTargets", {"source": source, "line": here - 1})["targets"]
    assert go(client, found[0]) == here - 1
    found = client.request("gotoTargets", {"source": source, "line": here + 1})["targets"]
    assert directions(found) == [(here + 1, FORWARD)]
    assert go(client, found[0]) == here + 1
    client.move("stepOut")
    found = client.request("gotoTargets", {"source": source, "line": here})["targets"]
    assert directions(found) == [(here, BACK)]  # it is entered only by a step
    assert go(client, found[0]) == here


def test_invalid_targets_are_refused(client: Client, tmp_path: Path) -> None:
    client.start(FIRST_STEPS)
    assert targets(client, 4000) == []
    assert "not part of the program" in client.refused(
        "gotoTargets", {"source": {"path": str(tmp_path / "other.py")}, "line": 3}
    )
    assert "unknown or expired target" in client.refused("goto", {"threadId": 1, "targetId": 424242})
    (target,) = targets(client, 28)
    go(client, target)
    assert "there is no thread 2" in client.refused("goto", {"threadId": 2, "targetId": target["id"]})
    back = targets(client, 10)[0]
    go(client, back)
    assert "has not run yet" in client.refused("goto", {"threadId": 1, "targetId": back["id"]})


def test_target_lines_start_at_0_on_request(client: Client) -> None:
    client.launch(EXAMPLES / "refine_loop.nnc", initialize={"linesStartAt1": False}, stopOnEntry=True)
    client.request("configurationDone")
    client.expect_stop("entry")
    (found,) = targets(client, 14, EXAMPLES / "refine_loop.nnc")
    assert found["line"] == 14
    assert "%change" in found["label"]
    assert go(client, found) == 14
