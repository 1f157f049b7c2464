"""The checks of memory in PyTorch programs: not applicable, passed, or not checked with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the programs need PyTorch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402


def memory_checks(change: Callable[[Any], Any]) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return the status and the results of the memory checks of a recorded step, with their reasons."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.record(model, optimizer) as step:
        optimizer.zero_grad()
        change(model(torch.ones(3, 2))).sum().backward()
        optimizer.step()
    report = nncdbg.watch(step.program, step.inputs, backend="torch")
    kinds = ("uninitialized", "guard")
    return report.status, {
        each.check: (each.result, each.reason) for each in report.checks if each.check in kinds
    }


def filled(dtype: Any) -> Callable[[Any], Any]:
    def change(y: Any) -> Any:
        rows = torch.empty(3, dtype=dtype)
        rows.fill_(2)
        return y * rows[:, None]

    return change


OF_TORCH = ("not applicable", "torch allocates the memory of its kernels")


def test_programs_without_allocations_have_nothing_to_check() -> None:
    assert memory_checks(torch.relu) == ("ok", {"uninitialized": OF_TORCH, "guard": OF_TORCH})


def test_allocated_floats_are_checked() -> None:
    status, found = memory_checks(filled(torch.float32))
    assert (status, found) == ("ok", {"uninitialized": ("passed", ""), "guard": OF_TORCH})


def test_allocated_integers_are_not_checked() -> None:
    status, found = memory_checks(filled(torch.int64))
    assert (status, found["guard"]) == ("not checked", OF_TORCH)
    result, reason = found["uninitialized"]
    assert result == "not checked"
    assert reason.startswith("a NaN marks such memory, and %")


@pytest.fixture
def double() -> Any:
    library = torch.library.Library("memory_checks", "DEF")
    library.define("double(Tensor x) -> Tensor")
    # Operators of PyTorch would be recorded instead.
    library.impl("double", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
    yield torch.ops.memory_checks.double
    library._destroy()


def test_kernels_of_another_library_are_not_checked(double: Any) -> None:
    def change(y: Any) -> Any:
        return y + double(y.detach())

    status, found = memory_checks(change)
    words = "the kernels of torch.memory_checks.double.default allocate their results"
    assert (status, found) == ("not checked", dict.fromkeys(found, ("not checked", words)))
