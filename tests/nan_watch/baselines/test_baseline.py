"""The baseline: known findings are accepted, new ones fail, and missing ones are reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import LoadError, RunError, UsageError
from nncdbg.nan_watch.baseline import (
    Baseline,
    BaselineComparison,
    compare,
    read_baseline,
    write_baseline,
)
from nncdbg.nan_watch.records import FindingSite, Report, WatchFinding, key_of
from nncdbg.nan_watch.reports import NotWritten
from nncdbg.opening.corpus.cases import Case
from tests.nan_watch.reports.made_reports import INF_BORN, MASKED, NAN_BORN, failed, plain

NET = """#nncdbg 1
graph @main(%x: f32[4]) -> (%y: f32[4], %z: f32[4]) {
  %p: f32[4] = Relu(%x)
  %y: f32[4] = Log(%p)
  %0: f32[4] = Sqrt(%x)
  %z: f32[4] = Neg(%0)
  return %y, %z
}
"""
X = {"x": np.array([1, -1, 0, 4], np.float32)}


def _report(text: str = NET, model: str = "net.nnc") -> tuple[Report, nncdbg.Program]:
    program = nncdbg.parse(text)
    report = nncdbg.watch(program, X)
    report.model = model
    return report, program


def _baseline() -> Baseline:
    return Baseline.of(*_report())


def _compared(text: str, baseline: Baseline | None = None) -> BaselineComparison:
    report, program = _report(text)
    return compare(report, baseline or _baseline(), program)


def _tripping(comparison: BaselineComparison) -> list[str]:
    return [f"{each.kind} {each.site.value}" for each in comparison.report.tripping]


def test_the_file_is_sorted_with_one_finding_per_line() -> None:
    text = _baseline().text()
    rows = [json.loads(line.strip().rstrip(",")) for line in text.splitlines() if line.startswith("  {")]
    assert [(row["value"], row["kind"]) for row in rows] == sorted(
        (row["value"], row["kind"]) for row in rows
    )
    assert {(row["value"], row["op"], row["kind"]) for row in rows} >= {
        ("0", "Sqrt", "nan"),
        ("y", "Log", "inf"),
    }
    document = json.loads(text)
    assert document["model"] == "net.nnc"
    assert (document["inputs"], document["outputs"]) == (["x"], ["y", "z"])
    assert "line" not in rows[0]


def test_a_written_baseline_reads_back_the_same(tmp_path: Path) -> None:
    with_special_characters = replace(INF_BORN, site=FindingSite(1, 'a"b', "", "Log", "x\ud800\n"))
    made = Baseline.of(replace(plain(), findings=[with_special_characters, NAN_BORN]), nncdbg.parse(NET))
    (tmp_path / "baseline.json").write_text(made.text())
    assert read_baseline(tmp_path / "baseline.json") == made
    assert Baseline.of(replace(plain(), findings=[]), nncdbg.parse(NET)).known == ()


def test_known_findings_do_not_fail() -> None:
    compared = _compared(NET)
    assert compared.report.ok
    assert not compared.gone
    assert not compared.moved
    assert len(compared.accepted) == len(list(_report()[0].tripping)) > 1
    count = len(compared.accepted)
    assert compared.report.notes[-1] == f"{count} known findings accepted by the baseline, not listed"
    assert not {key_of(each) for each in compared.report.findings} & {
        key_of(each) for each in compared.accepted
    }


EDITS = {
    "a line before": ("  %p: f32[4]", "  %other: f32[4] = Neg(%x)\n  %p: f32[4]"),
    "a comment and a location": ("= Log(%p)", '= Log(%p)   loc("other.py":99)'),
    "another output": ("%z: f32[4])", "%z: f32[4], %p: f32[4])"),
    "another number of an automatic name": ("%0", "%17"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_known_findings_stay_known_after_a_small_edit(edit: str) -> None:
    old, new = EDITS[edit]
    text = NET.replace(old, new)
    if edit == "another output":
        text = text.replace("return %y, %z", "return %y, %z, %p")
    assert text != NET
    compared = _compared(text)
    assert compared.report.ok, _tripping(compared)
    assert not compared.gone


def test_a_moved_value_is_reported() -> None:
    compared = _compared(NET.replace("%0", "%17"))
    assert [(known.key[1], finding.site.value) for known, finding in compared.moved] == [("0", "17")]
    assert "moved: known in %0, now in %17" in compared.report.notes


def test_only_a_new_finding_fails() -> None:
    text = NET.replace("return", "%w: f32[4] = Log(%x)\n  return").replace(
        "%z: f32[4])", "%z: f32[4], %w: f32[4])"
    )
    compared = _compared(text.replace("return %y, %z", "return %y, %z, %w"))
    assert compared.report.status == "tripped"
    assert {each.site.value for each in compared.report.tripping} == {"w"}


def test_a_renamed_value_is_a_new_finding() -> None:
    compared = _compared(NET.replace("%y", "%fc2"), replace(_baseline(), outputs=("fc2", "z")))
    assert _tripping(compared) == ["inf fc2"]
    assert [each.key[1] for each in compared.gone] == ["y"]


@pytest.mark.parametrize(
    ("old", "new"), [("Log(%p)", "Exp(%p)"), ("%0: f32[4] = Sqrt(%x)", "%0: f32[4] = Exp(%x)")]
)
def test_missing_findings_are_reported(old: str, new: str) -> None:
    compared = _compared(NET.replace(old, new))
    assert compared.report.ok
    assert compared.gone
    assert any(note.startswith("no longer found (1): ") for note in compared.report.notes)


def test_an_unfinished_run_reports_no_missing_finding() -> None:
    known = Baseline.of(plain(), nncdbg.parse(NET))
    assert compare(failed(), replace(known, model=""), nncdbg.parse(NET)).gone == ()
    broken = replace(failed(), error=None, cases=[Case("a", "crashed", error="killed")])
    assert compare(broken, replace(known, model=""), nncdbg.parse(NET)).gone == ()


def test_an_accepted_masked_finding_fails_once_it_reaches_an_output() -> None:
    program = nncdbg.parse(NET)
    masked = replace(MASKED, trips=True)
    report = Report("net.nnc", findings=[masked])
    baseline = Baseline.of(report, program)
    assert compare(report, baseline, program).report.ok
    worse = Report("net.nnc", findings=[replace(masked, role="birth", reaches_output=True)])
    assert not compare(worse, baseline, program).report.ok
    assert compare(report, Baseline.of(worse, program), program).report.ok


def test_a_finding_in_several_cases_and_iterations_counts_once() -> None:
    program = nncdbg.parse(NET)
    found = [replace(NAN_BORN, case=case, iteration=(at,)) for case in "ab" for at in (1, 2)]
    assert len(Baseline.of(Report("net.nnc", findings=found), program).known) == 1


def test_a_known_value_matches_only_one_moved_value() -> None:
    def numbered(name: str) -> WatchFinding:
        return replace(INF_BORN, site=replace(INF_BORN.site, value=name))

    program = nncdbg.parse(NET)
    known = Baseline.of(Report("net.nnc", findings=[numbered("val_3")]), program)
    compared = compare(Report("net.nnc", findings=[numbered("val_4"), numbered("val_9")]), known, program)
    assert _tripping(compared) == ["inf val_9"]
    assert _tripping(compare(Report("", findings=[numbered("fc_4")]), known, program)) == ["inf fc_4"]


def test_a_baseline_needs_all_findings(tmp_path: Path) -> None:
    program = nncdbg.parse(NET)
    report = Report("net.nnc", findings=[NAN_BORN], unlisted=29)
    compared = compare(report, Baseline.of(report, program), program).report
    assert compared.status == "failed"
    assert isinstance(compared.error, UsageError)
    assert compared.error.message == "a baseline needs all findings, but 29 are not listed"
    assert compared.error.hint == "list all findings with --max-findings 30"
    others = Baseline.of(plain(), program)
    assert compare(report, replace(others, model=""), program).gone == ()
    with pytest.raises(UsageError, match="29 are not listed"):
        write_baseline(tmp_path / "baseline.json", report, program)
    # Findings that trip are listed first: if one that does not trip is listed, all that trip are listed.
    all_that_trip = Report("net.nnc", findings=[NAN_BORN, MASKED], unlisted=28)
    assert compare(all_that_trip, Baseline.of(report, program), program).report.ok


def test_a_note_of_the_user_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    baseline = write_baseline(file, *_report())
    assert file.read_text() == baseline.text() == _baseline().text()
    first = replace(baseline.known[0], note="the last row is padding")
    file.write_text(replace(baseline, known=(first, *baseline.known[1:])).text())
    rewritten = write_baseline(file, *_report())
    assert rewritten.known[0].note == "the last row is padding"
    assert file.read_text().count('"note"') == 1


def test_a_baseline_does_not_replace_other_files_and_needs_a_finished_run(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"\x08\x08weights")
    with pytest.raises(LoadError):
        write_baseline(file, *_report())
    assert file.read_bytes() == b"\x08\x08weights"
    program = nncdbg.parse(NET)
    for unfinished in (failed(), replace(plain(), interrupted=True)):
        with pytest.raises(RunError, match="the run did not finish"):
            write_baseline(tmp_path / "new.json", unfinished, program)
    with pytest.raises(NotWritten, match="Not a directory"):
        write_baseline(file / "baseline.json", *_report())
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "resnet.onnx"}, "the baseline is for resnet.onnx, but the model is net.nnc"),
        ({"inputs": ("image",), "outputs": ("probs",)}, "the baseline is for another net.nnc"),
    ],
)
def test_the_baseline_of_another_model_is_an_error(changed: dict[str, object], message: str) -> None:
    report, program = _report()
    with pytest.raises(UsageError, match=message) as caught:
        compare(report, replace(_baseline(), **changed), program)  # type: ignore[arg-type]
    assert caught.value.hint


def test_the_same_file_in_another_folder_is_the_same_model() -> None:
    report, program = _report(model="/elsewhere/net.nnc")
    assert compare(report, _baseline(), program).report.ok


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "is not JSON"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `nncdbg_baseline`"),
        ('{"nncdbg_baseline": 2}', "Invalid enum value 2 - at `$.nncdbg_baseline`"),
        ('{"nncdbg_baseline": 1, "model": 3}', "Expected `str`, got `int` - at `$.model`"),
        ('{"nncdbg_baseline": 1, "model": "a"}', "missing required field `findings`"),
        ('{"nncdbg_baseline": 1, "model": "a", "findings": [3]}', "at `$.findings[0]`"),
        (
            '{"nncdbg_baseline": 1, "model": "a", "findings": [{"graph": "m"}]}',
            "missing required field `value` - at `$.findings[0]`",
        ),
    ],
)
def test_an_invalid_baseline_is_an_error_with_its_place(
    content: str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "baseline.json"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(LoadError) as caught:
        read_baseline(file)
    assert message in caught.value.message
