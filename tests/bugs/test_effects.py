"""Small programs of `second/effects.txt`: the watch reports the expected origin, or nothing trips."""

from __future__ import annotations

import re

import pytest

import nncdbg
from tests.bugs.labels import SECOND

_INPUT = re.compile(r"%(?P<name>\w+): .*")


def cases() -> list[tuple[str, str, list[str], str]]:
    """Return (title, expected, inputs, program) of each block."""
    found = []
    for block in (SECOND / "effects.txt").read_text(encoding="utf-8").strip().split("\n\n"):
        title, expected, opset, *lines = block.splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("graph"))
        program = "\n".join(["#nncdbg 1", opset, *lines[start:]]) + "\n"
        found.append((title.removeprefix("# "), expected.removeprefix("expect "), lines[:start], program))
    return found


CASES = cases()


@pytest.mark.parametrize(
    ("expected", "inputs", "program"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_watch_reports_the_origin_of_an_effect(expected: str, inputs: list[str], program: str) -> None:
    report = nncdbg.watch(nncdbg.parse(program), _arrays(inputs))
    assert report.error is None
    first = next((finding for finding in report.tripping if finding.first), None)
    reported = "ok" if first is None else f"{first.kind} at %{first.site.value}, {first.cause}"
    assert reported == expected
    assert report.ok == (expected == "ok")


def _arrays(lines: list[str]) -> dict[str, object]:
    """Return the inputs; each line is a constant in program text."""
    names = [match["name"] for line in lines if (match := _INPUT.fullmatch(line))]
    results = ", ".join(f"%{name}.out" for name in names)
    body = "\n".join([*lines, *(f"%{name}.out = Identity(%{name})" for name in names)])
    debugger = nncdbg.Debugger(
        nncdbg.parse(f"graph @inputs() -> ({results}) {{\n{body}\nreturn {results}\n}}\n")
    )
    debugger.run()
    assert debugger.outputs is not None
    return {name: debugger.outputs[f"{name}.out"] for name in names}
