"""The cause of a NaN in data: a batch of a DataLoader worker, a number of the script, a recorded result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402


class Samples(Dataset):
    """Samples of 3 numbers; sample 10 has `bad` in place of some of them."""

    def __init__(self, bad: float = float("nan"), elements: slice = slice(1, 2)) -> None:
        self.bad, self.elements = bad, elements

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        sample = torch.arange(3) + float(index + 1)
        if index == 10:
            sample[self.elements] = self.bad
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


@pytest.mark.parametrize("sign", [1, -1])
def test_inf_in_a_batch_of_a_worker_process_is_bad_input_too(sign: float) -> None:
    samples = Samples(sign * float("inf"), slice(0, 3))
    report = trained(torch.mean, DataLoader(samples, batch_size=4, num_workers=1))
    bad = report.bad_steps[0]
    assert bad.step == 3
    assert bad.origin.cause == "bad input"
    assert bad.origin.evidence == (
        "input %input has 3 Inf among 12 elements, all at index 2 of axis 0, the first at [2, 0]"
    )


LAYERS = {
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten()),
    "product": lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2)),
    "layer_norm": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)),
    "batch_norm": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2)),
    "scaled_before": lambda: nn.Sequential(nn.Hardtanh(-1e30, torch.inf), nn.Linear(6, 2)),
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("count", [1, 6])
def test_inf_in_a_batch_is_bad_input_in_any_layer(count: int, layers: Any) -> None:
    torch.manual_seed(0)
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    array = np.random.default_rng(0).normal(size=(8, 6)).astype("f")
    array[5, :count] = np.inf
    batch = torch.from_numpy(array)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        nn.functional.log_softmax(model(batch), -1).mean().backward()
        optimizer.step()
    origin = report.bad_steps[0].origin
    assert origin is not None
    assert origin.cause == "bad input"
    assert f"has {count} Inf among 48 elements, all at index 5 of axis 0" in origin.evidence


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


def test_a_step_with_nested_tensors_is_refused_with_the_reason_and_without_an_origin() -> None:
    samples = [torch.ones(2, 3), torch.ones(1, 3)]
    batch = torch.nested.nested_tensor(samples, layout=torch.jagged)
    report = trained(lambda output: (output.values() - output.values() - 1).log().mean(), [batch])
    bad = report.bad_steps[0]
    assert bad.report is None
    [note] = bad.notes
    assert note.startswith("the step cannot be recorded: ")
    assert note.endswith(" uses a nested tensor, which cannot be recorded")
