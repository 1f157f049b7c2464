"""The gates of `nncdbg watch` measure the tensors of a recorded step."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402


@pytest.fixture(scope="module")
def step():
    x = torch.linspace(-1, 1, 100)
    with nncdbg.torch.record() as recorded:
        large = x * 3000
        rare = torch.relu(x - 0.98)
        torch.sigmoid(large) + rare
        large.half()
    return recorded


@pytest.mark.parametrize(
    ("gate", "ops"),
    [
        ("growth:2000", ["aten.mul.Tensor"]),
        ("zeros:0.9", ["aten.relu.default"]),
        ("abs>2500", ["aten.mul.Tensor"]),
        ("headroom:30", ["aten._to_copy.default"]),
        ("headroom:4", []),
        ("growth:4000", []),
    ],
)
def test_gate_trips_at_the_operators_of_torch(step, gate, ops):
    report = nncdbg.watch(step, fail_on=gate)
    assert report.status == ("tripped" if ops else "ok"), report.error
    assert [each.op for each in report.findings][: len(ops)] == ops
