"""A training in the debug adapter: the scope of states, step and epoch, and the text of backward graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.dap_server.variables import scopes
from nncdbg.expression.functions import Budget
from tests.dap_server.client import Client
from tests.engine.compilation.test_states import DATA, TRAIN
from tests.engine.values.test_visits_of_runs import AFTER_H, TWO_RUNS


def started(client: Client, folder: Path, text: str = TRAIN) -> Path:
    """Launch a training from a file, stopped at its first line."""
    file = folder / "train.nnc"
    file.write_text(text)
    for name, data in DATA.items():
        np.save(folder / f"{name}.npy", data)
    client.start(file, inputs={name: str(folder / f"{name}.npy") for name in DATA})
    return file


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.split("\n"), 1) if part in line)


def test_the_states_are_a_scope_with_their_present_values(client: Client, tmp_path: Path) -> None:
    file = started(client, tmp_path)
    update = line_of(TRAIN, "update %w")
    client.request(
        "setBreakpoints",
        {"source": {"path": str(file)}, "breakpoints": [{"line": update, "condition": "$step == 4"}]},
    )
    client.move("continue", "breakpoint")
    frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    assert [frame["name"] for frame in frames] == ["@train", "@run step 4 of 9, epoch 1 of 3", "@program"]
    before = client.variables("States")
    assert list(before) == ["%w", "%m", "%count"]
    assert before["%count"]["value"].endswith("4")
    values = client.variables("Values")
    assert list(values).count("%w") == 1
    client.move("next")
    after = client.variables("States")
    assert after["%count"]["value"].endswith("5")
    assert after["%w"]["value"] != before["%w"]["value"]
    client.move("stepBack")
    assert client.variables("States")["%w"]["value"] == before["%w"]["value"]


BACKWARD = TRAIN.replace(
    "  %q = Mul(%e, %e)\n",
    "  %q = Mul(%e, %e)\n  %z, saved %s = @loss(%e)\n  %d_e = @loss.backward(1.0, %s)\n",
).replace(
    "\nrun @train",
    """
graph @loss(%e: f64[N,2]) -> (%z: f64[]) {
  %a = Mul(%e, %e)
  %z: f64[] = ReduceSum(%a, keepdims=0)
  return %z
}

backward @loss.backward of @loss by (%e)

run @train""",
)


def test_a_backward_graph_has_a_text_of_its_own(client: Client, tmp_path: Path) -> None:
    file = started(client, tmp_path, BACKWARD)
    call = line_of(BACKWARD, "= @loss.backward")
    client.request("setBreakpoints", {"source": {"path": str(file)}, "breakpoints": [{"line": call}]})
    client.move("continue", "breakpoint")
    client.move("stepIn")
    frame = client.top_frame()
    assert frame["name"] == "@loss.backward"
    assert "path" not in frame["source"], "the file does not have these lines"
    reference = frame["source"]["sourceReference"]
    content = client.request("source", {"sourceReference": reference, "source": frame["source"]})["content"]
    lines = content.split("\n")
    assert lines[: len(BACKWARD.split("\n"))][:5] == BACKWARD.split("\n")[:5], "the file, then the graphs"
    assert "ReduceSum" not in lines[frame["line"] - 1]
    assert lines[frame["line"] - 2].strip() == f"## of line {line_of(BACKWARD, '%z: f64[] = ReduceSum')}"
    last = next(n for n, text in enumerate(lines, 1) if n > frame["line"] and "return" in text)
    bound = client.request("setBreakpoints", {"source": frame["source"], "breakpoints": [{"line": last}]})[
        "breakpoints"
    ]
    assert [each["verified"] for each in bound] == [True]
    client.move("continue", "breakpoint")
    assert client.top_frame()["line"] == last
    client.move("stepOut")
    assert client.top_frame()["source"]["path"] == str(file)


def test_a_loss_is_plotted_over_the_steps_and_a_point_leads_to_its_step(
    client: Client, tmp_path: Path
) -> None:
    file = started(client, tmp_path)
    place = {"line": line_of(TRAIN, "update %w"), "condition": "$step == 4"}
    client.request("setBreakpoints", {"source": {"path": str(file)}, "breakpoints": [place]})
    client.move("continue", "breakpoint")
    values = {each["name"]: each for each in client.request("nncdbg/nearby")["values"]}
    series = values["%d"]["series"]
    assert series["steps"] == [0, 1, 2, 3, 4]
    assert series["mean"][-1] == values["%d"]["stats"]["mean"]
    client.request("nncdbg/moment", {"statements": series["moments"][2]})
    client.expect_stop("goto")
    assert client.evaluate("$step") == "2"
    again = {each["name"]: each for each in client.request("nncdbg/nearby")["values"]}
    assert again["%d"]["stats"]["mean"] == series["mean"][2]


def test_a_series_of_the_second_run_has_its_own_steps(client: Client, tmp_path: Path) -> None:
    (tmp_path / "two.nnc").write_text(TWO_RUNS)
    client.start(tmp_path / "two.nnc")
    place = {"line": AFTER_H, "condition": "$step == 2"}
    client.request("setBreakpoints", {"source": {"path": str(tmp_path / "two.nnc")}, "breakpoints": [place]})
    for means in ([0, 10, 20], [50, 60, 70]):
        client.move("continue", "breakpoint")
        values = {each["name"]: each for each in client.request("nncdbg/nearby")["values"]}
        series = values["%h"]["series"]
        assert (series["steps"], series["mean"]) == ([0, 1, 2], means)


def test_a_statement_leads_to_its_backward_and_back(client: Client, tmp_path: Path) -> None:
    file = started(client, tmp_path, BACKWARD)
    forward = line_of(BACKWARD, "%a = Mul(%e, %e)")

    def counterparts(source: dict[str, object], line: int | None = None) -> list[tuple[int, str, str]]:
        body = client.request("nncdbg/counterparts", {"source": source, "line": line})
        return [(each["line"], each["direction"], each["text"]) for each in body["counterparts"]]

    body = client.request("nncdbg/counterparts", {"source": {"path": str(file)}, "line": forward})
    first = body["counterparts"][0]
    assert first["direction"] == "backward"
    text = client.request("source", {"sourceReference": 0, "source": first["source"]})["content"]
    assert text.split("\n")[first["target"] - 1].strip() == first["text"]
    assert counterparts(first["source"], first["target"]) == [
        (first["target"], "forward", "%a = Mul(%e, %e)")
    ]
    assert counterparts({"path": str(file)}, line_of(BACKWARD, "update %w")) == []
    graphs = counterparts({"path": str(file)})
    assert [(line, way) for line, way, _ in graphs] == [(line_of(BACKWARD, "graph @loss"), "backward")]
    assert [way for _, way, _ in counterparts(first["source"])] == ["backward", "forward"]


def test_a_collected_loss_has_all_steps_of_the_run(client: Client, tmp_path: Path) -> None:
    file = started(client, tmp_path, TRAIN.replace("epochs 3", "epochs 40"))
    place = {"line": line_of(TRAIN, "update %w"), "condition": "$step == 100"}
    client.request("setBreakpoints", {"source": {"path": str(file)}, "breakpoints": [place]})
    client.move("continue", "breakpoint")
    client.move("stepOut")
    loss = next(each for each in client.request("nncdbg/nearby")["values"] if "%l" in each["name"])
    series = loss["series"]
    assert series["steps"] == list(range(101))
    assert series["moments"][0] is None
    assert series["moments"][-1] is not None


def stopped_in_mlp(client: Client, part: str) -> None:
    """Stop in the training of the example before the statement with this text."""
    file = Path(__file__).parents[2] / "examples" / "train_mlp.nnc"
    client.start(file)
    place = {"line": line_of(file.read_text(encoding="utf-8"), part), "condition": "$step == 3"}
    client.request("setBreakpoints", {"source": {"path": str(file)}, "breakpoints": [place]})
    client.move("continue", "breakpoint")


def hover(client: Client, name: str) -> dict[str, str]:
    """The texts of the children of a value in the hover over it."""
    frame = client.top_frame()["id"]
    shown = client.request("evaluate", {"expression": name, "frameId": frame, "context": "hover"})
    assert "gradient" not in shown["result"]
    if shown["variablesReference"] == 0:
        return {}
    children = client.request("variables", {"variablesReference": shown["variablesReference"]})["variables"]
    return {each["name"]: each["value"] for each in children}


GRADIENT = "gradient of %l"


def test_a_hover_has_the_gradient_of_the_loss_once_the_loss_is_computed(client: Client) -> None:
    stopped_in_mlp(client, "update %w1")
    before = client.evaluate("$step")
    norm = float(client.evaluate("norm(grad(%l, %w1))"))
    children = hover(client, "%w1")
    assert list(children) == [GRADIENT, "shape", "dtype", "statistics", "[0]", "[1]"]
    assert children[GRADIENT].startswith(f"norm {norm:.4g} min ")
    assert GRADIENT not in hover(client, "%l"), "the loss itself"
    assert GRADIENT not in hover(client, "$step"), "no value of the graph"
    assert client.evaluate("$step") == before


def test_the_gradient_in_a_hover_expands_to_its_elements(client: Client) -> None:
    stopped_in_mlp(client, "update %w1")
    arguments = {"expression": "%w1", "frameId": client.top_frame()["id"], "context": "hover"}
    shown = client.request("evaluate", arguments)
    children = client.request("variables", {"variablesReference": shown["variablesReference"], "count": 1})
    first = children["variables"][0]
    assert (first["name"], first["evaluateName"]) == (GRADIENT, "grad(%l, %w1)")
    inner = client.request("variables", {"variablesReference": first["variablesReference"]})["variables"]
    assert [each["name"] for each in inner] == ["shape", "dtype", "statistics", "[0]", "[1]"]
    row = client.request("variables", {"variablesReference": inner[3]["variablesReference"]})["variables"]
    elements = [each for each in row if each["name"].startswith("[")]
    assert len(elements) == 16
    assert elements[7]["value"] == client.evaluate(elements[7]["evaluateName"])


def test_a_hover_inside_of_the_differentiated_graph_has_the_gradient(client: Client) -> None:
    stopped_in_mlp(client, "%minus = Neg")
    assert GRADIENT not in hover(client, "%z"), "the loss is not computed yet"
    client.move("next")
    client.move("next")
    assert hover(client, "%z")[GRADIENT].startswith("norm")
    assert GRADIENT not in hover(client, "%positive"), "no gradient passes through a comparison"
    losses = [client.evaluate("%l"), client.evaluate("max(%z)")]
    hover(client, "%z")
    assert [client.evaluate("%l"), client.evaluate("max(%z)")] == losses


def test_a_hover_without_a_training_has_no_gradient(client: Client) -> None:
    client.start(Path(__file__).parents[2] / "examples" / "attention.nnc")
    client.move("next")
    assert not any("gradient" in name for name in hover(client, "%tokens"))


def test_a_hover_reports_a_gradient_that_needs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    debugger = nncdbg.Debugger(Path(__file__).parents[2] / "examples" / "train_mlp.nnc")
    debugger.break_at(op="update", when="$step == 3")
    assert debugger.run().reason == "breakpoint"

    def text(statements: int, seconds: float) -> str:
        monkeypatch.setattr(scopes, "BUDGET", Budget(statements, seconds))
        found = scopes.loss_gradient(debugger.program, debugger.values, "%w1")
        assert found is not None
        return found.text

    assert text(500, 5.0).startswith("norm")
    assert "statements are more than 3" in text(3, 5.0)
    assert text(500, 0.0).startswith("not computed, it takes longer than 0 s")
    assert text(500, 5.0).startswith("norm"), "an interruption leaves no trace"
    tick = debugger.timeline.tick
    assert debugger.run().reason != "exception"
    assert debugger.timeline.tick > tick
