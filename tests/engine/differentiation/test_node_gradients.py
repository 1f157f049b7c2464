"""The gradient of every float op of ONNX against finite differences, at the operands of ONNX's node cases.

A gradient is checked along one random direction v per operand, for a loss <w, y> with random weights w:
the difference of the loss is <J v, w>, and the gradient gives <v, Jᵀ w>.  `test_every_op.py` has the second
derivatives.

The default run uses a sample of the cases; `-m conformance` uses all.  Ops without a gradient are skipped:
`docs/GRADIENTS.md` lists them with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from nncdbg.engine.differentiation.differentiability import differentiability
from tests.conformance.cases import Case, cases
from tests.engine.differentiation.node_gradients import Check, cases_by_op, check, op_of

CHUNKS = 20


def known_patterns() -> dict[str, str]:
    lines = Path(__file__).with_name("known.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


KNOWN = known_patterns()


def is_known(case: Case) -> bool:
    return any(fnmatch(case.name, pattern) for pattern in KNOWN)


def with_gradients() -> list[Case]:
    """The cases of ops of ONNX that have a gradient."""
    return [
        case
        for op, found in sorted(cases_by_op().items())
        if not op.startswith("ai.onnx.preview") and differentiability(op).kind != "none"
        for case in found
        if not is_known(case)
    ]


def wrong(chosen: Iterable[Case]) -> tuple[int, list[str]]:
    """Return the number of compared cases, and the cases with a gradient that differs."""
    compared, failures = 0, []
    for case in chosen:
        try:
            found: Check | None = check(case)
        except AssertionError as error:
            failures.append(f"{case}: {error}")
            continue
        compared += found is not None
        failures += [f"{case}: {each}" for each in (found.wrong if found is not None else [])]
    return compared, failures


def test_gradients_of_a_sample_of_node_cases() -> None:
    by_op: dict[str, list[Case]] = {}
    for case in with_gradients():
        by_op.setdefault(op_of(case), []).append(case)
    chosen = [each for found in by_op.values() for each in found[:: max(1, len(found) - 1)]]
    compared, failures = wrong(chosen)
    assert failures == []
    assert compared >= 200


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_gradients_of_all_node_cases(chunk: int) -> None:
    assert wrong(with_gradients()[chunk::CHUNKS])[1] == []


def test_known_patterns_match_a_case() -> None:
    names = [case.name for case in cases("node")]
    assert all(any(fnmatch(name, pattern) for name in names) for pattern in KNOWN if " " not in pattern)
