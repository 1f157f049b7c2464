"""Numbers that make no NaN and no Inf: `catch` does not read such results, and finds the same."""

import math

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.engine.ops.aten.internals import DispatchMode, all_operator_names  # noqa: E402
from nncdbg.engine.ops.aten.operators import HARMLESS  # noqa: E402
from nncdbg.engine.ops.aten.signatures import signature_of  # noqa: E402
from nncdbg.torch.live.mode import is_harmless  # noqa: E402

NUMBERS = [0.0, 1e-45, -1e-8, 0.5, 1, -1.0, 1 + 1e-7, 2, 1e8, -1e30, math.inf, -math.inf, math.nan]


def overload(name):
    namespace, base, form = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), form)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_number_keeps_each_element_finite_inf_or_nan(name, dtype):
    limits = torch.finfo(dtype)
    elements = [0.0, -0.0, 1.0, limits.max, limits.min, limits.tiny, limits.smallest_normal / 2, 3e4]
    x = torch.tensor([*elements, math.inf, -math.inf, math.nan], dtype=torch.float64).to(dtype)
    several = "_foreach_" in name
    for number in NUMBERS:
        if is_harmless(HARMLESS[name], ([x] if several else x, number), {}):
            operand = x.clone()
            result = overload(name)([operand] if several else operand, number)
            result = operand if "_." in name else result[0] if several else result
            assert torch.equal(result.isnan(), x.isnan()), number
            assert torch.equal(result.isinf(), x.isinf()), number


def test_some_numbers_of_each_operator_are_harmless_and_some_are_not():
    x = torch.ones(2)
    for name, rule in HARMLESS.items():
        first = [x] if "_foreach_" in name else x
        found = [is_harmless(rule, (first, number), {}) for number in NUMBERS]
        assert any(found), name
        assert not all(found), name


def test_other_arguments_are_not_harmless():
    rule, x = HARMLESS["aten.add.Tensor"], torch.ones(2)
    assert is_harmless(rule, (x, 0.5), {})
    assert not is_harmless(rule, (x, 0.5), {"alpha": 1e38})
    assert not is_harmless(rule, (x, x), {})
    assert not is_harmless(rule, (x.long(), 0.5), {})


def test_names_are_those_of_torch():
    known = {*all_operator_names()}
    for name in HARMLESS:
        assert overload(name).name() in known


def test_update_of_adam_has_such_operators():
    seen = []

    class Mode(DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            rule = HARMLESS.get(signature_of(func).name)
            if rule is not None and is_harmless(rule, args, kwargs or {}):
                seen.append(signature_of(func).name)
            return func(*args, **(kwargs or {}))

    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter], foreach=False)
    parameter.grad = torch.ones(3)
    with Mode():
        optimizer.step()
    assert seen.count("aten.mul_.Tensor") == 2, "decay of weights and of the second moment"
    assert seen.count("aten.add_.Tensor") >= 1, "eps"
