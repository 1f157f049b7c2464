"""Records of variables are reused while their references are valid."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nncdbg.dap_server import handles
from nncdbg.dap_server.handlers.lifecycle import launch
from nncdbg.dap_server.handlers.variables import scopes, variables
from nncdbg.dap_server.launch_arguments import LaunchArguments
from nncdbg.dap_server.protocol import (
    InitializeRequestArguments,
    ScopesArguments,
    Variable,
    VariablesArguments,
)
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.variables.places import NOTHING, child_place, content_at, place_of
from tests.dap_server.conftest import EXAMPLES


def nothing(*_: object) -> None:
    """An unused stream or callback of a connection."""


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session with a program, without a client."""
    runner = Runner()
    found = Session(Connection(nothing, nothing, nothing), runner)  # type: ignore[arg-type]
    found.client.arguments = InitializeRequestArguments(adapter_id="nncdbg", supports_memory_references=True)
    arguments = msgspec.convert(
        {"program": str(EXAMPLES / "attention.nnc"), "cwd": str(tmp_path)}, LaunchArguments
    )
    found.debuggee = launch(arguments, runner, nothing)
    return found


def container(session: Session, scope: str) -> int:
    frame = session.handles.number(place_of(session.program.target.frame(0)))
    listed = scopes(session, ScopesArguments(frame_id=frame)).scopes
    return int(next(each.variables_reference for each in listed if each.name == scope))


def sent(session: Session, scope: str) -> list[msgspec.Raw]:
    """Return the encoded variables of a scope."""
    arguments = VariablesArguments(variables_reference=container(session, scope))
    found = variables(session, arguments).variables
    return [
        each if isinstance(each, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(each)) for each in found
    ]


def listed(session: Session, scope: str) -> dict[str, Variable]:
    found = (msgspec.json.decode(each, type=Variable) for each in sent(session, scope))
    return {each.name: each for each in found}


def test_records_of_unchanged_variables_are_reused(session: Session) -> None:
    session.program.target.step_over()
    before = listed(session, "Values")
    first = sent(session, "Values")
    session.program.target.step_over()
    then = {id(each) for each in sent(session, "Values")}
    rebuilt = [each for each in first if id(each) not in then]
    assert len(rebuilt) == 1, "the value that the step has computed"
    session.program.target.set_value("wq", 0.0, "0, 0")
    assert listed(session, "Values")["%wq"].value != before["%wq"].value
    assert listed(session, "Values")["%wq"].variables_reference == before["%wq"].variables_reference


def test_a_record_is_rebuilt_after_its_reference_expires(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "KEPT", 40)
    session.program.target.step_over()
    before = listed(session, "Values")["%wq"]
    for number in range(100):
        session.handles.number(("something else", number))
    assert session.handles.place(before.variables_reference) is None
    after = listed(session, "Values")["%wq"]
    assert after.variables_reference != before.variables_reference
    opened = variables(session, VariablesArguments(variables_reference=after.variables_reference))
    assert len(opened.variables) == 3 + 8


def test_children_are_found_by_name(session: Session) -> None:
    session.program.target.step_over()
    values = container(session, "Values")
    whole = child_place(session, values, "%wq")
    assert whole is not None
    number = session.handles.number(whole)
    row = child_place(session, number, "[2]")
    assert row is not None
    element = child_place(session, session.handles.number(row), "[7]")
    assert element is not None
    assert element.index == (2, 7)
    assert content_at(session, element) == session.program.target.value("wq")[2, 7]
    outside = child_place(session, number, "[8]")
    assert outside is not None
    assert content_at(session, outside) is NOTHING
    for name in ("%nothing", "wq", "statistics", "[x]", ""):
        assert child_place(session, values, name) is None
        assert child_place(session, number, name) is None
    assert child_place(session, 424242, "%wq") is None
