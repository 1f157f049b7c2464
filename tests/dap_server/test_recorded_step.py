"""An editor opens a recorded PyTorch step, and steps through its phases, forward and back."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.dap_server.client import Client


@pytest.fixture
def saved_step(tmp_path: Path) -> Path:
    torch: Any = pytest.importorskip("torch", reason="needs torch")
    import nncdbg.torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(2, 3)
    with nncdbg.torch.record(model, optimizer) as step:
        model(batch).sum().backward()
        optimizer.step()
    step.save(tmp_path / "step7", title="recorded step 7 of train.py")
    return tmp_path / "step7"


def test_a_recorded_step_is_stepped_into_its_modules_and_back(client: Client, saved_step: Path) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    client.request("launch", {"program": str(saved_step), "stopOnEntry": True, "view": "graph"})
    assert client.expect_event("output")["output"].strip() == "recorded step 7 of train.py"
    client.expect_event("initialized")
    client.request("configurationDone")
    client.expect_stop("entry")

    client.request("stepIn", {"threadId": 1})
    client.expect_stop("step")
    client.request("stepIn", {"threadId": 1})
    client.expect_stop("step")
    assert graphs(client) == ["@0", "@forward", "@main"]
    shown = values(client)
    assert shown["%input"] == "f32[2,3] [[1. 1. 1.] [1. 1. 1.]]"
    assert shown["%0.weight"].startswith("f32[4,3] min ")
    client.request("stepOut", {"threadId": 1})
    client.expect_stop("step")
    assert graphs(client) == ["@forward", "@main"]
    client.request("stepBack", {"threadId": 1})
    client.expect_stop("step")
    client.request("continue", {"threadId": 1})
    client.expect_event("terminated")


def test_the_stop_at_a_nan_names_the_infinity_that_it_originates_from(client: Client, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="needs torch")
    import nncdbg.torch

    points = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    with nncdbg.torch.record() as step:
        points.square().sum(dim=-1).sqrt().mean().backward()
    step.save(tmp_path / "step1")
    client.request("initialize", {"adapterID": "nncdbg"})
    client.request("launch", {"program": str(tmp_path / "step1"), "stopOnEntry": False})
    client.expect_event("initialized")
    client.request("setExceptionBreakpoints", {"filters": ["nan"]})
    client.request("configurationDone")
    client.expect_stop("exception")
    info = client.request("exceptionInfo", {"threadId": 1})
    details = info["details"]["stackTrace"]
    assert "NaN originates here" in details
    assert "Inf originates here" in details
    assert "square root at zero in backward" in info["description"]
    assert "loc(" not in details, "the lines of the script are frames"


SCRIPT = """import torch
import nncdbg.torch


def activation(x):
    h = torch.tanh(x)
    return h * 2


w = torch.ones(3, requires_grad=True)
with nncdbg.torch.record() as step:
    y = activation(w)
    loss = y.sum()
    loss.backward()
step.save("step")
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that has saved a recorded step beside it."""
    pytest.importorskip("torch", reason="needs torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("train.py")
    return tmp_path / "train.py"


def opened(client: Client, source: Path) -> None:
    folder = str(source.parent)
    client.launch(f"{folder}/step", cwd=folder, stopOnEntry=True)


def innermost(client: Client) -> dict[str, Any]:
    frame: dict[str, Any] = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]
    return frame


def test_the_arrow_is_in_the_script_and_steps_go_by_its_lines(client: Client, source: Path) -> None:
    opened(client, source)
    client.request("configurationDone")
    client.expect_stop("entry")
    frame = innermost(client)
    assert (frame["name"], frame["line"], frame["source"]["path"]) == ("<module>", 12, str(source))

    def move(request: str, **arguments: Any) -> tuple[str, int]:
        client.request(request, {"threadId": 1, **arguments})
        client.expect_stop("step")
        first = innermost(client)
        return first["name"], first["line"]

    assert move("stepIn") == ("activation", 6)
    assert move("next") == ("activation", 7)
    assert move("stepOut") == ("<module>", 13)
    assert move("next") == ("<module>", 14)
    assert move("stepIn") == ("backward of <module>", 13)
    assert move("next") == ("backward of <module>", 12)
    assert move("stepIn") == ("backward of activation", 7)
    assert move("stepBack") == ("backward of <module>", 12)
    assert move("stepBack") == ("backward of <module>", 13)
    assert move("nncdbg/reverseStepIn") == ("<module>", 14)
    assert move("stepIn", granularity="instruction")[0].startswith("backward")


def test_names_of_the_script_are_variables_and_expressions(client: Client, source: Path) -> None:
    opened(client, source)
    found = client.request(
        "setBreakpoints", {"source": {"path": str(source)}, "breakpoints": [{"line": 7}, {"line": 12}]}
    )["breakpoints"]
    assert [(each["verified"], each["line"]) for each in found] == [(True, 7), (True, 12)]
    client.request("configurationDone")
    client.expect_stop("entry")
    client.request("continue", {"threadId": 1})
    client.expect_stop("breakpoint")
    frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    assert (frames[0]["name"], frames[0]["line"]) == ("activation", 7)
    names = client.request("scopes", {"frameId": frames[0]["id"]})["scopes"][0]
    assert names["name"] == "Names"
    shown = {each["name"]: each["value"] for each in _children(client, names["variablesReference"])}
    assert shown == {
        "x": "f32[3] [1. 1. 1.]",
        "h": "f32[3] [0.7616 0.7616 0.7616]",
    }

    def hover(text: str, frame: int = 0) -> str:
        arguments = {"expression": text, "frameId": frames[frame]["id"], "context": "hover"}
        return str(client.request("evaluate", arguments)["result"])

    assert hover("h") == "f32[3] [0.7616 0.7616 0.7616]"
    assert hover("h.shape") == "(3,)"
    assert hover("w", 1) == "f32[3] [1. 1. 1.]"
    shown = client.request(
        "nncdbg/lines",
        {"start": 1, "end": 14, "frameId": frames[0]["id"], "source": {"path": str(source)}},
    )["lines"]
    assert shown == [
        {"line": 6, "text": "x [1. 1. 1.], h [0.7616 0.7616 0.7616]"},
        {"line": 7, "text": "h [0.7616 0.7616 0.7616]"},
    ]
    refusal = client.refused("evaluate", {"expression": "h", "frameId": frames[1]["id"]})
    assert "no value or function `h`" in refusal
    reference = names["variablesReference"]
    client.request("setVariable", {"variablesReference": reference, "name": "h", "value": "2"})
    assert hover("h") == "f32[3] [2. 2. 2.]"


def test_conditions_and_messages_read_names_of_the_script(client: Client, source: Path) -> None:
    opened(client, source)
    points = [
        {"line": 7, "logMessage": "h is {h.shape}, {max(h) < 1}"},
        {"line": 13, "condition": "y.max() > 1"},
        {"line": 14, "condition": "loss < 0"},
        {"line": 7, "condition": "y > 0"},
        {"line": 7, "condition": "h.max()", "logMessage": "{y}"},
    ]
    found = client.request("setBreakpoints", {"source": {"path": str(source)}, "breakpoints": points})
    refused = [each.get("message", "") for each in found["breakpoints"] if not each["verified"]]
    assert [each.splitlines()[0] for each in refused] == ["there is no value or function `y`"] * 2
    client.request("configurationDone")
    client.expect_stop("entry")
    client.request("continue", {"threadId": 1})
    client.wait_for(lambda message: message.get("body", {}).get("output") == "h is (3,), True\n")
    client.expect_stop("breakpoint")
    assert innermost(client)["line"] == 13
    client.request("continue", {"threadId": 1})
    client.expect_event("terminated")


def test_a_data_breakpoint_stops_where_a_line_binds_the_name(client: Client, source: Path) -> None:
    opened(client, source)
    client.request("configurationDone")
    client.expect_stop("entry")
    client.request("stepIn", {"threadId": 1})
    client.expect_stop("step")
    frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    scope = client.request("scopes", {"frameId": frames[0]["id"]})["scopes"][0]
    by_variable = client.request(
        "dataBreakpointInfo", {"name": "x", "variablesReference": scope["variablesReference"]}
    )
    assert by_variable["description"] == "a line of activation binds x"
    by_name = client.request("dataBreakpointInfo", {"name": "w", "frameId": frames[1]["id"]})
    assert by_name["dataId"] == "w in <module> (train.py)"
    wanted = [
        {"dataId": each}
        for each in ("y in <module> (train.py)", "h in activation (train.py)", "q in activation (train.py)")
    ]
    found = client.request("setDataBreakpoints", {"breakpoints": wanted})["breakpoints"]
    assert [each["verified"] for each in found] == [True, True, False]
    assert "no line binds `q` in activation" in found[2]["message"]
    for line in (7, 13):
        client.request("continue", {"threadId": 1})
        client.expect_stop("data breakpoint")
        assert innermost(client)["line"] == line
    client.request("continue", {"threadId": 1})
    client.expect_event("terminated")


def test_a_file_that_has_changed_is_shown_as_it_was_recorded(client: Client, source: Path) -> None:
    source.write_text("# changed\n" + SCRIPT)
    opened(client, source)
    client.request("configurationDone")
    client.expect_stop("entry")
    shown = innermost(client)["source"]
    assert "path" not in shown
    content = client.request("source", {"source": shown, "sourceReference": shown["sourceReference"]})
    assert content["content"] == SCRIPT
    found = client.request("setBreakpoints", {"source": shown, "breakpoints": [{"line": 7}]})["breakpoints"]
    assert found[0]["verified"]
    client.request("continue", {"threadId": 1})
    client.expect_stop("breakpoint")


def test_the_console_moves_by_lines_too(client: Client, source: Path) -> None:
    opened(client, source)
    client.request("configurationDone")
    client.expect_stop("entry")
    client.request("evaluate", {"expression": "step", "context": "repl"})
    client.wait_for(lambda message: "in activation" in str(message.get("body", {}).get("output")))
    client.expect_event("stopped")
    frame = innermost(client)
    assert (frame["name"], frame["line"]) == ("activation", 6)


def test_the_console_reports_a_number_that_python_would_not_have_read(client: Client, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="needs torch")
    import nncdbg.torch

    values = torch.ones(2)
    with nncdbg.torch.record() as step:
        if values.sum().item() > 0:
            values * 2
    step.save(tmp_path / "step")
    client.request("initialize", {"adapterID": "nncdbg"})
    client.request("launch", {"program": str(tmp_path / "step"), "inputs": {"input": [5.0, 2.0]}})
    client.expect_event("initialized")
    client.request("configurationDone")
    output = client.wait_for(lambda message: "would read" in str(message.get("body", {}).get("output")))
    assert "Python read 2.0 from %sum" in output["body"]["output"]
    assert "would read 7.0 now" in output["body"]["output"]
    assert output["body"]["source"]["path"].endswith(".nncdbg/program.nnc")
    client.expect_event("terminated")


def graphs(client: Client) -> list[str]:
    """Return the graphs on the stack, innermost first; other frames are the user's source lines."""
    frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    return [frame["name"].split()[0] for frame in frames if frame["name"].startswith("@")]


def values(client: Client) -> dict[str, str]:
    """Return the values of all scopes of the innermost frame, after reading their children and memory."""
    frame = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]["id"]
    found: dict[str, str] = {}
    for scope in client.request("scopes", {"frameId": frame})["scopes"]:
        for each in _children(client, scope["variablesReference"]):
            found[each["name"]] = each["value"]
            _children(client, each["variablesReference"])
            if "memoryReference" in each:
                client.request("readMemory", {"memoryReference": each["memoryReference"], "count": 8})
    return found


def _children(client: Client, reference: int) -> list[dict[str, Any]]:
    if not reference:
        return []
    children: list[dict[str, Any]] = client.request("variables", {"variablesReference": reference})[
        "variables"
    ]
    return children
