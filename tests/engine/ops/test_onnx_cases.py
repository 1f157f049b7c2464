"""Every op of these modules against ONNX's own node cases."""

from __future__ import annotations

import pytest

from nncdbg.engine.ops import declared, names
from tests.engine.ops.onnx_cases import RANDOM, cases_of, check, uncovered

MODULES = frozenset(
    ["activation", "cast", "creation", "early", "elementwise", "images", "indexing", "reduce", "resize"]
    + ["shape", "softmax"]
)
OWN_TESTS = {
    # Ops tested in the named module instead.
    "Bernoulli": "test_random_ops",
    "Dropout": "test_random_ops",
    "MaxRoiPool": "test_regions",
    "Multinomial": "test_random_ops",
    "RandomNormal": "test_random_ops",
    "RandomNormalLike": "test_random_ops",
    "RandomUniform": "test_random_ops",
    "RandomUniformLike": "test_random_ops",
    "RoiAlign": "test_regions",
}


def in_these_modules(name: str) -> bool:
    """Whether an op of ONNX is defined in `MODULES`.

    onnxruntime's ops are covered by `test_microsoft_ops`, those of nncdbg by their samples (`samples.py`).
    """
    if name.startswith("nncdbg."):
        return False
    functions = [version.kernel or version.formula for version in declared(name)]
    modules = [function.__module__.rpartition(".") for function in functions if function is not None]
    return all(name in MODULES and not room.endswith(".microsoft") for room, _, name in modules)


OPS = [name for name in names() if in_these_modules(name)]


@pytest.mark.parametrize("name", [name for name in OPS if name not in OWN_TESTS or name == "Dropout"])
def test_kernel_and_inference_agree_with_onnx(name: str) -> None:
    cases = cases_of([name])
    assert cases, f"ONNX has no node case for {name}: add its test module to OWN_TESTS"
    for case in cases:
        try:
            check(case)
        except Exception as error:
            error.add_note(f"in the case {case.name}, opset {case.version}")
            raise


def test_every_op_is_tested() -> None:
    assert uncovered(OPS, tested=OWN_TESTS) == []
    assert RANDOM & set(OPS) <= set(OWN_TESTS)


def test_no_module_is_missing() -> None:
    """The number of ops can only grow; a module that is no longer imported would reduce it."""
    assert len(OPS) >= 109
