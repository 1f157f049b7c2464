"""Rows of the debugger core: what `stepIn` enters, and what the scopes of a frame list."""

from __future__ import annotations

from pathlib import Path

import nncdbg
from nncdbg.engine.differentiation.expansion import with_backward_graphs
from tests.dap_server.client import Client, Message
from tests.dap_server.conftest import EXAMPLES
from tests.dap_server.test_training import BACKWARD, line_of, started

NOT_COMPUTED = "<not computed>"


def stop_at(client: Client, file: Path, line: int) -> None:
    client.request("setBreakpoints", {"source": {"path": str(file)}, "breakpoints": [{"line": line}]})
    client.move("continue", "breakpoint")


def test_step_in_enters_a_loop_a_call_and_a_micro_program(client: Client) -> None:
    """T4: `stepIn` enters a called graph, a loop at iteration 0 with its carried names, a micro program."""
    file = EXAMPLES / "first_steps.nnc"
    text = file.read_text()
    client.start(file)
    client.move("stepIn")
    assert client.top_frame()["name"] == "@layer"
    stop_at(client, file, line_of(text, "while @sharpen"))
    client.move("stepIn")
    assert client.top_frame()["name"] == "@sharpen #0"
    loop = client.variables("Loop")
    assert {"iteration", "%s", "%taken"} <= loop.keys()
    assert loop["iteration"]["value"] == "0"
    client.move("stepIn", granularity="instruction")
    assert client.top_frame()["name"] == "the micro program of Softmax"
    frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    assert [frame["name"] for frame in frames[1:]] == ["@sharpen #0", "@main"]


def test_step_in_enters_the_backward_of_a_forward(client: Client, tmp_path: Path) -> None:
    """T4: `stepIn` at a call of a backward graph shows the gradient of the forward graph."""
    file = started(client, tmp_path, BACKWARD)
    stop_at(client, file, line_of(BACKWARD, "= @loss.backward"))
    client.move("stepIn")
    frame = client.top_frame()
    assert frame["name"] == "@loss.backward"
    values = client.variables("Values", frame)
    assert "%d_z" in values
    assert values["%d_z"]["value"] != NOT_COMPUTED


def frames_of(client: Client) -> list[Message]:
    frames: list[Message] = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    return frames


def test_scopes_list_the_names_that_are_defined_before_the_statement(client: Client) -> None:
    """T7: computed are exactly the names defined before pc; later ones are shown as not computed.

    In each frame of a training: forward, backward (gradients and saved values), update, and outer states.
    """
    file = EXAMPLES / "train_mlp.nnc"
    program = with_backward_graphs(nncdbg.load(file))
    listing = program.as_listing()
    # A forward graph that is differentiated has a copy, listed after it, that returns the saved values too.
    graphs = {graph.name: graph for graph in program.graphs.values()}
    states = [f"%{state.value.name}" for state in program.states]
    client.start(file)
    client.request(
        "setBreakpoints",
        {"source": {"path": str(file)}, "breakpoints": [{"line": line_of(file.read_text(), "= @loss(")}]},
    )
    client.move("continue", "breakpoint")
    client.request("setBreakpoints", {"source": {"path": str(file)}, "breakpoints": []})
    seen: set[str] = set()
    for _ in range(70):
        for frame in frames_of(client):
            name = frame["name"].removeprefix("@")
            if (name,) not in listing.statements or name not in graphs:
                continue
            graph = graphs[name]
            pc = listing.statements[name,].index(frame["line"])
            values = client.variables("Values", frame)
            # A state that the graph updates is the one of the scope States.
            known = {each for each in values if values[each]["value"] != NOT_COMPUTED} - {*states}
            before = {f"%{value.name}" for node in graph.nodes[:pc] for value in node.outputs if value.name}
            later = {f"%{value.name}" for node in graph.nodes[pc:] for value in node.outputs if value.name}
            inputs = {f"%{value.name}" for value in graph.inputs if value.name}
            assert before - {*states} <= known, (name, pc)
            assert inputs - {*states} <= known, (name, pc)
            assert known <= before | inputs, (name, pc, known - before - inputs)
            assert {*values} - known - {*states} == later - {*states}, (name, pc)
            assert [*client.variables("States", frame)] == states
            assert NOT_COMPUTED not in [each["value"] for each in client.variables("States", frame).values()]
            seen.add(name)
        client.move("stepIn")
    assert {"train", "loss", "layer", "loss.backward", "layer.backward"} <= seen
