"""Proof of the planted cases by a naive rule that uses no part of nncdbg, and of the clean cases."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the training programs need PyTorch")

from tests.torch.named_cases import named  # noqa: E402
from tests.torch.planted import CAUSES, CLEAN, PHASES, PLANTED, Clean, Planted, Training  # noqa: E402
from tests.torch.planted.births import BirthMode, kinds_in  # noqa: E402

STEPS_OF_CLEAN_CASES = 3

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0"),
]


def bad_state(training: Training, loss: Any) -> list[str]:
    """Return the names of losses, gradients, parameters, buffers and moments with a NaN or Inf."""
    state = {"loss": loss}
    for name, parameter in training.model.named_parameters():
        state[name], state[f"{name}.grad"] = parameter, parameter.grad
    for number, optimizer in enumerate(training.optimizers):
        for index, moments in enumerate(optimizer.state.values()):
            state |= {f"optimizer {number}, {index}, {name}": value for name, value in moments.items()}
    return [name for name, value in state.items() if kinds_in(value)]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", named(PLANTED))
def test_planted_value_originates_where_the_truth_says(case: Planted, seed: int) -> None:
    training = case.build(seed)
    with BirthMode(training.model, case.file) as mode:
        for number in range(case.first_bad_step + 1):
            mode.step = number
            loss = training.step()
    assert bad_state(training, loss)
    if not case.naive:
        assert case.naive_reason
        return
    found = mode.reads if case.phase == "data" else mode.births
    births = [birth for birth in found if case.value in birth.kinds]
    assert births, f"no op makes {case.value}"
    first = births[0]
    assert (first.op, first.phase, first.node) == (case.op, case.phase, case.node)
    assert (first.line, first.module, first.step) == (case.line, case.module, case.first_bad_step)
    if case.cause != "where-trap-backward":
        assert found[0] is first


@pytest.mark.nightly
@pytest.mark.parametrize("case", named(PLANTED))
def test_planted_value_is_absent_before_its_step(case: Planted) -> None:
    training = case.build()
    losses = [training.step() for _ in range(case.first_bad_step)]
    assert not [name for loss in losses for name in bad_state(training, loss)]


@pytest.mark.nightly
@pytest.mark.parametrize("case", named([case for case in PLANTED if case.phase == "optimizer"]))
def test_planted_update_reaches_the_named_parameter_first(case: Planted) -> None:
    training = case.build()
    for _ in range(case.first_bad_step + 1):
        training.step()
    moments = {key: value for optimizer in training.optimizers for key, value in optimizer.state.items()}
    bad = [
        name
        for name, parameter in training.model.named_parameters()
        if any(map(kinds_in, [parameter, *moments.get(parameter, {}).values()]))
    ]
    assert bad[0] == case.parameter


@pytest.mark.nightly
@pytest.mark.parametrize("case", named(PLANTED + CLEAN))
def test_builds_with_one_seed_train_alike(case: Planted | Clean) -> None:
    final = []
    for _ in range(2):
        training = case.build(seed=0)
        losses = [training.step().detach() for _ in range(2)]
        final.append([*losses, *training.model.state_dict().values()])
    for first, second in zip(*final, strict=True):
        assert torch.equal(first.view(-1).view(torch.uint8), second.view(-1).view(torch.uint8))


@pytest.mark.nightly
@pytest.mark.parametrize("case", named(PLANTED))
def test_truth_is_complete(case: Planted) -> None:
    assert case.line > 0
    assert case.phase in PHASES
    assert {case.cause, *case.also} <= set(CAUSES)
    assert case.why
    assert bool(case.node) == (case.phase == "backward")
    assert bool(case.parameter) == (case.phase == "optimizer")
    paths = dict(case.build().model.named_modules())
    assert case.module in paths


@pytest.mark.nightly
@pytest.mark.parametrize("case", named(CLEAN))
def test_clean_training_stays_finite(case: Clean) -> None:
    training = case.build()
    for _ in range(STEPS_OF_CLEAN_CASES):
        loss = training.step()
        assert not kinds_in(loss)
    assert not bad_state(training, loss)


@pytest.mark.nightly
@pytest.mark.parametrize("case", named(CLEAN))
def test_clean_training_would_alarm_a_check_of_every_op(case: Clean) -> None:
    training = case.build()
    with BirthMode(training.model, case.builder.__code__.co_filename) as mode:
        for _ in range(STEPS_OF_CLEAN_CASES):
            training.step()
    assert mode.alarms, "no op returns NaN, Inf or memory without a value"


def test_corpus_has_many_cases_of_each_group_and_each_cause() -> None:
    groups = Counter(case.group for case in PLANTED)
    least = {"forward": 28, "backward": 16, "optimizer": 8, "half": 6, "data": 6}
    assert all(groups[group] >= number for group, number in least.items()), groups
    assert len(PLANTED) >= 64
    assert len(CLEAN) >= 50
    names = Counter(case.name for case in PLANTED + CLEAN)
    assert max(names.values()) == 1
    assert {case.cause for case in PLANTED} == set(CAUSES)
