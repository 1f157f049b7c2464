"""A recorded step in Neovim and Emacs: the requests that their clients send, with the arguments of these."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.dap_server.client import Client
from tests.dap_server.test_recorded_step import SCRIPT


@dataclass(frozen=True)
class Editor:
    """The arguments of `initialize`, and those that each step has."""

    initialize: dict[str, Any]
    step: dict[str, Any]


EDITORS = {
    # nvim-dap of 20 May 2026.
    "neovim": Editor(
        {
            "clientID": "neovim",
            "clientName": "neovim",
            "adapterID": "nvim-dap",
            "pathFormat": "path",
            "columnsStartAt1": True,
            "linesStartAt1": True,
            "supportsRunInTerminalRequest": True,
            "supportsVariableType": True,
            "supportsProgressReporting": True,
            "supportsStartDebuggingRequest": True,
            "locale": "en_US",
        },
        {"granularity": "statement"},
    ),
    # dape 0.27.1.
    "dape": Editor(
        {
            "clientID": "dape",
            "adapterID": "nncdbg",
            "pathFormat": "path",
            "linesStartAt1": True,
            "columnsStartAt1": True,
            "supportsRunInTerminalRequest": True,
            "supportsArgsCanBeInterpretedByShell": True,
            "supportsProgressReporting": True,
            "supportsStartDebuggingRequest": True,
        },
        {"granularity": "line"},
    ),
    # dap-mode 0.7.
    "dap-mode": Editor(
        {
            "clientID": "vscode",
            "clientName": "Visual Studio Code",
            "adapterID": "nncdbg",
            "pathFormat": "path",
            "linesStartAt1": True,
            "columnsStartAt1": True,
            "supportsVariableType": True,
            "supportsVariablePaging": True,
            "supportsRunInTerminalRequest": True,
            "locale": "en-us",
        },
        {},
    ),
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that has saved a recorded step beside it."""
    pytest.importorskip("torch", reason="needs torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("train.py")
    return tmp_path / "train.py"


@pytest.mark.parametrize("name", EDITORS)
def test_a_recorded_step_is_debugged_in_its_script(client: Client, script: Path, name: str) -> None:
    editor = EDITORS[name]
    client.launch(
        script.parent / "step", initialize=editor.initialize, cwd=str(script.parent), stopOnEntry=True
    )
    found = client.request(
        "setBreakpoints",
        {
            "source": {"path": str(script), "name": "train.py"},
            "breakpoints": [
                {"line": 7, "condition": "h.max() < 1"},
                {"line": 13, "logMessage": "y {y.shape}"},
            ],
            "sourceModified": False,
            "lines": [7, 13],
        },
    )["breakpoints"]
    assert [(each["verified"], each["line"]) for each in found] == [(True, 7), (True, 13)]
    client.request("setExceptionBreakpoints", {"filters": []})
    client.request("configurationDone")
    client.expect_stop("entry")

    def place() -> tuple[str, int, str]:
        frame = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]
        return frame["name"], frame["line"], frame["source"]["path"]

    def move(request: str, reason: str = "step") -> tuple[str, int, str]:
        client.request(request, {"threadId": 1, **({} if "ontinue" in request else editor.step)})
        client.expect_stop(reason)
        return place()

    assert place() == ("<module>", 12, str(script))
    assert move("continue", "breakpoint") == ("activation", 7, str(script))
    frame = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]["id"]
    for context in ("hover", "repl", "watch"):
        answer = client.request("evaluate", {"expression": "h.shape", "context": context, "frameId": frame})
        assert answer["result"] == "(3,)"
    scopes = client.request("scopes", {"frameId": frame})["scopes"]
    assert scopes[0]["name"] == "Names"
    names = client.request("variables", {"variablesReference": scopes[0]["variablesReference"]})["variables"]
    assert {each["name"] for each in names} == {"x", "h"}
    assert move("stepBack") == ("activation", 6, str(script))
    assert move("next", "breakpoint") == ("activation", 7, str(script))
    assert move("stepOut") == ("<module>", 13, str(script))
    assert move("reverseContinue", "breakpoint") == ("activation", 7, str(script))
    client.request("continue", {"threadId": 1})
    client.wait_for(lambda message: message.get("body", {}).get("output") == "y (3,)\n")
    client.expect_event("terminated")
    client.request("disconnect", {"restart": False, "terminateDebuggee": True})
