"""Memory that torch fills without an operator is recorded; uninitialized memory of the user is not."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import nncdbg.torch  # noqa: E402


def outputs_of(step: Any) -> dict[str, Any]:
    debugger = nncdbg.Debugger(step.program, step.inputs, backend="torch")
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    return debugger.outputs


def statements(step: Any) -> list[str]:
    return [node.op for graph in step.program.graphs.values() for node in graph.nodes]


def test_ctc_loss_reads_the_recorded_lengths() -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, 2, 4, requires_grad=True)
    targets = torch.tensor([[1, 2, 1], [3, 2, 0]])
    with nncdbg.torch.record() as step:
        log_probabilities = scores.log_softmax(2)
        loss = torch.nn.functional.ctc_loss(log_probabilities, targets, (6, 6), (3, 2))
        loss.backward()
    assert outputs_of(step)[step.changed["loss"]].tobytes() == loss.detach().numpy().tobytes()
    (recorded,) = [each for each in step.inputs if each.startswith("recorded.")]
    assert step.inputs[recorded].tolist() == [3.0, 2.0]


def test_uninitialized_memory_of_the_user_is_nan() -> None:
    weight = torch.ones(4, requires_grad=True)
    with nncdbg.torch.record() as step:
        (weight * torch.empty(4)).sum().backward()
    assert "aten.empty.memory_format" in statements(step)
    assert np.isnan(outputs_of(step)[step.changed["loss"]])


def test_allocation_that_an_operator_writes_first_stays_one() -> None:
    with nncdbg.torch.record() as step:
        torch.normal(0.0, 1.0, (3,)).sum()
    assert not any(each.startswith("recorded.") for each in step.inputs)
    assert "torch.recorded" not in statements(step)
