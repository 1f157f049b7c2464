"""Disassembly: statements as instructions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dap_server.client import Client, Message
from tests.dap_server.test_moving import FIRST_STEPS


def listed(client: Client, reference: str, count: int, **arguments: Any) -> list[Message]:
    found: list[Message] = client.request(
        "disassemble", {"memoryReference": reference, "instructionCount": count, **arguments}
    )["instructions"]
    assert len(found) == count
    addresses = [int(each["address"], 16) for each in found]
    assert addresses == sorted(set(addresses))
    assert all(address >= 0 for address in addresses)
    return found


def rows(found: list[Message]) -> list[tuple[int, str]]:
    """Return (line, instruction) of the statements."""
    valid = [each for each in found if each.get("presentationHint") != "invalid"]
    return [(each["line"], each["instruction"]) for each in valid]


def test_statements_of_a_block_around_the_pc_are_listed(client: Client) -> None:
    client.start(FIRST_STEPS)
    client.move("next")
    frame = client.top_frame()
    here = frame["instructionPointerReference"]
    around = listed(client, here, 12, instructionOffset=-3)
    assert [each.get("presentationHint") == "invalid" for each in around] == [True] * 2 + [False] * 7 + [
        True
    ] * 3
    assert rows(around) == [
        (10, "%h = @layer(%x) : f32[2,4]"),
        (11, "%scores = MatMul(%h, %w) : f32[2,3]  ## Unsqueeze, Unsqueeze, Mul, ReduceSum"),
        (12, "while @sharpen (%s: f32[2,3] = %scores, %taken: i64[] = 0) count %i: i64[] times %rounds {"),
        (21, "%many = Greater(%steps, 2) : bool[]"),
        (22, "if %many @soften {"),
        (28, "%probs = Softmax(%final, axis=-1) : f32[2,3]  ## ReduceMax, Sub, Exp, ReduceSum, Div"),
        (29, "return %probs, %steps"),
    ]
    by_line = {each["line"]: each for each in around if "line" in each}
    assert by_line[11]["address"] == here
    assert by_line[11]["location"]["path"] == str(FIRST_STEPS)
    assert by_line[21]["symbol"] == "numpy.greater"
    assert by_line[28]["symbol"] == "nncdbg.engine.ops.softmax.softmax"
    assert "symbol" not in by_line[12]  # executed by the machine itself
    assert rows(listed(client, here, 1, offset=1)) == rows([by_line[12]])
    assert listed(client, here, 3, instructionOffset=-(2**31)) != []
    assert listed(client, here, 0) == []


def test_blocks_of_loops_and_micro_programs_have_separate_addresses(client: Client) -> None:
    client.start(FIRST_STEPS)
    seen = [client.top_frame()["instructionPointerReference"]]
    client.move("next")
    client.move("next")
    client.move("stepIn")
    client.move("stepIn", granularity="instruction")
    frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    micro = frames[0]["instructionPointerReference"]
    found = listed(client, micro, 5)
    assert [each["instruction"].split(" = ")[1].split("(")[0] for each in found] == [
        "ReduceMax",
        "Sub",
        "Exp",
        "ReduceSum",
        "Div",
    ]
    assert found[0]["location"] == frames[0]["source"]
    assert found[0]["line"] == frames[0]["line"]
    seen += [each["instructionPointerReference"] for each in frames[:3]]
    assert len({int(each, 16) >> 20 for each in seen}) == 3
    client.move("stepOut")
    again = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    assert again[1]["instructionPointerReference"] == frames[2]["instructionPointerReference"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memoryReference": "main", "instructionCount": 3}, "'main' is not an address"),
        ({"memoryReference": "-1", "instructionCount": 3}, "'-1' is not an address"),
        ({"memoryReference": "0x10", "instructionCount": -3}, "`instructionCount` must be 0 to"),
        ({"memoryReference": "0x10", "instructionCount": 10**9}, "`instructionCount` must be 0 to"),
        ({"memoryReference": "0x10", "instructionCount": 3, "offset": -17}, "the address -1 is below 0"),
        ({"memoryReference": "0x10"}, "`instructionCount`"),
    ],
)
def test_invalid_arguments_are_refused(client: Client, arguments: Message, message: str) -> None:
    client.start(FIRST_STEPS)
    assert message in client.refused("disassemble", arguments)
    assert {each["presentationHint"] for each in listed(client, "0x10", 3)} == {"invalid"}


def test_addresses_of_the_program_are_stable_across_a_restart(client: Client) -> None:
    client.start(FIRST_STEPS)
    client.move("stepIn", granularity="instruction")
    client.move("next")
    layer = client.top_frame()["instructionPointerReference"]
    before = rows(listed(client, layer, 2))
    client.move("stepOut")
    client.move("next")
    client.move("stepIn")
    client.move("stepIn", granularity="instruction")
    micro = client.top_frame()["instructionPointerReference"]
    client.request("restart", {})
    client.expect_stop("entry")
    assert rows(listed(client, layer, 1)) == []  # the layer is not entered yet in this run
    assert rows(listed(client, micro, 1)) == []
    client.move("next")
    client.move("next")
    client.move("stepIn")
    client.move("stepIn", granularity="instruction")
    assert client.top_frame()["instructionPointerReference"] != micro
    assert rows(listed(client, layer, 2)) == before
