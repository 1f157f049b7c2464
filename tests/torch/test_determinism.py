"""Determinism of recorded steps: the first statement with other bits in a second run, and changed outputs."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402
from nncdbg.engine.frontends.program_folder import open_program_folder  # noqa: E402

Command = Callable[..., tuple[int, str, str]]


@torch.library.custom_op("nncdbg_determinism::jitter", mutates_args=())
def jitter(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
    # Operators of PyTorch would be recorded, with the number as a constant.
    return torch.from_numpy(x.numpy() * np.float32(1 + random.random()))


jitter.register_fake(torch.empty_like)
jitter.register_autograd(lambda _, gradient: gradient)


def recorded(between: Callable[[Any], Any], after: Callable[[Any], Any] = id) -> Any:
    """Return a recorded step with an operator in the loss, and what changes the weight after the update."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(0.5))
    optimizer = torch.optim.AdamW(model.parameters())
    with nncdbg.torch.record(model, optimizer) as step:
        between(model(torch.randn(8, 4))).square().mean().backward()
        optimizer.step()
        after(model[0].weight)
    return step


def test_a_step_with_dropout_is_deterministic() -> None:
    found = recorded(torch.tanh).verify_determinism()
    assert found.ok
    # Two parameters, their gradients, and two moments and a step number of each.
    assert found.recorded.count == 10
    assert str(found).endswith("and 10 outputs have the recorded bits")


def test_the_first_statement_with_other_bits_is_named() -> None:
    found = recorded(jitter).verify_determinism()
    assert not found.ok
    assert found.runs.first.a.op == "torch.nncdbg_determinism.jitter.default"
    first, line, size = str(found).splitlines()[1:4]
    assert first.startswith("  first %jitter f32[8,2] = torch.nncdbg_determinism.jitter.default, line ")
    assert re.fullmatch(r"  from \S*tests/torch/test_determinism.py:\d+", line)
    # Half of the 16 elements are 0 after the dropout.
    assert "of 16 elements differ, largest difference" in size
    assert found.recorded.changed[0] == "0.weight.grad"


def test_a_change_without_an_operator_is_found_in_the_outputs() -> None:
    def add_one(weight: Any) -> None:
        weight.detach().numpy()[...] += 1

    found = recorded(torch.tanh, add_one).verify_determinism()
    assert found.runs.equal
    assert not found.ok
    assert found.recorded.changed == ("0.weight",)
    assert str(found).startswith(
        "not the recorded step: 1 of 10 outputs has other bits than the recorded step"
    )
    assert "first %0.weight = aten." in str(found)
    assert str(found).endswith("or a write that was not recorded")


def test_checksums_are_saved_with_the_step(tmp_path: Path) -> None:
    step = recorded(torch.tanh)
    step.save(tmp_path / "step")
    saved = open_program_folder(tmp_path / "step").program.saved.checksums
    assert saved == step.program.saved.checksums
    outputs = nncdbg.run(step).keys()
    assert saved.keys() < {*outputs}


def test_a_run_reports_outputs_with_other_bits(command: Command, tmp_path: Path) -> None:
    recorded(jitter).save(tmp_path / "step")
    code, _, err = command("run", "step")
    assert code == 0
    assert "outputs have other bits than the recorded step, first %0.weight.grad = aten.mm.default" in err
    assert "`--verify-determinism` compares two runs" in err

    code, _, err = command("run", "step", "--verify-determinism")
    assert code == 1
    assert "first %jitter f32[8,2] = torch.nncdbg_determinism.jitter.default" in err

    code, out, _ = command("run", "step", "--verify-determinism", "--json")
    found = json.loads(out)["determinism"]
    assert (code, found["status"]) == (1, "differs")
    assert "tests/torch/test_determinism.py:" in found["first"]["a"]["source"]


def test_a_deterministic_step_is_said_to_be_one(command: Command, tmp_path: Path) -> None:
    recorded(torch.tanh).save(tmp_path / "step")
    code, _, err = command("run", "step", "--verify-determinism")
    assert (code, "deterministic: a second run has the same bits" in err) == (0, True), err
    code, _, err = command("run", "step")
    assert (code, "other bits" in err) == (0, False), err


def test_other_inputs_are_not_compared_with_the_recorded_outputs(command: Command, tmp_path: Path) -> None:
    recorded(torch.tanh).save(tmp_path / "step")
    code, _, err = command("run", "step", "--input", "0.weight=zeros", "--verify-determinism")
    assert (code, "the recorded" in err) == (0, False), err


def test_a_value_without_effect_on_an_output_does_not_fail() -> None:
    found = recorded(lambda output: (jitter(output.detach()), output)[1]).verify_determinism()
    assert found.ok
    assert not found.runs.equal
    first, statement = str(found).splitlines()[:2]
    assert first.startswith("deterministic: a second run has the same bits in all ")
    assert first.endswith("; 1 other value differs without effect on an output")
    assert statement.startswith("  first %jitter ")
