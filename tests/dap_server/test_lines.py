"""What an editor shows at the ends of lines, and the file in which it shows a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nncdbg.dap_server.handlers.lines import MAX_LINES
from nncdbg.terminal.main import main
from tests.dap_server.client import Client, stdio_client
from tests.dap_server.test_moving import FIRST_STEPS
from tests.dap_server.test_sources import model


def told(client: Client, **arguments: Any) -> dict[int, str]:
    body = client.request("nncdbg/lines", {"start": 1, "end": 200, **arguments})
    return {each["line"]: each["text"] for each in body["lines"]}


def number(text: str) -> int:
    lines = FIRST_STEPS.read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.lstrip().startswith(text))


def run_to(client: Client, line: int) -> None:
    source = {"path": str(FIRST_STEPS)}
    client.request("setBreakpoints", {"source": source, "breakpoints": [{"line": line}]})
    client.move("continue", "breakpoint")


def test_each_line_tells_what_it_has_given_so_far(client: Client) -> None:
    client.start(FIRST_STEPS)
    assert list(told(client)) == [number("graph @main")]
    client.move("next")
    client.move("next")
    found = told(client)
    assert list(found) == [number("graph @main"), number("%h:"), number("%scores:")]
    frame = client.request("nncdbg/lines", {"start": 1, "end": 2})["frameId"]
    assert frame == client.top_frame()["id"]
    scores = client.variables("Outputs")["%scores"]["value"]
    assert scores == f"f32[2,3] {found[number('%scores:')]}"
    client.request("stepBack", {"threadId": 1})
    client.expect_stop("step")
    assert number("%scores:") not in told(client)


def test_blocks_around_are_told_and_graphs_that_call(client: Client) -> None:
    client.start(FIRST_STEPS)
    run_to(client, number("next %s"))
    inner = told(client)
    assert "%s " in inner[number("while @sharpen")]
    assert ", %taken 0" in inner[number("while @sharpen")]
    assert inner[number("%go:")] == "true"
    assert number("%h:") in inner
    outer = client.request("stackTrace", {"threadId": 1})["stackFrames"][-1]
    assert number("%go:") not in told(client, frameId=outer["id"])
    assert set(told(client, start=number("%go:"), end=number("%go:"))) == {number("%go:")}
    client.move("continue", "breakpoint")
    assert ", %taken 1" in told(client)[number("while @sharpen")]


def test_what_a_branch_or_loop_gives_stands_where_it_closes(client: Client) -> None:
    client.start(FIRST_STEPS)
    run_to(client, number("%probs:"))
    found = told(client)
    assert found[number("} -> (%sharp")].startswith("%sharp [[")
    assert found[number("} -> (%final")].startswith("[[")
    assert number("while @sharpen") not in found
    assert list(told(client, start=number("} -> (%sharp"), end=number("%many:"))) == [
        number("} -> (%sharp"),
        number("%many:"),
    ]


def test_inside_a_micro_program_its_own_lines_are_told(client: Client) -> None:
    client.start(FIRST_STEPS)
    run_to(client, number("%p:"))
    client.move("stepIn", granularity="instruction")
    client.move("next")
    text = client.request("source", {"sourceReference": client.top_frame()["source"]["sourceReference"]})
    found = told(client)
    assert found
    assert max(found) <= len(text["content"].splitlines())


def test_lines_that_cannot_be_told_are_refused(client: Client) -> None:
    client.start(FIRST_STEPS)
    assert "too many" in client.refused("nncdbg/lines", {"start": 1, "end": MAX_LINES + 1})
    assert "frame no longer exists" in client.refused(
        "nncdbg/lines", {"start": 1, "end": 9, "frameId": 999_999}
    )
    assert "start" in client.refused("nncdbg/lines", {"end": 9})
    assert told(client, start=9, end=1) == {}
    assert told(client, start=-5, end=0) == {}


def test_the_listing_of_a_model_is_the_one_that_a_session_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = model(tmp_path / "m.onnx", ["Relu", "Neg"])
    assert main(["listing", str(file), "--workspace", str(tmp_path)]) == 0
    written = Path(capsys.readouterr().out.removesuffix("\n"))
    assert written == tmp_path / ".nncdbg" / "m.nnc"
    before = written.read_bytes()
    assert b"Neg(" in before
    with stdio_client(cwd=tmp_path) as client:
        client.start(file)
        assert client.top_frame()["source"]["path"] == str(written)
    assert written.read_bytes() == before


def test_a_graph_text_is_its_own_listing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["listing", str(FIRST_STEPS), "--workspace", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{FIRST_STEPS}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_second_model_of_one_name_is_told_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for folder in ("a", "b"):
        file = model(tmp_path / folder / "m.onnx", ["Relu"])
        assert main(["listing", str(file), "--workspace", str(tmp_path)]) == 0
    said = capsys.readouterr()
    first, second = said.out.split()
    assert first != second
    assert "shows a/m.onnx" in said.err


def test_a_listing_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = model(tmp_path / "m.onnx", ["Relu"])
    assert main(["listing", str(file), "--workspace", str(tmp_path / "nowhere")]) == 2
    assert "cannot write the listing" in capsys.readouterr().err
    assert main(["listing", str(tmp_path / "none.onnx")]) == 3
    assert "no file" in capsys.readouterr().err
