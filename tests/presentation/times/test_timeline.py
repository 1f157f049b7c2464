"""The timeline: a valid Chrome trace, whose events are those of the run.

The rules are those of the document "Trace Event Format" for complete events and metadata.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import nncdbg
from nncdbg.engine.schedules.timeline import timeline
from nncdbg.terminal.main import main

EXAMPLES = ("first_steps", "refine_loop", "train_mlp", "attention")


def trace_of(repository: Path, folder: Path, name: str, *options: str) -> dict[str, Any]:
    file = folder / "trace.json"
    program = str(repository / "examples" / f"{name}.nnc")
    assert main(["profile", program, "--timeline", str(file), "--runs", "2", *options]) == 0
    document = json.loads(file.read_text())
    assert isinstance(document, dict)
    return document


def complete(document: dict[str, Any], category: str = "") -> list[dict[str, Any]]:
    return [each for each in document["traceEvents"] if each["ph"] == "X" and category in ("", each["cat"])]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_events_have_the_required_keys(repository: Path, tmp_path: Path, name: str) -> None:
    document = trace_of(repository, tmp_path, name)
    assert document["displayTimeUnit"] in ("ms", "ns")
    for each in document["traceEvents"]:
        assert each["ph"] in ("X", "M")
        assert isinstance(each["name"], str)
        assert each["name"]
        assert isinstance(each["pid"], int)
        assert isinstance(each["tid"], int)
        if each["ph"] == "M":
            assert each["name"] in ("process_name", "thread_name", "thread_sort_index")
            continue
        assert each["cat"] in ("graph", "iteration", "step", "statement", "kernel")
        assert isinstance(each["ts"], float)
        assert isinstance(each["dur"], float)
        assert each["ts"] >= 0
        assert each["dur"] >= 0
        if each["cat"] in ("statement", "kernel"):
            assert set(each["args"]) == {"statement", "line", "graph", "shapes", "where"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_events_of_a_lane_are_nested_or_apart(repository: Path, tmp_path: Path, name: str) -> None:
    lanes = defaultdict(list)
    for each in complete(trace_of(repository, tmp_path, name)):
        lanes[each["tid"]].append((round(1000 * each["ts"]), round(1000 * (each["ts"] + each["dur"]))))
    assert set(lanes) == {0, 1}
    for events in lanes.values():
        assert [begin for begin, _ in events] == sorted(begin for begin, _ in events)
        open_events: list[int] = []
        for begin, end in events:
            while open_events and open_events[-1] <= begin:
                open_events.pop()
            assert not open_events or end <= open_events[-1]
            open_events.append(end)


def test_lanes_are_named_for_the_host_and_the_stream(repository: Path, tmp_path: Path) -> None:
    document = trace_of(repository, tmp_path, "first_steps")
    named = {
        each["tid"]: each["args"]["name"] for each in document["traceEvents"] if each["name"] == "thread_name"
    }
    assert named == {0: "host", 1: "s0"}


def test_lanes_of_a_schedule_are_those_of_its_timeline_without_a_run(
    repository: Path, tmp_path: Path
) -> None:
    document = trace_of(repository, tmp_path, "two_streams")
    program = nncdbg.load(repository / "examples" / "two_streams.nnc")
    planned = timeline(program)

    def named(events: list[dict[str, Any]]) -> dict[int, str]:
        return {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}

    assert named(document["traceEvents"]) == named(planned) == {0: "host", 1: "s0 cuda:0", 2: "s1 cuda:0"}
    kernels = {each["args"]["line"]: each["tid"] for each in complete(document, "kernel")}
    statements = {each["args"]["line"]: each["tid"] for each in planned if each["ph"] == "X"}
    assert kernels == {line: lane for line, lane in statements.items() if line in kernels}
    assert set(kernels.values()) == {1, 2}


def test_each_kernel_is_inside_its_statement(repository: Path, tmp_path: Path) -> None:
    document = trace_of(repository, tmp_path, "first_steps")
    statements, kernels = complete(document, "statement"), complete(document, "kernel")
    assert len(statements) == len(kernels) == 35, "the last of two runs only"
    for statement, kernel in zip(statements, kernels, strict=True):
        assert statement["args"] == kernel["args"]
        assert statement["ts"] <= kernel["ts"]
        assert kernel["ts"] + kernel["dur"] <= statement["ts"] + statement["dur"] + 1e-3
    assert kernels[0]["args"] == {
        "statement": "%mean", "line": 33, "graph": "layer", "shapes": "[2,4] -> [2,1]", "where": "@layer"
    }  # fmt: skip


def test_a_training_has_an_event_per_step(repository: Path, tmp_path: Path) -> None:
    document = trace_of(repository, tmp_path, "train_mlp", "--runs", "1", "--steps", "4")
    assert [each["name"] for each in complete(document, "step")] == ["step 0", "step 1", "step 2", "step 3"]


def test_a_timeline_that_cannot_be_written_is_refused_before_the_run(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = str(repository / "examples" / "first_steps.nnc")
    assert main(["profile", program, "--timeline", str(tmp_path / "missing" / "trace.json")]) == 2
    captured = capsys.readouterr()
    assert "cannot write" in captured.err
    assert captured.out == ""
