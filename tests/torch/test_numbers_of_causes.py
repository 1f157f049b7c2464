"""Causes evaluate numbers as torch does, and infinities in half precision are judged in a wider type."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402

HALF = "overflow of half precision"
RAMP = [0.1, 2.0, 10.0]


def watched(values, function, strict=True):
    model = torch.nn.Module()
    model.p = torch.nn.Parameter(torch.tensor(values))
    with nncdbg.torch.record(model, torch.optim.SGD([model.p], 0.1)) as step:
        function(model.p).float().sum().backward()
    return nncdbg.watch(step, strict=strict)


@pytest.mark.parametrize(
    ("values", "function", "cause", "evidence"),
    [
        (RAMP, lambda x: x.half() * 65520.0, HALF, "2 * 65520 at [1] = 131040, and the largest f16 is 65504"),
        (RAMP, lambda x: x.half() + 65520.0, HALF, "0.09998 + 65520 at [0] is 65520"),
        (RAMP, lambda x: x.half() / 1e-8, HALF, "0.09998 / 1e-8 at [0] = 9.998e6"),
        (RAMP, lambda x: 65520.0 - x.half(), HALF, "other of aten.rsub.Scalar is 65520, and the largest f16"),
        (RAMP, lambda x: torch._foreach_mul([x.half()], 65520.0)[0], HALF, "2 * 65520 at [1] = 131040"),
        ([1.0], lambda x: x * 1e39, "bad parameter", "other of aten.mul.Tensor is 1e39, and the largest f32"),
        ([0.0], lambda x: x * 1e39, "bad parameter", "other of aten.mul.Tensor is 1e39, and the largest f32"),
        ([0.0], lambda x: x.half() / 1e-50, "zero divided by zero", "0 / 0 at [0]; other=1e-50"),
        (
            [[0.1, 0.2], [0.3, 0.6]],
            torch.logdet,
            "log of zero",
            "its rank is 1 of 2, so its determinant is 0",
        ),
        (
            [[0.0, 1.0], [2.0, 0.0]],
            torch.logdet,
            "log of a negative number",
            "the determinant of %p is negative",
        ),
        (
            [1.0, -2.0, 3.0],
            lambda x: torch.logdet(x[:, None, None] * torch.ones(3, 1, 1)),
            "log of a negative number",
            "the determinant of %mul at [1] is negative; 1 of 3 determinants are",
        ),
    ],
)
def test_numbers_are_evaluated_in_the_precision_of_torch(values, function, cause, evidence):
    first = next(each for each in watched(values, function).findings if each.first)
    assert first.cause == cause
    assert evidence in first.evidence


def test_an_rms_norm_in_f16_that_heals_to_zero_is_wrong():
    def norm(x):
        x = x.half()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    report = watched([[600.0, 700.0]], lambda x: norm(x).square(), strict=False)
    first = report.findings[0]
    assert (first.op, first.cause) == ("aten.pow.Tensor_Scalar", HALF)
    assert "exactly" in first.evidence
    assert "not checked" not in first.evidence


def test_an_infinity_in_f16_that_heals_to_the_right_number_is_no_alarm():
    report = watched([-20.0, 1.0], lambda x: x + 1 / (1 + (-x.detach().half()).exp()), strict=False)
    assert report.ok
    assert report.findings[0].role == "masked"
