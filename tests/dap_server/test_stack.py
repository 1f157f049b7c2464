"""Stack frames: names, locations, pages, and lines of the model's source between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES

LAYERS = """#nncdbg 1
opset 18

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %h: f32[2] = @layer(%x)   loc("net.py":9)
  %y: f32[2] = Neg(%h)   loc("net.py":10)
  return %y
}

graph @layer(%a: f32[2]) -> (%d: f32[2]) {
  %b: f32[2] = Relu(%a)   loc("net.py":3, from "net.py":9)
  %c: f32[2] = Abs(%b)   loc("gone.py":7)
  %d: f32[2] = Softmax(%c)
  return %d
}
"""


def stack(client: Client, **arguments: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.request("stackTrace", {"threadId": 1, **arguments})["stackFrames"]
    return found


def titles(client: Client) -> list[str]:
    return [frame["name"] for frame in stack(client) if frame["presentationHint"] == "normal"]


def test_frames_have_the_names_of_the_terminal(client: Client) -> None:
    client.start(EXAMPLES / "refine_loop.nnc", inputs={"x": "ones"})
    assert titles(client) == ["@main"]
    for _ in range(3):
        client.move("stepIn")
    assert titles(client) == ["@newton #0", "@main"]
    for _ in range(10):
        client.move("stepIn")
    assert titles(client) == ["@newton #1", "@main"]
    top, outer = stack(client)
    lines = (EXAMPLES / "refine_loop.nnc").read_text().splitlines()
    assert "%sum" in lines[top["line"] - 1] or "%quotient" in lines[top["line"] - 1]
    assert "while @newton" in lines[outer["line"] - 1]
    assert top["column"] == 1
    assert not {"endLine", "endColumn"} & top.keys(), "VS Code would select the statement"
    assert top["source"]["path"] == str(EXAMPLES / "refine_loop.nnc")
    modules = {each["id"]: each["name"] for each in client.request("modules", {})["modules"]}
    assert modules[top["moduleId"]] == "@main"
    assert top["instructionPointerReference"] != outer["instructionPointerReference"]


def test_a_micro_program_has_its_own_source(client: Client) -> None:
    client.start(EXAMPLES / "attention.nnc")
    client.request("setFunctionBreakpoints", {"breakpoints": [{"name": "Softmax"}]})
    client.request("continue", {"threadId": 1})
    client.expect_event("stopped")
    client.move("stepIn", granularity="instruction")
    micro, *outer = stack(client)
    assert micro["name"] == "the micro program of Softmax"
    assert micro["source"]["sourceReference"]
    modules = [each["id"] for each in client.request("modules", {})["modules"]]
    assert micro["moduleId"] in modules
    assert [frame["name"] for frame in outer] == ["@attend", "@main"]


def test_source_lines_of_the_model_are_between_the_frames(client: Client, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("# a model\n" * 12)
    (tmp_path / "layers.nnc").write_text(LAYERS)
    client.start(tmp_path / "layers.nnc")
    client.move("stepIn")
    frames = stack(client)
    assert [(frame["name"], frame["presentationHint"]) for frame in frames] == [
        ("@layer", "normal"),
        ("net.py:3", "normal"),
        ("net.py:9", "subtle"),
        ("@main", "normal"),
    ]
    assert frames[1]["source"]["path"] == str(tmp_path / "net.py")
    assert frames[1]["line"] == 3
    layer, source = (client.request("scopes", {"frameId": each["id"]})["scopes"] for each in frames[:2])
    assert layer
    assert source == layer
    client.move("next")
    frames = stack(client)
    assert [frame["name"] for frame in frames] == ["@layer", "gone.py:7", "@main", "net.py:9"]
    assert "path" not in frames[1]["source"], "the file does not exist"
    client.move("next")
    assert [frame["name"] for frame in stack(client)] == ["@layer", "@main", "net.py:9"]


def test_pages_of_the_stack_have_the_requested_frames(client: Client, tmp_path: Path) -> None:
    (tmp_path / "layers.nnc").write_text(LAYERS)
    client.start(tmp_path / "layers.nnc")
    client.move("stepIn")
    whole = stack(client)
    for first in range(len(whole) + 2):
        for levels in range(len(whole) + 2):
            body = client.request("stackTrace", {"threadId": 1, "startFrame": first, "levels": levels})
            assert body["totalFrames"] == len(whole)
            assert body["stackFrames"] == whole[first : first + levels if levels else None]
    assert "0 or more" in client.refused("stackTrace", {"threadId": 1, "startFrame": -1})
    assert "there is no thread 7" in client.refused("stackTrace", {"threadId": 7})


def test_frame_names_follow_the_requested_format(client: Client) -> None:
    client.start(EXAMPLES / "attention.nnc")
    for _ in range(6):
        client.move("next")
    client.move("stepIn")
    names = {
        "@attend(%queries: f32[6,8], %keys: f32[6,8], %values: f32[6,8])": {
            "parameters": True, "parameterTypes": True, "parameterNames": True,
        },
        "@attend(%queries, %keys, %values)": {"parameters": True},
        "main!@attend": {"module": True},
        "@attend, line 19": {"line": True},
        "@attend": {"hex": True},
    }  # fmt: skip
    for name, format in names.items():
        assert stack(client, format=format)[0]["name"] == name


def test_lines_and_columns_start_at_0_on_request(client: Client) -> None:
    flags = {"linesStartAt1": False, "columnsStartAt1": False}
    client.start(EXAMPLES / "attention.nnc", initialize=flags)
    lines = (EXAMPLES / "attention.nnc").read_text().splitlines()
    frame = client.top_frame()
    assert "%wq" in lines[frame["line"]]
    assert frame["column"] == 0


def test_at_the_end_one_frame_is_at_the_return(client: Client) -> None:
    client.start(EXAMPLES / "attention.nnc", stopOnExit=True)
    client.move("continue", "exit")
    (frame,) = stack(client)
    lines = (EXAMPLES / "attention.nnc").read_text().splitlines()
    assert lines[frame["line"] - 1].strip() == "return %out"


def test_frames_keep_their_numbers_while_they_exist(client: Client) -> None:
    client.start(EXAMPLES / "attention.nnc")
    main = client.top_frame()["id"]
    for _ in range(6):
        client.move("next")
    client.move("stepIn")
    inner, outer = stack(client)
    assert outer["id"] == main
    client.move("next")
    assert client.top_frame()["id"] == inner["id"]


def test_a_data_breakpoint_points_at_the_statement_that_wrote(client: Client) -> None:
    client.start(EXAMPLES / "attention.nnc")
    client.request("setDataBreakpoints", {"breakpoints": [{"dataId": "%raw"}]})
    client.move("continue", "data breakpoint")
    lines = (EXAMPLES / "attention.nnc").read_text().splitlines()
    frame = client.top_frame()
    assert lines[frame["line"] - 1].strip().startswith("%raw =")
    assert list(client.variables("Outputs", frame)) == ["%raw"]
    assert list(client.variables("Inputs", frame)) == ["%queries", "%kt"]
    client.move("next")
    assert lines[client.top_frame()["line"] - 1].strip().startswith("%masked =")


def test_the_top_frame_is_at_the_failed_statement(client: Client, tmp_path: Path) -> None:
    (tmp_path / "fails.nnc").write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[N], %y: f32[M]) -> (%z: f32[?]) {\n"
        "  %a: f32[N] = Neg(%x)\n  %z = Add(%a, %y)\n  return %z\n}\n"
    )
    client.start(tmp_path / "fails.nnc", dims={"N": 2, "M": 3})
    client.move("continue", "exception")
    frame = client.top_frame()
    assert frame["line"] == 6
    assert list(client.variables("Inputs", frame)) == ["%a", "%y"]
    assert client.variables("Values", frame)["%z"]["value"] == "<not computed>"
