"""Two steps of each optimizer of torch replay to the same bits: parameters, gradients and moments."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="torch's samples need the package expecttest")

from torch.testing._internal.common_optimizers import (  # noqa: E402
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)

import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.aten.arrays import host_array  # noqa: E402
from nncdbg.torch.named_models import tensors_by_name  # noqa: E402
from tests.torch.conformance.replaying import copies, differing, replayed  # noqa: E402

pytestmark = pytest.mark.conformance_torch


def cases() -> Iterator[Any]:
    """Yield each optimizer for dense gradients with each of its sets of options."""
    for info in optim_db:
        if info.only_supports_sparse_grads:
            continue
        # A differentiable step writes to parameters that are no leaves, as a meta-optimizer has them.
        for given in _get_optim_inputs_including_global_cliquey_kwargs(
            "cpu", torch.float32, info, skip=("differentiable",)
        ):
            yield pytest.param(info, given.kwargs, id=f"{info.optim_cls.__name__}-{given.desc}")


@pytest.mark.parametrize(("info", "options"), list(cases()))
def test_two_steps_of_an_optimizer_replay_to_the_same_bits(info: Any, options: Any, tally: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    parameters = list(model.parameters())
    if info.optim_cls.__name__ == "Muon":  # it accepts matrices only
        parameters = [each for each in parameters if each.dim() == 2]
    optimizer = info.optim_cls(parameters, **options)
    batch = torch.randn(6, 5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    before = copies(tensors_by_name({"": model}, [optimizer]).items())
    given = {id(each): host_array(each).copy() for each in options.values() if torch.is_tensor(each)}
    with nncdbg.torch.record(model, optimizer) as step:
        for _ in range(2):
            if info.step_requires_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    after = tensors_by_name({"": model}, [optimizer])
    # A moment may be an option itself: LBFGS keeps the learning rate as its `t`.
    before |= {name: given[id(each)] for name, each in after.items() if id(each) in given}
    found = differing(after, step.changed, replayed(step), before)
    tally("optim_db", 1, not found)
    assert found == []
    trained = {id(each) for each in parameters}
    names = {name for name, each in model.named_parameters() if id(each) in trained}
    if options.get("lr") != 0.0:
        assert names <= step.changed.keys()
