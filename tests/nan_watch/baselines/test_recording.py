"""Recording a good run, and comparing another run with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.nan_watch.recording import read

TEXT = """#nncdbg 1
graph @main(%x: f32[8,4]) -> (%y: f32[8,4]) {
  %k: f32[] = SCALE
  %n: i64[] = 3
  %h = Mul(%x, %k)
  while @refine (%s: f32[8,4] = %h) times %n {
    %r = Relu(%s)
    %t = Tanh(%r)
    next %s = %t
  } -> (%last = %s)
  %y = Add(%last, 1.0)
  return %y
}
"""

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def program(scale: str = "2.0", text: str = TEXT) -> Any:
    return nncdbg.parse(text.replace("SCALE", scale))


def recorded(folder: Path, **fields: Any) -> Path:
    path = folder / "good.json"
    report = nncdbg.watch(program(), {"x": X}, record=path, **fields)
    assert report.ok
    assert not report.cases
    return path


def test_a_recording_is_sorted_and_deterministic_with_one_statement_per_line(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    text = path.read_text()
    assert text == recorded(tmp_path).read_text()
    statements = json.loads(text)["statements"]
    assert list(statements) == sorted(statements)
    assert set(statements) == {
        "main %h Mul", "main/refine %r Relu", "main/refine %t Tanh", "main %y Add",
    }  # fmt: skip
    assert [line for line in text.splitlines() if "Relu" in line] != []
    assert len(text.splitlines()) == len(statements) + 4
    relu = statements["main/refine %r Relu"]
    assert relu["visits"] == 3
    assert relu["count"] == 3 * 32
    good = read(path)
    assert good.statements["main %h Mul"].summary == nncdbg.summarize(X * np.float32(2))
    assert not list(tmp_path.glob(".*"))


def test_the_same_run_has_no_changes(tmp_path: Path) -> None:
    report = nncdbg.watch(program(), {"x": X}, against=recorded(tmp_path), fail_on="change:0.0001")
    assert report.ok
    assert report.unchecked == []


def test_changed_statements_are_reported_in_order_with_both_values(tmp_path: Path) -> None:
    report = nncdbg.watch(program("3.0"), {"x": X}, against=recorded(tmp_path), fail_on="change:0.2")
    assert report.status == "tripped"
    values = [each.site.value for each in report.findings]
    assert values[0] == "h"
    assert report.findings[0].first
    lines = [each.site.line or 0 for each in report.findings]
    assert lines == sorted(lines)
    assert all(lines)
    first = report.findings[0]
    assert first.actual == pytest.approx(0.5, rel=1e-5)
    assert first.threshold == 0.2
    before, after = float(np.abs(X).max()) * 2, float(np.abs(X).max()) * 3
    assert f"{before:.6g}" in first.evidence
    assert f"{after:.6g}" in first.evidence
    assert first.inputs[0].stats == nncdbg.summarize(X * np.float32(2))
    assert first.stats == nncdbg.summarize(X * np.float32(3))


def test_against_without_a_gate_uses_the_default_limit(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    assert nncdbg.watch(program("2.01"), {"x": X}, against=path).ok
    found = nncdbg.watch(program("4.0"), {"x": X}, against=path).findings[0]
    assert found.threshold == 0.1


def test_a_pattern_selects_the_compared_statements(tmp_path: Path) -> None:
    report = nncdbg.watch(
        program("9.0"), {"x": X}, against=recorded(tmp_path), fail_on="change:0.1 in refine"
    )
    assert {each.site.value for each in report.findings} <= {"r", "t"}
    assert report.findings


def test_a_new_nan_is_an_infinite_change(tmp_path: Path) -> None:
    bad = X.copy()
    bad[0, 0] = np.nan
    report = nncdbg.watch(program(), {"x": bad}, against=recorded(tmp_path), fail_on="change")
    changes = [each for each in report.findings if each.kind == "change"]
    assert changes[0].evidence.startswith("nan was 0 and is 1")
    assert changes[0].actual == float("inf")


def test_new_and_missing_statements_are_reported(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    edited = TEXT.replace("%y = Add(%last, 1.0)", "%z = Neg(%last)\n  %y = Sub(%last, 1.0)")
    report = nncdbg.watch(program(text=edited), {"x": X}, against=path, fail_on="change")
    assert report.unchecked == [
        "change:0.1: 1 recorded statements did not run: main %y Add",
        "change:0.1: 2 statements are not in the recording: main %y Sub; main %z Neg",
    ]


def test_a_recording_of_another_model_is_an_error(tmp_path: Path) -> None:
    other = nncdbg.parse("#nncdbg 1\ngraph @main(%x: f32[2]) -> (%o) {\n  %o = Neg(%x)\n  return %o\n}\n")
    with pytest.raises(nncdbg.UsageError, match="another model") as caught:
        nncdbg.watch(other, against=recorded(tmp_path))
    assert "0 of its 4 statements" in str(caught.value)


def test_a_change_gate_needs_a_recording() -> None:
    with pytest.raises(nncdbg.UsageError, match="needs a recorded good run") as caught:
        nncdbg.watch(program(), {"x": X}, fail_on="nan,change:0.5")
    assert "--against" in (caught.value.hint or "")


DAMAGED = [
    ("", "damaged"),
    ("{", "damaged"),
    ("[]", "not a recording"),
    ('{"a": 1}', "not a recording"),
    ('{"nncdbg_recording": 99}', "version 99"),
    ('{"nncdbg_recording": 1}', "damaged"),
    ('{"nncdbg_recording": 1, "model": "", "program": "", "statements": []}', "damaged"),
    ('{"nncdbg_recording": 1, "model": "", "program": "", "statements": {"a": {}}}', "damaged"),
    ('{"nncdbg_recording": 1, "model": "", "program": "", "statements": {"a": {"order": "x"}}}', "damaged"),
    ("[" * 100_000, "damaged"),
]


@pytest.mark.parametrize(("text", "message"), DAMAGED)
def test_a_damaged_recording_is_an_error_with_a_reason(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "good.json"
    path.write_text(text)
    with pytest.raises(nncdbg.LoadError, match=message):
        nncdbg.watch(program(), {"x": X}, against=path)


def test_an_unreadable_or_unwritable_recording_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(nncdbg.LoadError, match="cannot read the recording"):
        nncdbg.watch(program(), {"x": X}, against=tmp_path / "missing.json")
    with pytest.raises(nncdbg.LoadError, match="cannot write the recording"):
        nncdbg.watch(program(), {"x": X}, record=tmp_path / "no" / "good.json")


def test_several_runs_make_one_recording_with_a_case_per_seed(tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    report = nncdbg.watch(program(), runs=4, seed=5, record=path)
    assert [case.name for case in report.cases] == ["seed 5", "seed 6", "seed 7", "seed 8"]
    assert all(case.status == "ok" for case in report.cases)
    assert read(path).statements["main %h Mul"].visits == 4
    assert nncdbg.watch(program(), runs=4, seed=5, against=path, fail_on="change:0.0001").ok
    other = nncdbg.watch(program("20.0"), runs=4, seed=5, against=path)
    assert not other.ok


def test_a_finding_has_the_first_seed_in_which_it_occurred() -> None:
    text = TEXT.replace("%h = Mul(%x, %k)", "%u = Mul(%x, %k)\n  %h = Log(%u)").replace("8,4", "1,1")
    report = nncdbg.watch(program(text=text), runs=6, fail_on="nan")
    negative = [
        seed for seed in range(6) if nncdbg.watch(program(text=text), seed=seed, fail_on="nan").findings
    ]
    assert 0 < len(negative) < 6
    births = [each for each in report.findings if each.role == "birth"]
    assert [(each.case, each.count) for each in births] == [(f"seed {negative[0]}", len(negative))]
    statuses = ["tripped" if seed in negative else "ok" for seed in range(6)]
    assert [case.status for case in report.cases] == statuses
