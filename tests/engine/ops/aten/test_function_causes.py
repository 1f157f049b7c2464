"""Causes and hints of PyTorch's functions: each step plants one value, and the report names its cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="the operators are those of PyTorch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.nan_watch.records import WatchFinding  # noqa: E402

F = torch.nn.functional


class Planted(NamedTuple):
    """A function of one parameter, and the cause, a part of the evidence, and a part of the hint."""

    values: Any
    function: Callable[[Any], Any]
    cause: str
    evidence: str
    hint: str


FORWARD = {
    "cross entropy without targets": Planted(
        [[1.0, 2.0], [3.0, 4.0]],
        lambda p: F.cross_entropy(p, torch.tensor([-100, -100])),
        "zero divided by zero",
        "are ignore_index (2 elements)",
        "skip a batch without targets",
    ),
    "mean of no elements": Planted(
        [1.0, 2.0],
        lambda p: F.mse_loss(p[p > 9], torch.zeros(0)),
        "empty reduction",
        "the mean of no elements",
        "if selected.numel()",
    ),
    "median of no elements": Planted(
        [1.0, 2.0],
        lambda p: p[p > 9].median(),
        "empty reduction",
        "the median of no elements",
        "if selected.numel()",
    ),
    "weight_norm of zeros": Planted(
        [[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]],
        lambda p: torch._weight_norm(p, torch.ones(3, 1), 0).sum(),
        "zero divided by zero",
        "weight_norm divides %p[1, :] by its norm, which is 0; 1 of 3 norms is 0",
        "initialize the weight",
    ),
    "xlogy of zero": Planted(
        [1.0, 0.0, 2.0],
        lambda p: torch.xlogy(torch.ones(3), p).sum(),
        "log of zero",
        "1 of 3 elements of %p is 0",
        "clamp_min(1e-7)",
    ),
    "kl_div of negative targets": Planted(
        [1.0, 0.0, 2.0],
        lambda p: F.kl_div(p, torch.tensor([0.5, -1.0, 1.0]), reduction="sum"),
        "log of a negative number",
        "the first at [1]: -1",
        "log_target=True",
    ),
    "expm1": Planted(
        [100.0, 1.0], lambda p: p.expm1().sum(), "overflow of the exponential", "exp(100)", "clamp_max(80)"
    ),
    "exp2": Planted([200.0, 1.0], lambda p: p.exp2().sum(), "overflow", "2 ** 200 at [0]", "normalize"),
    "prod": Planted([1e20, 1e20], lambda p: p.prod(), "overflow", "1e40", "normalize"),
    "inverse of a singular matrix": Planted(
        [[1.0, 2.0], [2.0, 4.0]],
        lambda p: torch.linalg.inv_ex(p)[0].sum(),
        "division by zero",
        "%p is singular: its rank is 1 of 2",
        "torch.eye",
    ),
    "logarithm of a singular determinant": Planted(
        [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 2.0], [2.0, 4.0]]],
        lambda p: torch.slogdet(p)[1].sum(),
        "log of zero",
        "%p[1, :, :] is singular",
        "torch.eye",
    ),
    "ctc with repeated labels": Planted(
        [[[0.1, 0.2, 0.3]]] * 3,
        lambda p: F.ctc_loss(p, torch.tensor([[1, 1, 2]]), torch.tensor([3]), torch.tensor([3])),
        "bad batch",
        "3 labels and 1 blank between equal ones for 3 time steps",
        "zero_infinity=True",
    ),
    "lgamma": Planted(
        [-2.0, 1.0], lambda p: p.lgamma().sum(), "outside of the domain", "the first at [0]: -2", "F.softplus"
    ),
    "erfinv": Planted(
        [0.5, 1.0], lambda p: p.erfinv().sum(), "outside of the domain", "outside of (-1, 1)", "x.clamp(-1 +"
    ),
    "acos": Planted(
        [0.5, 2.0], lambda p: p.acos().sum(), "outside of the domain", "outside of [-1, 1]", "x.clamp(-1 +"
    ),
    "logit": Planted([0.5, 1.0], lambda p: p.logit().sum(), "log of zero", "0 or 1", "eps=1e-6"),
    "log1p": Planted(
        [0.5, -1.0], lambda p: p.log1p().sum(), "log of zero", "is -1", "torch.log1p(x.clamp_min(-1 +"
    ),
    "fmod": Planted(
        [1.0, 2.0],
        lambda p: p.fmod(torch.tensor([0.0, 1.0])).sum(),
        "division by zero",
        "is 0",
        "torch.where",
    ),
    "bf16": Planted(
        [1e30, 1.0],
        lambda p: (p.bfloat16() ** 2).sum().float(),
        "overflow of half precision",
        "the largest bf16",
        "normalize or clip",
    ),
}

BACKWARD = {
    "log": Planted(
        [1.0, 0.0],
        lambda p: (torch.log(p) * torch.tensor([1.0, 0.0])).nansum(),
        "zero divided by zero",
        "0 / 0 at [1]",
        "keep the argument above 0 in forward",
    ),
    "logit": Planted(
        [0.5, 1.0],
        lambda p: p.logit().clamp_max(9).sum() + 0 * p.logit().clamp_max(9).sum(),
        "outside of the domain",
        "the derivative of logit is infinite",
        "eps=1e-6",
    ),
    "class weights of zero": Planted(
        [[1.0, 2.0], [3.0, 4.0]],
        lambda p: F.nll_loss(p, torch.tensor([1, 1]), weight=torch.tensor([1.0, 0.0])),
        "zero divided by zero",
        "is divided by %nll_loss_forward, the sum of the weights: 0",
        "skip a batch without targets",
    ),
    "equal eigenvalues": Planted(
        [[1.0, 0.0], [0.0, 1.0]],
        lambda p: torch.linalg.eigh(p)[1].sum(),
        "zero divided by zero",
        "0 / 0 at [0, 1]",
        "distinct values",
    ),
    "root at zero": Planted(
        [0.0, 1.0, 4.0],
        lambda p: p.sqrt().sum(),
        "square root at zero in backward",
        "%mul is 0 at [0]; 1 of 3 elements of %mul is 0",
        "(x + eps).sqrt()",
    ),
    "norm at zero": Planted(
        [[0.0, 0.0], [1.0, 1.0]],
        lambda p: (p[0] * 1).square().sum().sqrt(),
        "square root at zero in backward",
        "%ones_like is 1, %mul.1 is 0",
        "(x + eps).sqrt()",
    ),
}


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.p, self.function = torch.nn.Parameter(torch.tensor(planted.values)), planted.function

    def forward(self) -> Any:
        return self.function(self.p)


def births(planted: Planted, graph: str) -> Sequence[WatchFinding]:
    """Record a step of the function, and return the findings that originate in a phase."""
    model = Model(planted)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.record(model, optimizer) as step:
        model().backward()
        optimizer.step()
    report = nncdbg.watch(step)
    assert report.error is None, str(report)
    return [each for each in report.findings if each.cause and each.site.graph == graph]


@pytest.mark.parametrize("name", FORWARD)
def test_the_forward_pass_has_the_cause_and_a_hint_in_terms_of_torch(name: str) -> None:
    expect(FORWARD[name], births(FORWARD[name], "forward")[0])


@pytest.mark.parametrize("name", BACKWARD)
def test_the_backward_pass_has_the_cause_and_a_hint_in_terms_of_torch(name: str) -> None:
    expect(BACKWARD[name], births(BACKWARD[name], "backward")[0])


def expect(planted: Planted, found: WatchFinding) -> None:
    assert found.cause == planted.cause
    assert planted.evidence in found.evidence
    assert planted.hint in found.hint


def test_a_test_for_nan_does_not_lose_it() -> None:
    planted = Planted([1.0, -1.0], lambda p: torch.log(p).sum(), "", "", "")
    model = Model(planted)
    with nncdbg.torch.record(model) as step:
        loss = model()
        assert torch.isnan(loss)
        assert not torch.isinf(loss)
        loss.backward()
    assert not [each for each in nncdbg.watch(step).findings if each.role == "healed"]
