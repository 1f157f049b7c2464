"""The cause of a NaN in data: a batch of a DataLoader worker, a number of the script, a recorded result."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402


class Samples(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        sample = torch.full((3,), float(index))
        if index == 10:
            sample[1] = float("nan")
        return sample


def trained(loss: Any, batches: Any) -> Any:
    """Return the report of a training on these batches."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for batch in batches:
            optimizer.zero_grad()
            loss(model(batch)).backward()
            optimizer.step()
    return report


def test_a_batch_of_a_worker_process_is_an_input_with_the_index_of_the_sample() -> None:
    report = trained(torch.mean, DataLoader(Samples(), batch_size=4, num_workers=1))
    bad = report.bad_steps[0]
    assert bad.step == 3
    assert bad.origin.cause == "bad input"
    assert bad.origin.evidence == (
        "input %input has 1 NaN among 12 elements, all at index 2 of axis 0, the first at [2, 1]"
    )
    assert "torch.recorded" not in str(bad.recorded.program)


def test_memory_that_set_gives_to_a_tensor_is_that_of_the_other_tensor() -> None:
    model = nn.Module()
    model.register_buffer("x", torch.arange(6.0))
    model.register_buffer("total", torch.zeros(()))
    with nncdbg.torch.record(model) as step:
        y = torch.empty(0).set_(model.x.untyped_storage(), 1, (2, 2), (2, 1))
        z = y * 2
        torch.empty(0).set_(model.x).add_(1)
        model.total.copy_(y.sum() + z.sum())
    debugger = nncdbg.Debugger(step)
    debugger.run()
    assert debugger.outputs is not None
    assert float(debugger.outputs["total"]) == float(model.total) == 14 + 20
    assert debugger.outputs["x"].tolist() == model.x.tolist() == [1, 2, 3, 4, 5, 6]
    assert step.verify_determinism().ok


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_of_the_script_is_the_cause_in_any_operator(number: float) -> None:
    report = trained(lambda output: output.mean() * number, [torch.ones(2, 3)])
    assert report.origin.cause == "bad parameter"
    assert report.origin.evidence.endswith(f"other of aten.mul.Tensor is {number}")


def test_a_recorded_result_is_not_blamed_on_the_parameters() -> None:
    program = nncdbg.parse(
        "#nncdbg 1\n"
        "graph @main(%w: f32[2], %recorded.allreduce: f32[2]) -> (%w.grad, %y) {\n"
        '  %allreduce: f32[2] = torch.recorded(%recorded.allreduce, op="torch.c10d.allreduce_.default")\n'
        "  %w.grad: f32[2] = aten.mul.Tensor(%w, %allreduce)\n"
        "  %y: f32[2] = aten.add.Tensor(%w.grad, %w)\n"
        "  return %w.grad, %y\n"
        "}\n"
    )
    inputs = {"w": [1.0, 1.0], "recorded.allreduce": [1.0, float("nan")]}
    finding = nncdbg.watch(program, inputs, backend="torch").findings[0]
    assert finding.cause == "bad input"
    assert "recorded result of an operator that cannot run again" in finding.evidence
