"""Every kernel of onnxruntime against nncdbg's on ONNX's node cases, with and without an output buffer."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg.dtypes import NUMPY
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.errors import UnsupportedOp
from nncdbg.ir.records import TensorType
from tests.engine.backends.calls import call_of, results_of
from tests.engine.ops.onnx_cases import NodeCase, all_cases, assert_close, sizes_of, type_of

pytest.importorskip("onnxruntime")

KNOWN = Path(__file__).parents[2] / "known" / "onnxruntime.txt"
BLOCKS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Ops with subgraphs, which are control flow of the machine."""


@lru_cache(maxsize=1)
def backend() -> Any:
    from nncdbg.engine.backends.onnxruntime import OnnxRuntime

    return OnnxRuntime()


@lru_cache(maxsize=1)
def known() -> dict[str, str]:
    """The reason why onnxruntime and ONNX differ, by case name."""
    lines = [line for line in KNOWN.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def cases() -> list[NodeCase]:
    return [case for case in all_cases() if case.op not in BLOCKS]


def by_op() -> list[Any]:
    ordered = sorted(cases(), key=lambda case: case.op)
    return [pytest.param(list(group), id=op) for op, group in groupby(ordered, key=lambda case: case.op)]


def run(case: NodeCase) -> bool:
    """Check one case; return False if onnxruntime has no kernel for it."""
    bound = call_of(case)
    kernels = backend().bind(bound)
    try:
        results = results_of(bound, kernels.run(*case.inputs))
    except UnsupportedOp:
        return False
    with np.errstate(all="ignore"):
        ours = results_of(bound, NumPy().bind(bound).run(*case.inputs))
    for theirs, mine, expected in zip(results, ours, case.outputs, strict=False):
        if expected is not None:
            assert_close(theirs, mine, case.rtol, case.atol)
            assert_close(theirs, expected, case.rtol, case.atol)
    if kernels.into is not None:
        assert bound.op.infer is not None
        planned = bound.op.infer(bound.attributes, [type_of(array) for array in case.inputs])[0]
        if isinstance(planned, TensorType) and planned.concrete and planned.dtype != "str":
            buffer = np.full(sizes_of(planned), 0, NUMPY[planned.dtype])
            assert kernels.into(*case.inputs, buffer) is buffer
            assert_close(buffer, case.outputs[0], case.rtol, case.atol)
    return True


@pytest.mark.parametrize("group", by_op())
def test_kernels_agree(group: list[NodeCase]) -> None:
    for case in group:
        if case.name not in known():
            run(case)


@pytest.mark.parametrize("name", sorted(known()))
def test_known_differences_still_differ(name: str) -> None:
    case = next(case for case in cases() if case.name == name)
    with pytest.raises(Exception, match=r"(?s).*") as caught:
        run(case)
    assert not isinstance(caught.value, (TypeError, AttributeError, NameError)), caught.value


def test_most_cases_have_a_kernel() -> None:
    """Ensures that the tests above do not pass because every case is unsupported."""
    some = [case for case in cases()[::7] if case.name not in known()]
    assert sum(map(run, some)) > 0.7 * len(some)
