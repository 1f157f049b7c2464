"""A scheduled program with many cases: its schedule is validated once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.comparison.launches import launches
from nncdbg.nan_watch.corpus import WatchTask
from nncdbg.nan_watch.measuring.gates import USUAL, Gates
from nncdbg.nan_watch.watching import WatchCriteria
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.corpus.running import jobs_of
from nncdbg.opening.corpus.source import CorpusProgram


def test_a_schedule_is_validated_once_for_all_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = nncdbg.load("examples/two_streams.nnc")
    names = [value.name for value in program.graph.inputs]
    for index in range(4):
        shapes = [nncdbg.Debugger(program).value(name).shape for name in names]
        arrays: dict[str, Any] = {
            name: np.ones(shape, np.float32) for name, shape in zip(names, shapes, strict=True)
        }
        np.savez(tmp_path / f"{index}.npz", **arrays)
    calls = []

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return launches(*given, **named)

    monkeypatch.setattr("nncdbg.engine.schedules.validation.launches", counted)
    source = CorpusProgram(RunConfiguration(program="examples/two_streams.nnc"))
    watch = WatchTask(source, WatchCriteria(Gates.of(USUAL))).open()
    results = [watch.run(job, None) for job in jobs_of(tmp_path, 1, 0)[0]]
    assert {result.case.status for result in results} == {"tripped"}
    assert all(any(each.kind == "race" for each in result.found[0].findings) for result in results)
    assert len(calls) == 1
