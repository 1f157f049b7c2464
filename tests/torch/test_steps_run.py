"""Each training step of the corpus runs, changes its model, and gives equal bits for equal builds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tests.torch.steps import STEPS, Step, Training  # noqa: E402
from tests.torch.steps.distributed import in_ranks  # noqa: E402
from tests.torch.steps.training import copies, differing_names, same_bits  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

BY_NAME = {step.name: step for step in STEPS}


def two_steps(step: Step) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
    """Build a step and run it twice: what it changes before, after each run, and the losses."""
    training = step.build()
    before = copies(training.changed())
    after, losses = [], []
    for _ in range(2):
        losses.append(training.run().detach().clone())
        after.append(copies(training.changed()))
    return before, after, losses


@pytest.mark.nightly
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_equal_builds_change_equal_bits(step: Step) -> None:
    if step.skip_reason:
        pytest.skip(step.skip_reason)
    before, after, losses = two_steps(step)
    again_before, again_after, again_losses = two_steps(step)
    assert differing_names(before, again_before) == []
    for one, other in zip(after, again_after, strict=True):
        assert differing_names(one, other) == []
    assert all(same_bits(one, other) for one, other in zip(losses, again_losses, strict=True))
    assert all(math.isfinite(loss.item()) for loss in losses)
    persistent = [name for name in before if not name.endswith(".grad")]
    assert any(not same_bits(before[name], after[1][name]) for name in persistent), "nothing changed"


def test_names_are_unique_and_steps_enough() -> None:
    assert len(BY_NAME) == len(STEPS) >= 48
    assert sum(step.heavy for step in STEPS) >= 6


def test_tensors_have_the_names_of_modules_and_optimizers() -> None:
    training = BY_NAME["mlp_wide"].build()
    assert set(training.changed()) == {
        f"model.{layer}.{kind}" for layer in ("first", "second") for kind in ("weight", "bias")
    }
    training.run()
    names = set(training.changed())
    assert {
        "model.first.weight.grad",
        "optimizer.first.weight.exp_avg",
        "optimizer.second.bias.step",
    } <= names
    assert training.changed()["model.first.weight"] is training.models[0].first.weight


def test_second_model_and_optimizer_have_numbers() -> None:
    training = BY_NAME["gan"].build()
    training.run()
    names = set(training.changed())
    assert {"model.0.weight", "model2.0.weight", "optimizer.0.weight.exp_avg"} <= names
    assert "optimizer2.model2.0.weight.exp_avg" in names
    assert "model.1.running_mean" in names


def test_nested_states_and_tensor_options_are_named() -> None:
    training = BY_NAME["optimizer_lbfgs"].build()
    training.run()
    assert "optimizer.0.weight.old_dirs.0" in training.changed()
    assert "optimizer.group0.lr" in BY_NAME["optimizer_adam_tensor_rate_fused"].build().changed()


def test_tied_weight_has_one_name() -> None:
    names = set(BY_NAME["decoder_lm_tied_weights"].build().changed())
    assert "model.token.weight" in names
    assert "model.head.weight" not in names


def test_scaler_skips_the_update_after_inf() -> None:
    before, after, _ = two_steps(BY_NAME["amp_f16_skipped_by_inf"])
    parameters = {name for name in before if name.startswith("model.")}
    assert all(same_bits(before[name], after[1][name]) for name in parameters)
    assert not torch.isfinite(after[0]["model.first.weight.grad"]).all()
    assert [one["kept.scale"].item() for one in (before, *after)] == [2.0**40, 2.0**39, 2.0**38]


def test_scaler_updates_without_inf() -> None:
    before, after, _ = two_steps(BY_NAME["amp_f16_scaled"])
    assert not same_bits(before["model.first.weight"], after[0]["model.first.weight"])
    assert [one["kept.scale"].item() for one in (before, *after)] == [2.0**10, 2.0**10, 2.0**11]


class Recorded(TorchDispatchMode):
    """Collects the names of the ops that run inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("attention_flash_masked", "aten._scaled_dot_product_flash_attention_for_cpu.default"),
        ("attention_math_masked", "aten._safe_softmax.default"),
        ("cnn_batch_norm", "aten.native_batch_norm.default"),
        ("ddp_one_rank", "c10d.allreduce_.default"),
        ("lstm", "aten.mkldnn_rnn_layer.default"),
        ("optimizer_adamw_foreach", "aten._foreach_addcdiv_.ScalarList"),
        ("optimizer_adamw_fused", "aten._fused_adamw_.default"),
        ("optimizer_adamw_single", "aten.addcdiv_.default"),
    ],
)
def test_step_runs_the_kernel_of_its_name(name: str, op: str) -> None:
    training = BY_NAME[name].build()
    with Recorded() as recorded:
        training.run()
    assert op in recorded.ops


def test_each_implementation_of_sgd_gives_close_weights() -> None:
    kinds = ("single", "foreach", "fused")
    weights = [
        two_steps(BY_NAME[f"optimizer_sgd_momentum_nesterov_{kind}"])[1][1]["model.0.weight"]
        for kind in kinds
    ]
    for weight in weights[1:]:
        torch.testing.assert_close(weight, weights[0])


def test_both_checkpoints_give_the_gradients_of_each_other() -> None:
    one, other = (
        two_steps(BY_NAME[f"checkpoint_{kind}_with_dropout"])[1][1] for kind in ("reentrant", "not_reentrant")
    )
    assert differing_names(one, other) == []


def test_bits_distinguish_zeros_types_and_names() -> None:
    zero, negative, nan = torch.tensor([0.0]), torch.tensor([-0.0]), torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, negative)
    assert not same_bits(zero, zero.double())
    assert not same_bits(zero, torch.zeros(1, 1))
    assert differing_names({"a": zero, "b": zero}, {"b": negative, "c": zero}) == ["a", "b", "c"]


def arrays_after_two_steps(rank: int, training: Training) -> dict[str, np.ndarray]:
    """Run a rank's step twice and return what it changed."""
    training.run()
    training.run()
    return {name: tensor.detach().numpy().copy() for name, tensor in training.changed().items()}


def test_two_ranks_agree_and_repeat() -> None:
    first, second = in_ranks(arrays_after_two_steps)
    own = {name for name in first if "running" in name}  # statistics of each rank's own rows
    assert [
        name for name in first if name not in own and first[name].tobytes() != second[name].tobytes()
    ] == []
    again = in_ranks(arrays_after_two_steps)[0]
    assert [name for name in first if first[name].tobytes() != again[name].tobytes()] == []
    alone = BY_NAME["ddp_one_rank"].build()
    alone.run()
    alone.run()
    assert (
        first["model.module.0.weight"].tobytes()
        != alone.changed()["model.module.0.weight"].numpy(force=True).tobytes()
    )
