"""Annotations for GitHub: the runner reads back the intended commands and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nncdbg.nan_watch.reports.github import render
from tests.nan_watch.reports.made_reports import REPORTS, WATCHED, failed, fine, hostile, of_text, plain

COMMAND = re.compile(r"::(?P<name>\w+) (?P<properties>.*?)::(?P<message>.*)")


def _read(line: str) -> tuple[str, dict[str, str], str]:
    """Parse a command like the runner: properties up to the next `::`, then unescape."""
    match = COMMAND.fullmatch(line)
    assert match is not None, line
    properties = dict(part.split("=", 1) for part in match["properties"].split(","))
    plain = {
        name: _unescaped(value.replace("%3A", ":").replace("%2C", ",")) for name, value in properties.items()
    }
    return match["name"], plain, _unescaped(match["message"])


def _unescaped(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


@pytest.fixture(autouse=True)
def _outside_of_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)


@pytest.mark.parametrize("report", REPORTS)
def test_every_line_is_a_command_and_their_number_is_limited(report: str) -> None:
    lines = [_read(line) for line in render(REPORTS[report](), WATCHED).split("\n")[:-1]]
    assert sum(name == "error" for name, _, _ in lines) <= 10
    assert sum(name == "warning" for name, _, _ in lines) <= 10
    for name, properties, _ in lines:
        assert name in ("error", "warning")
        assert set(properties) <= {"file", "line", "title"}


def test_an_error_is_at_the_source_line_of_the_user() -> None:
    lines = render(plain(), WATCHED).splitlines()
    name, properties, message = _read(lines[0])
    assert name == "error"
    assert properties == {"file": "net.py", "line": "7", "title": "Inf: log of zero (Log)"}
    assert message.startswith("the first Inf is in %logq: Log produced it from operands without Inf\n  at ")
    # Mul has no source line, and the model is binary: only the file.
    assert _read(lines[1])[1] == {"file": "nets/net.onnx", "title": "NaN: zero times infinity (Mul)"}


def test_a_finding_in_graph_text_is_at_its_line() -> None:
    assert _read(render(of_text(), WATCHED).splitlines()[0])[1]["file"] == "nets/net.nnc"
    assert _read(render(of_text(), WATCHED).splitlines()[0])[1]["line"] == "4"


def test_a_path_is_relative_to_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert _read(render(of_text(), WATCHED).splitlines()[0])[1]["file"] == "sub/nets/net.nnc"


def test_a_run_without_findings_prints_nothing() -> None:
    assert render(fine(), WATCHED) == ""


def test_a_failed_run_is_an_error_and_unchecked_gates_are_a_warning() -> None:
    lines = [_read(line) for line in render(failed(), WATCHED).splitlines()]
    assert [name for name, _, _ in lines] == ["error", "warning"]
    assert lines[0][1]["title"] == "nncdbg watch: net.onnx failed"
    assert "not checked: statements after line 4" in lines[1][2]


def test_a_name_cannot_start_a_command() -> None:
    text = render(hostile(), WATCHED)
    assert not any(line.startswith("::error::injected") for line in text.splitlines())
    assert text.count("\n::") == text.count("\n") - 1
