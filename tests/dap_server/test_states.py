"""Every request in every state: one response each, and refusals with a hint."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nncdbg.dap_server.protocol import REQUESTS
from nncdbg.dap_server.registry import HANDLERS, State
from tests.dap_server.client import Client, Message
from tests.dap_server.conftest import EXAMPLES
from tests.dap_server.conversations import conversation
from tests.dap_server.test_lifecycle import ENDLESS
from tools.request_tables import request_row

ROOT = Path(__file__).parents[2]

STATES = ("NEW", "INITIALIZED", "CONFIGURING", "RUNNING", "STOPPED", "ENDED")

# `+`: the request succeeds, `-`: it is refused.  In state STOPPED, the program is before the call of a
# layer, and has not stopped at an exception.
TABLE = """
                            NEW  INITIALIZED  CONFIGURING  RUNNING  STOPPED  ENDED
initialize                   +        -            -          -        -       -
launch                       -        +            -          -        -       -
attach                       -        -            -          -        -       -
configurationDone            -        -            +          -        -       -
disconnect                   +        +            +          +        +       +
terminate                    -        -            +          +        +       +
restart                      -        -            +          +        +       +
cancel                       +        +            +          +        +       +
setBreakpoints               -        +            +          +        +       +
setFunctionBreakpoints       -        +            +          +        +       +
setExceptionBreakpoints      -        +            +          +        +       +
setDataBreakpoints           -        +            +          +        +       +
setInstructionBreakpoints    -        +            +          +        +       +
breakpointLocations          -        -            +          +        +       +
dataBreakpointInfo           -        -            +          +        +       +
exceptionInfo                -        -            -          -        -       -
threads                      -        -            +          +        +       +
terminateThreads             -        -            -          +        +       -
pause                        -        -            +          +        +       +
continue                     -        -            -          -        +       -
next                         -        -            -          -        +       +
stepIn                       -        -            -          -        +       +
stepOut                      -        -            -          -        +       +
stepBack                     -        -            -          -        +       -
reverseContinue              -        -            -          -        +       -
nncdbg/reverseStepIn         -        -            -          -        +       -
nncdbg/reverseStepOut        -        -            -          -        +       -
restartFrame                 -        -            -          -        +       -
stepInTargets                -        -            -          -        +       -
gotoTargets                  -        -            +          -        +       +
goto                         -        -            -          -        +       -
stackTrace                   -        -            +          +        +       +
scopes                       -        -            +          +        +       +
variables                    -        -            +          +        +       +
setVariable                  -        -            +          +        +       +
setExpression                -        -            +          +        +       +
evaluate                     -        -            +          +        +       +
completions                  -        -            +          +        +       +
readMemory                   -        -            +          +        +       +
writeMemory                  -        -            +          +        +       +
disassemble                  -        -            +          +        +       +
source                       -        -            +          +        +       +
loadedSources                -        -            +          +        +       +
modules                      -        -            +          +        +       +
locations                    -        -            +          +        +       +
nncdbg/slice                 -        -            +          +        +       +
nncdbg/histogram             -        -            +          +        +       +
nncdbg/stats                 -        -            +          +        +       +
nncdbg/nonfinite             -        -            +          +        +       +
nncdbg/compare               -        -            +          +        +       +
nncdbg/explain               -        -            +          +        +       +
nncdbg/graph                 -        -            +          +        +       +
nncdbg/graphState            -        -            +          +        +       +
nncdbg/recordStep            -        -            -          -        -       -
nncdbg/counterparts          -        -            +          +        +       +
nncdbg/lines                 -        -            +          +        +       +
nncdbg/marks                 -        -            +          +        +       +
nncdbg/map                   -        -            +          +        +       +
nncdbg/nearby                -        -            +          +        +       +
nncdbg/moment                -        -            -          -        +       -
nncdbg/streams               -        -            +          +        +       +
nncdbg/timeline              -        -            +          +        +       +
"""

ROWS = {line.split()[0]: line.split()[1:] for line in TABLE.splitlines()[2:]}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The program for each state."""
    monkeypatch.chdir(tmp_path)
    endless = tmp_path / "endless.nnc"
    endless.write_text(ENDLESS, encoding="utf-8")
    first = EXAMPLES / "first_steps.nnc"
    return {"CONFIGURING": first, "RUNNING": endless, "STOPPED": first, "ENDED": first}


def bring(client: Client, state: str, programs: dict[str, Path]) -> Message:
    """Bring a session into a state, and return numbers for the arguments of requests."""
    numbers: Message = {"frame": 1000, "inputs": 1000, "location": 1, "memory": "%x", "goto": 1000}
    if state == "NEW":
        return numbers
    if state == "INITIALIZED":
        client.request("initialize", {"adapterID": "nncdbg"})
        return numbers
    flags = {"supportsMemoryReferences": True}
    client.launch(programs[state], initialize=flags, stopOnEntry=state == "STOPPED")
    frame = client.top_frame()
    value = client.variables("Outputs", frame)["%x"]
    scope = client.request("scopes", {"frameId": frame["id"]})["scopes"][1]
    target = client.request("gotoTargets", {"source": frame["source"], "line": frame["line"]})["targets"][0]
    numbers = {
        "frame": frame["id"],
        "inputs": scope["variablesReference"],
        "location": value["declarationLocationReference"],
        "memory": value["memoryReference"],
        "address": frame["instructionPointerReference"],
        "source": frame["source"],
        "goto": target["id"],
    }
    if state == "CONFIGURING":
        return numbers
    client.request("configurationDone")
    if state == "STOPPED":
        client.expect_stop("entry")
        client.move("next")
        client.move("next")
    elif state == "ENDED":
        client.expect_event("terminated")
    return numbers


def arguments_of(command: str, numbers: Message) -> Any:
    """Return valid arguments of a request."""
    source = numbers.get("source", {"path": "x.nnc"})
    thread, frame = {"threadId": 1}, {"frameId": numbers["frame"]}
    return {
        "initialize": {"adapterID": "nncdbg"},
        "launch": {"program": str(EXAMPLES / "first_steps.nnc"), "stopOnEntry": True},
        "attach": {},
        "cancel": {"requestId": 1},
        "setBreakpoints": {"source": source, "breakpoints": [{"line": 9}]},
        "setFunctionBreakpoints": {"breakpoints": [{"name": "Softmax"}]},
        "setExceptionBreakpoints": {"filters": ["nan"]},
        "setDataBreakpoints": {"breakpoints": [{"dataId": "%h"}]},
        "setInstructionBreakpoints": {"breakpoints": []},
        "breakpointLocations": {"source": source, "line": 1, "endLine": 40},
        "dataBreakpointInfo": {"name": "%h"},
        "terminateThreads": {"threadIds": [1]},
        "restartFrame": frame,
        "stepInTargets": frame,
        "gotoTargets": {"source": source, "line": 9},
        "goto": {**thread, "targetId": numbers["goto"]},
        "scopes": frame,
        "variables": {"variablesReference": numbers["inputs"]},
        "setVariable": {"variablesReference": numbers["inputs"], "name": "%x", "value": "1"},
        "setExpression": {"expression": "%x", "value": "2"},
        "evaluate": {"expression": "mean(%x)"},
        "completions": {"text": "p %", "column": 4},
        "readMemory": {"memoryReference": numbers["memory"], "count": 4},
        "writeMemory": {"memoryReference": numbers["memory"], "data": "AACAPw=="},
        "disassemble": {"memoryReference": numbers.get("address", "0x1000"), "instructionCount": 3},
        "source": {"sourceReference": 0, "source": source},
        "locations": {"locationReference": numbers["location"]},
        "nncdbg/slice": {"expression": "%x"},
        "nncdbg/histogram": {"expression": "%x"},
        "nncdbg/stats": {"expressions": ["%x"]},
        "nncdbg/nonfinite": {"expression": "%x"},
        "nncdbg/compare": {"expression": "%x", "against": {"expression": "%x"}},
        "nncdbg/counterparts": {"source": source, "line": 9},
        "nncdbg/lines": {"start": 1, "end": 20},
        "nncdbg/marks": {"action": "list"},
        "nncdbg/moment": {"statements": 0},
    }.get(command, thread if "thread_id" in fields_of(command) else {})


def fields_of(command: str) -> tuple[str, ...]:
    record = HANDLERS[command].arguments or REQUESTS[command].arguments
    fields: tuple[str, ...] = () if record is None else record.__struct_fields__
    return fields


def test_the_table_has_every_request() -> None:
    assert ROWS.keys() == HANDLERS.keys()
    assert TABLE.splitlines()[1].split() == list(STATES) == [state.name for state in State]


def wrong_answers(rows: dict[str, list[str]], state: str, programs: dict[str, Path]) -> list[tuple[str, str]]:
    """The requests, with their answer, that the server accepts or rejects in a state unlike their row."""
    wrong = []
    for command, row in rows.items():
        with conversation() as client:
            numbers = bring(client, state, programs)
            answer = client.expect_response(client.send(command, arguments_of(command, numbers)))
            if command != "disconnect":
                # Requests are handled in order, so all messages of the request above arrive first.
                client.expect_response(client.send("setFunctionBreakpoints", {"breakpoints": []}))
                client.expect_response(client.send("cancel", {}))
                client.expect_response(client.send("disconnect"))
            client.expect_end()
        accepted = row[STATES.index(state)] == "+"
        if answer["success"] != accepted:
            wrong.append((command, answer.get("message", "was accepted")))
        elif not accepted and not re.search(r": \w+ |\(\w+ .*\)", answer["message"]):
            wrong.append((command, f"no hint: {answer['message']}"))
    return wrong


@pytest.mark.parametrize("state", STATES)
def test_each_request_gets_one_response(state: str, programs: dict[str, Path]) -> None:
    assert wrong_answers(ROWS, state, programs) == []


@pytest.fixture
def section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The section of the page, with its request registered from a temporary module."""
    page = (ROOT / "docs" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = page.partition("## Add a request")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (tmp_path / "op_counts.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before = {*HANDLERS}
    importlib.import_module("op_counts")
    yield text
    for command in HANDLERS.keys() - before:
        del HANDLERS[command]


def test_a_request_is_added_by_following_the_page(section: str, programs: dict[str, Path]) -> None:
    ((command, *row),) = [line.split() for line in re.findall(r"```text\n(.*?)\n```", section, re.S)]
    for state in STATES:
        assert wrong_answers({command: row}, state, programs) == []
    with conversation() as client:
        bring(client, "STOPPED", programs)
        assert client.request(command)["counts"]["Softmax"] == 1
        assert client.request(command, {"ops": ["MatMul", "Loop"]}) == {"counts": {"MatMul": 1, "Loop": 0}}
        refused = client.expect_response(client.send(command, {"ops": 3}))
        assert "arguments.ops" in refused["message"]
    # The generated row of docs/DAP.md.
    arguments = "`ops`. `ops` selects ops (default: all ops of the program)."
    result = "Return `counts`: the number of statements of each op in the entry graph."
    assert request_row(HANDLERS[command]) == f"| `{command}` | {arguments} | {result} |"
