"""The cause of NaN in an activation of an infinite element, and in its derivative, names that element."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.nn import functional  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402

ROWS = """
silu      -inf 1    aten.silu.default             -inf
gelu      -inf 1    aten.gelu.default             -inf
mish      -inf 1    aten.mish.default             -inf
sigmoid   200  inf  aten.sigmoid_backward.default inf
tanh      200  inf  aten.tanh_backward.default    inf
silu      inf  1    aten.silu_backward.default    inf
"""


@pytest.mark.parametrize("row", ROWS.strip().splitlines(), ids=lambda row: "-".join(row.split()[:3]))
def test_activation_of_an_infinite_element(row):
    name, given, gradient, op, number = row.split()
    x = torch.tensor([0.5, float(given), -0.5, 1.0], requires_grad=True)
    function = getattr(functional, name)
    with nncdbg.torch.record() as step:
        function(x).backward(torch.tensor([1.0, float(gradient), 2.0, 3.0]))
    report = nncdbg.watch(step, fail_on="nan")
    found = next(each for each in report.findings if each.op == op)
    assert found.cause == "zero times infinity"
    assert f"at [1] is {number}, and {op.split('.')[1]} multiplies it by a factor of 0" in found.evidence
    assert "torch.where" in found.hint
