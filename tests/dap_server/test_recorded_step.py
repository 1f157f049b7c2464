"""An editor opens a recorded PyTorch step, and steps through its phases, forward and back."""

from __future__ import annotations

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
    client.request("launch", {"program": str(saved_step), "stopOnEntry": True})
    assert client.expect_event("output")["output"].strip() == "recorded step 7 of train.py"
    client.expect_event("initialized")
    client.request("configurationDone")
    client.expect_stop("entry")

    client.request("stepIn", {"threadId": 1})
    client.expect_stop("step")
    client.request("stepIn", {"threadId": 1})
    client.expect_stop("step")
    assert graphs(client) == ["@0", "@forward", "@main"]
    client.request("stepOut", {"threadId": 1})
    client.expect_stop("step")
    assert graphs(client) == ["@forward", "@main"]
    client.request("stepBack", {"threadId": 1})
    client.expect_stop("step")
    client.request("continue", {"threadId": 1})
    client.expect_event("terminated")


def graphs(client: Client) -> list[str]:
    """Return the graphs on the stack, innermost first; other frames are the user's source lines."""
    frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    return [frame["name"].split()[0] for frame in frames if frame["name"].startswith("@")]
