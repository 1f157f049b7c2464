"""`nncdbg diff MODULE:FUNCTION` with `--compile-b` and `--autocast-b`: the first statement that differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

Command = Callable[..., tuple[int, str, str]]

MODULE = """\
import operator
import torch
from torch._dynamo import register_backend


@register_backend(name=__name__ + "_wrong_tanh")
def wrong_tanh(graph, inputs):
    for node in graph.graph.nodes:
        if "tanh" in str(node.target):
            with graph.graph.inserting_after(node):
                changed = graph.graph.call_function(operator.mul, (node, 1.01))
                node.replace_all_uses_with(changed, lambda user: user is not changed)
    graph.recompile()
    return graph.forward


register_backend(wrong_tanh, name="eager_" + __name__ + "_wrong_tanh")


@register_backend(name=__name__ + "_plain")
def plain(graph, inputs):
    return graph.forward


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.tanh = torch.nn.Tanh()
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.tanh(self.first(x))).square().mean()


class Large(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x) * 300
        return (h * h).mean()


def net():
    torch.manual_seed(0)
    return Net(), (torch.randn(5, 4),)


def large():
    torch.manual_seed(0)
    return Large(), (torch.randn(3, 4),)


def dropout():
    return torch.nn.Dropout(0.5), (torch.ones(8),)
"""


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Write a module with a name of its own, since modules stay imported; return this name."""
    name = "compiled_" + "".join(each if each.isalnum() else "_" for each in request.node.name)
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


def test_a_compiled_module_that_agrees(command: Command, folder: str) -> None:
    code, out, err = command("diff", f"{folder}:net", "--compile-b", "aot_eager", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["status"] == "equal"
    # Statement by statement: at least two products, a tanh and a mean, and their backward.
    assert document["matched"]["structure"] + document["matched"]["value"] > 12
    outputs = {match["a"]["value"] for match in document["outputs"]}
    assert outputs == {"output", "first.weight.grad", "first.bias.grad", "last.weight.grad", "last.bias.grad"}
    assert document["sides"]["b"]["compile"] == "aot_eager"


def test_a_compiler_that_fuses_is_compared_by_modules_and_gradients(command: Command, folder: str) -> None:
    code, out, err = command("diff", f"{folder}:net", "--compile-b", f"{folder}_plain", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["status"] == "equal"
    # A loss, four gradients, and the outputs of three modules.
    assert document["matched"]["name"] == 8
    assert document["unmatched"] == {"a": 0, "b": 0}


def test_a_wrong_statement_is_found_if_the_backend_does_not_fuse(command: Command, folder: str) -> None:
    code, out, err = command("diff", f"{folder}:net", "--compile-b", f"eager_{folder}_wrong_tanh")
    assert code == 1, err
    cause = next(line for line in out.splitlines() if line.startswith("cause: "))
    assert "aten.mul.Tensor" in cause
    assert cause.endswith("of side B")


def test_a_wrong_backend_is_found_at_the_module(command: Command, folder: str) -> None:
    code, out, err = command("diff", f"{folder}:net", "--compile-b", f"{folder}_wrong_tanh")
    assert code == 1, err
    first = next(line for line in out.splitlines() if line.startswith("first: "))
    assert "aten.tanh.default" in first
    assert "side B: %tanh" in out
    assert "max rel 0.0099" in out
    assert "--stop" not in err


@pytest.mark.parametrize(
    ("object_", "dtype", "code", "words"),
    [
        ("net", "bf16", 0, "the sides agree"),
        ("large", "f16", 1, "against inf"),
    ],
)
def test_autocast_is_compared_statement_by_statement(
    command: Command, folder: str, object_: str, dtype: str, code: int, words: str
) -> None:
    found, out, err = command("diff", f"{folder}:{object_}", "--autocast-b", dtype)
    assert (found, words in out) == (code, True), out + err
    if code:
        first = next(line for line in out.splitlines() if line.startswith("first: "))
        assert "aten.mul.Tensor" in first


@pytest.fixture
def step(tmp_path: Path) -> str:
    """Record a step and save it; return the name of its folder."""
    import torch

    import nncdbg.torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.record(model, optimizer) as recorded:
        model(torch.randn(5, 4)).square().mean().mul(300).backward()
        optimizer.step()
    recorded.save(tmp_path / "step")
    return "step"


def test_a_recorded_step_is_compared_with_its_compiled_phases(command: Command, step: str) -> None:
    code, out, err = command("diff", step, "--compile-b", "aot_eager", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["status"] == "equal"
    assert document["matched"]["name"] > 30
    assert document["notes"] == []

    code, out, err = command("diff", step, "--input", "0.weight=ones", "--compile-b", "aot_eager")
    assert (code, "the sides agree" in out) == (0, True), err


def test_a_recorded_step_is_compared_with_its_autocast_form(command: Command, step: str) -> None:
    code, out, err = command("diff", step, "--autocast-b", "bf16")
    assert (code, "the sides agree" in out) == (0, True), out + err
    code, out, err = command("diff", step, "--autocast-b", "f16", "--ulp", "0")
    assert code == 1, err
    assert "aten.addmm.default, line" in next(line for line in out.splitlines() if line.startswith("first: "))


def test_a_program_of_other_operators_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "graph.nnc").write_text("#nncdbg 1\ngraph @main(%x: f32[2]) -> (%x) {\n  return %x\n}\n")
    for option in (["--compile-b", "eager"], ["--autocast-b", "f16"]):
        code, _, err = command("diff", "graph.nnc", *option)
        assert (code, f"{option[0]} needs a program of PyTorch, not graph.nnc" in err) == (2, True), err


def test_random_numbers_are_a_note(command: Command, folder: str) -> None:
    _, _, err = command("diff", f"{folder}:dropout", "--autocast-b", "bf16")
    assert "aten.native_dropout.default draws other random numbers on side B" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{name}:net", "--compile-b", "nothing"], 'torch.compile has no backend "nothing"'),
        (["{name}:net", "--autocast-b", "f8"], 'autocast cannot use "f8"\n  hint: use one of f16, bf16'),
        (
            ["{name}:Net", "--compile-b"],
            "{name}:Net is of type Net\n  hint: name a function that returns a pair",
        ),
        (["{name}:net", "--compile-b", "--autocast-b", "f16"], "use one of them alone"),
        (["{name}:net", "{name}:net", "--autocast-b", "f16"], "use one of them alone"),
        (["{name}:net", "--compile-b", "--stop"], "it cannot be used with --compile-b"),
        (["{name}:net", "--input", "x=zeros", "--compile-b", "eager"], "--input cannot be used"),
    ],
)
def test_wrong_usage_is_one_message(
    command: Command, folder: str, arguments: list[str], message: str
) -> None:
    code, _, err = command("diff", *(each.format(name=folder) for each in arguments))
    assert (code, message.format(name=folder) in err) == (2, True), err
