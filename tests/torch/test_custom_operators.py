"""Operators of other libraries: a watch changes nothing of them, and sees the operators that they run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the trainings need PyTorch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = torch.Tensor

LIBRARY = torch.library.Library("nncdbg_custom", "FRAGMENT")


def custom(mutates: tuple[str, ...] = (), backward: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a decorator that makes a function a custom operator."""

    def decorate(function: Any) -> Any:
        made = torch.library.custom_op(f"nncdbg_custom::{function.__name__}", mutates_args=mutates)(function)
        made.register_fake(lambda x, *_: torch.empty_like(x))
        if backward is not None:
            made.register_autograd(
                backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
            )
        return made

    return decorate


def half_gradient(_: Any, gradient: Tensor) -> Tensor:
    return gradient * 0.5


@custom(backward=half_gradient)
def halve(x: Tensor) -> Tensor:
    moved = x - 1.0
    return torch.log(moved)


@custom(backward=half_gradient)
def calls_another(x: Tensor) -> Tensor:
    return halve(x * 0.5) + 1


@custom()
def log_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    moved = x - 1.0
    return gradient * torch.log(moved)


def use_operator(ctx: Any, gradient: Tensor) -> Tensor:
    return log_gradient(*ctx.saved_tensors, gradient)


@custom(backward=use_operator)
def bad_gradient(x: Tensor) -> Tensor:
    return x.sin()


@custom(mutates=("x",))
def shift_(x: Tensor) -> None:
    x.sub_(5.0)
    x.log_()


@custom(mutates=("x",))
def shift_with_numpy_(x: Tensor) -> None:
    array = x.numpy()
    np.multiply(array, 2.0, out=array)


@custom(backward=half_gradient)
def log_with_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.log(x.numpy() * 3))


@custom(backward=half_gradient)
def fills_memory(x: Tensor) -> Tensor:
    found = torch.empty_like(x)
    np.multiply(x.numpy(), 2.0, out=found.numpy())
    return found


@custom(backward=half_gradient)
def changes_a_copy(x: Tensor) -> Tensor:
    copy = (x * 2).clone()
    np.add(copy.numpy(), 1.0, out=copy.numpy())
    return copy.sin()


@custom(backward=half_gradient)
def draws(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x) + torch.rand_like(x)


@custom(backward=half_gradient)
def raises(x: Tensor) -> Tensor:
    y = x.sin()
    return y @ torch.ones(7)


@custom(backward=half_gradient)
def returns_its_operand(x: Tensor) -> Tensor:
    return x


LIBRARY.define("tripled(Tensor x) -> Tensor")
LIBRARY.impl("tripled", lambda x: x * 3, "CPU")


def in_place(operator: Any) -> Callable[[Tensor], Tensor]:
    def call(y: Tensor) -> Tensor:
        copy = y.detach().abs() + 6
        operator(copy)
        return y * copy

    return call


def made_on_a_device(y: Tensor) -> Tensor:
    return y * torch.ops.nncdbg_custom.ones("cpu")


@torch.library.custom_op("nncdbg_custom::ones", mutates_args=(), device_types="cpu")
def ones(device: torch.device) -> Tensor:  # type: ignore[name-defined]
    return torch.ones(2) + 1


OPEN: dict[str, Callable[[Tensor], Tensor]] = {
    "halve": lambda y: halve(y.abs() + 2),
    "calls_another": lambda y: calls_another(y.abs() + 4),
    "in backward": lambda y: bad_gradient(y.abs() + 2),
    "in place": in_place(shift_),
    "draws": draws,
    "of a library": lambda y: y * torch.ops.nncdbg_custom.tripled(y.detach()),
    "without tensors": made_on_a_device,
    "under vmap": lambda y: torch.vmap(torch.sin)(halve(y.abs() + 2)),
}
"""Names of trainings to what they compute, with operators whose bodies are recorded."""

CLOSED: dict[str, Callable[[Tensor], Tensor]] = {
    "numpy": lambda y: log_with_numpy(y.abs() + 1),
    "numpy in place": in_place(shift_with_numpy_),
    "fills memory": fills_memory,
    "changes a copy": changes_a_copy,
}
"""The same with operators that compute without operators of PyTorch."""

FAILING: dict[str, Callable[[Tensor], Tensor]] = {
    "raises": raises,
    "returns its operand": returns_its_operand,
}

WAYS: dict[str, Callable[..., Any]] = {
    "none": lambda model, optimizer: nullcontext(),
    "record": nncdbg.torch.record,
    **{
        tier: lambda model, optimizer, tier=tier: nncdbg.torch.watch(
            model, optimizer, tier=tier, on_nan="report"
        )
        for tier in ("guard", "hooks", "live")
    },
}


def train(
    compute: Callable[[Tensor], Tensor], way: Callable[..., Any], steps: int = 1
) -> tuple[list[Any], Any]:
    """Return all that a training leaves, and the last report or step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    left: list[Any] = []
    for _ in range(steps):
        optimizer.zero_grad()
        try:
            with way(model, optimizer) as found:
                loss = compute(model(torch.randn(3, 4))).sum()
                loss.backward()
                left += [loss.item(), *(each.grad for each in model.parameters())]
                optimizer.step()
        except RuntimeError as error:
            left += [type(error), str(error)]
    left += [*model.parameters(), torch.get_rng_state()]
    return [each.detach().numpy().tobytes() if isinstance(each, Tensor) else each for each in left], found


@pytest.mark.parametrize("name", [*OPEN, *CLOSED, *FAILING])
def test_nothing_changes(name: str) -> None:
    compute = {**OPEN, **CLOSED, **FAILING}[name]
    left = {way: train(compute, WAYS[way], steps=2)[0] for way in WAYS}
    assert all(each == left["none"] for each in left.values()), [*left]


def operators(step: Any) -> set[str]:
    return {node.op for graph in step.program.graphs.values() for node in graph.nodes}


@pytest.mark.parametrize("name", OPEN)
def test_the_operators_of_a_body_are_recorded(name: str) -> None:
    step = train(OPEN[name], nncdbg.torch.record)[1]
    assert not any(op.startswith("torch.nncdbg_custom") for op in operators(step))
    assert step.notes == ()
    assert step.verify_determinism().ok


@pytest.mark.parametrize("name", CLOSED)
def test_an_operator_that_computes_without_operators_is_a_statement(name: str) -> None:
    step = train(CLOSED[name], nncdbg.torch.record)[1]
    (own,) = (op for op in operators(step) if op.startswith("torch.nncdbg_custom"))
    assert step.notes == (
        f"{own} is one statement: it computes without operators of PyTorch, which could be recorded",
    )
    assert step.verify_determinism().ok


def test_a_body_is_a_called_graph() -> None:
    step = train(OPEN["calls_another"], nncdbg.torch.record)[1]
    assert {"torch.nncdbg_custom.calls_another", "torch.nncdbg_custom.halve"} <= {*step.program.graphs}
    debugger = nncdbg.Debugger(step)
    debugger.break_at(op="aten.log")
    stop = debugger.run()
    assert stop.node is not None
    assert stop.node.op == "aten.log.default"


def negative_in_place(y: Tensor) -> Tensor:
    copy = y.detach() - 20
    shift_(copy)
    return y * copy


@pytest.mark.parametrize("tier", ["guard", "hooks", "live"])
@pytest.mark.parametrize(
    ("compute", "op", "line"),
    [
        (lambda y: halve(-y.abs()), "aten.log.default", "return torch.log(moved)"),
        (lambda y: bad_gradient(-y.abs()), "aten.log.default", "return gradient * torch.log(moved)"),
        (negative_in_place, "aten.log_.default", "x.log_()"),
    ],
    ids=["forward", "backward", "in place"],
)
def test_a_nan_of_a_body_has_its_operator_and_line(compute: Any, op: str, line: str, tier: str) -> None:
    origin = train(compute, WAYS[tier])[1].bad_steps[0].origin
    assert (origin.op, origin.cause) == (op, "log of a negative number")
    lines = Path(__file__).read_text().splitlines()
    assert lines[origin.site.source_line - 1].strip() == line


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_nan_of_a_closed_operator_is_one_of_its_implementation() -> None:
    report = train(lambda y: log_with_numpy(-y.abs() - 1), WAYS["guard"])[1]
    origin = report.bad_steps[0].origin
    assert (origin.op, origin.cause) == ("torch.nncdbg_custom.log_with_numpy.default", "unknown")
    assert "`step` cannot enter it" in origin.hint
