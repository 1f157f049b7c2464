"""Every case of ONNX's backend test: run to the end, stepped, and run from its text and from its export.

The nightly tests run all node cases, in chunks, and the light models.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.errors import NncdbgError
from tests.conformance.cases import KINDS, Case, cases
from tests.conformance.ways import WAYS, watched_run

CHUNKS = 40

every_way = pytest.mark.parametrize("way", WAYS)


def known_divergences() -> dict[str, str]:
    """Return the known divergences: case name to reason."""
    lines = (Path(__file__).with_name("known.txt")).read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


KNOWN = known_divergences()


def judge(chosen: Iterable[Case], way: str) -> list[str]:
    """Return the unexpected results: cases that fail, and known divergences that pass."""
    wrong = []
    for case in chosen:
        failure = _failure(case, way)
        if failure is None and case.name in KNOWN:
            wrong.append(f"{case}: passes, but known.txt lists it: {KNOWN[case.name]}")
        elif failure is not None and case.name not in KNOWN:
            wrong.append(f"{case}: {failure}")
    return wrong


def _failure(case: Case, way: str) -> str | None:
    try:
        WAYS[way](case)
    except (AssertionError, NncdbgError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {' | '.join(lines[:5])[:400]}"
    return None


@every_way
@pytest.mark.parametrize("kind", ["simple", "pytorch-operator", "pytorch-converted"])
def test_models_conform(kind: str, way: str) -> None:
    assert judge(cases(kind), way) == []


@pytest.mark.nightly
@every_way
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_node_case_conforms(chunk: int, way: str) -> None:
    assert judge(cases("node")[chunk::CHUNKS], way) == []


@pytest.mark.nightly
@every_way
@pytest.mark.parametrize("index", range(9))
def test_light_models_conform(index: int, way: str) -> None:
    assert judge(cases("light")[index : index + 1], way) == []


@pytest.mark.parametrize("allocator", ["debug", "arena", "poison"])
def test_valid_nan_and_inf_are_not_memory_findings(allocator: str) -> None:
    chosen = [case for case in cases("node") if not all(finite(wanted) for _, wanted in case.sets)]
    assert len(chosen) >= 100
    for case in chosen:
        watched_run(case, allocator)


def finite(value: Any) -> bool:
    """Return False if an expected output contains NaN or Inf."""
    if isinstance(value, list):
        return all(map(finite, value))
    if value is None or name_of(value.dtype) not in FLOATS:
        return True
    return bool(np.isfinite(value.astype(np.float64)).all())


def test_all_cases_of_onnx_are_collected() -> None:
    """The minimum counts are those of onnx 1.23; a later wheel may have more cases."""
    least = {"node": 1884, "simple": 23, "pytorch-operator": 35, "pytorch-converted": 82, "light": 9}
    assert {kind: max(len(cases(kind)), least[kind]) for kind in KINDS} == {
        kind: len(cases(kind)) for kind in KINDS
    }


def test_known_divergences_exist() -> None:
    names = {case.name for kind in KINDS for case in cases(kind)}
    assert KNOWN.keys() <= names
    assert all(reason.strip() for reason in KNOWN.values())
