"""The experiments that determine which results of PyTorch's operators a NaN or Inf influences."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.aten import operators  # noqa: E402


@pytest.fixture
def kernel_runs(monkeypatch):
    """Count the runs of kernels in experiments."""
    runs = []
    run = operators._run

    def counted(*given):
        runs.append(given)
        return run(*given)

    monkeypatch.setattr(operators, "_run", counted)
    return runs


def watched(function: Any, *tensors: Any) -> Any:
    with nncdbg.torch.record() as step:
        function(*tensors)
    return nncdbg.watch(step, strict=True)


def origins(report):
    return [finding.op for finding in report.findings if finding.role in ("birth", "masked")]


def test_experiment_ends_once_all_results_depend_on_the_element(kernel_runs):
    report = watched(lambda x: x.log().neg().exp().tanh(), torch.full((4,), -1.0))
    assert [finding.op for finding in report.findings if finding.role in ("birth", "masked")] == [
        "aten.log.default"
    ]
    # log: its operand is finite.  neg, exp and tanh: all four results differ in the first run.
    assert len(kernel_runs) == 3


def test_origins_that_mark_the_same_elements_share_an_experiment(kernel_runs):
    def function(x):
        both = x.log() + x.sqrt()
        return both.exp().tanh()

    report = watched(function, torch.full((4,), -1.0))
    assert origins(report) == ["aten.log.default", "aten.sqrt.default"]
    # `+`: five runs for each operand, as the other one hides it at first, and one for both.  exp and tanh:
    # one run, although two origins mark all elements.
    assert len(kernel_runs) == 2 * 5 + 1 + 2


def test_element_without_influence_is_found_after_all_runs(kernel_runs):
    x = torch.tensor([-1.0, 4.0])
    report = watched(lambda x: torch.where(torch.tensor([False, True]), x.sqrt(), x.abs()), x)
    assert not any(finding.reaches_output for finding in report.findings)
    assert len(kernel_runs) > 1


def test_watch_of_a_long_chain_needs_few_runs_for_each_statement(kernel_runs):
    cell = torch.nn.LSTMCell(3, 4)
    x = torch.zeros(20, 2, 3)
    x[3, 0, 1] = np.nan

    def function(x: Any) -> Any:
        state: Any = None
        for each in x:
            state = cell(each, state)
        return state[0].sum()

    report = watched(function, x)
    assert report.findings[0].site.value == "input"
    assert len(kernel_runs) <= 3 * report.counts["propagated"]
