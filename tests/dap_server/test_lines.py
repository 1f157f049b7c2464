"""Inline values at the ends of lines, and the listing file of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nncdbg.dap_server.handlers.variables import MAX_LINES
from nncdbg.terminal.main import main
from tests.dap_server.client import Client, stdio_client
from tests.dap_server.test_moving import FIRST_STEPS
from tests.dap_server.test_sources import model


def inline_values(client: Client, **arguments: Any) -> dict[int, str]:
    body = client.request("nncdbg/lines", {"start": 1, "end": 200, **arguments})
    return {each["line"]: each["text"] for each in body["lines"]}


def number(text: str) -> int:
    lines = FIRST_STEPS.read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.lstrip().startswith(text))


def run_to(client: Client, line: int) -> None:
    source = {"path": str(FIRST_STEPS)}
    client.request("setBreakpoints", {"source": source, "breakpoints": [{"line": line}]})
    client.move("continue", "breakpoint")


def test_each_executed_line_shows_its_values(client: Client) -> None:
    client.start(FIRST_STEPS)
    assert list(inline_values(client)) == [number("graph @main")]
    client.move("next")
    client.move("next")
    found = inline_values(client)
    assert list(found) == [number("graph @main"), number("%h ="), number("%scores =")]
    frame = client.request("nncdbg/lines", {"start": 1, "end": 2})["frameId"]
    assert frame == client.top_frame()["id"]
    scores = client.variables("Outputs")["%scores"]["value"]
    assert scores == f"f32[2,3] {found[number('%scores =')]}"
    client.request("stepBack", {"threadId": 1})
    client.expect_stop("step")
    assert number("%scores =") not in inline_values(client)


def test_enclosing_blocks_and_calling_graphs_have_inline_values(client: Client) -> None:
    client.start(FIRST_STEPS)
    run_to(client, number("next %s"))
    inner = inline_values(client)
    assert "%s " in inner[number("while @sharpen")]
    assert ", %taken 0" in inner[number("while @sharpen")]
    assert inner[number("%go =")] == "true"
    assert number("%h =") in inner
    outer = client.request("stackTrace", {"threadId": 1})["stackFrames"][-1]
    assert number("%go =") not in inline_values(client, frameId=outer["id"])
    assert set(inline_values(client, start=number("%go ="), end=number("%go ="))) == {number("%go =")}
    client.move("continue", "breakpoint")
    assert ", %taken 1" in inline_values(client)[number("while @sharpen")]


def test_results_of_a_branch_or_loop_are_at_its_closing_line(client: Client) -> None:
    client.start(FIRST_STEPS)
    run_to(client, number("%probs ="))
    found = inline_values(client)
    assert found[number("} -> (%sharp")].startswith("%sharp [[")
    assert found[number("} -> (%final")].startswith("[[")
    assert number("while @sharpen") not in found
    assert list(inline_values(client, start=number("} -> (%sharp"), end=number("%many ="))) == [
        number("} -> (%sharp"),
        number("%many ="),
    ]


def test_a_micro_program_has_inline_values(client: Client) -> None:
    client.start(FIRST_STEPS)
    run_to(client, number("%p ="))
    client.move("stepIn", granularity="instruction")
    client.move("next")
    text = client.request("source", {"sourceReference": client.top_frame()["source"]["sourceReference"]})
    found = inline_values(client)
    assert found
    assert max(found) <= len(text["content"].splitlines())


def test_invalid_line_ranges_are_refused(client: Client) -> None:
    client.start(FIRST_STEPS)
    assert "too many" in client.refused("nncdbg/lines", {"start": 1, "end": MAX_LINES + 1})
    assert "frame no longer exists" in client.refused(
        "nncdbg/lines", {"start": 1, "end": 9, "frameId": 999_999}
    )
    assert "start" in client.refused("nncdbg/lines", {"end": 9})
    assert inline_values(client, start=9, end=1) == {}
    assert inline_values(client, start=-5, end=0) == {}


def test_the_listing_command_writes_the_file_of_a_session(
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


def test_a_second_model_of_the_same_name_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        file = model(tmp_path / folder / "m.onnx", ["Relu"])
        assert main(["listing", str(file), "--workspace", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    first, second = captured.out.split()
    assert first != second
    assert "shows a/m.onnx" in captured.err


def test_an_unwritable_listing_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = model(tmp_path / "m.onnx", ["Relu"])
    assert main(["listing", str(file), "--workspace", str(tmp_path / "nowhere")]) == 2
    assert "cannot write the listing" in capsys.readouterr().err
    assert main(["listing", str(tmp_path / "none.onnx")]) == 3
    assert "no file" in capsys.readouterr().err
