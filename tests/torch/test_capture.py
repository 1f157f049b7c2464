"""Captured modules: forward and backward pass with the bits of eager mode, names, lines and layers."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

import torch  # noqa: E402
from torch import nn  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.errors import LoadError, UsageError  # noqa: E402
from nncdbg.ir.records import SavedRun  # noqa: E402


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.fc(x)).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.out = nn.Linear(4, 2)

    def forward(self, x, t, n=3, scale=None):
        for layer in self.layers:
            x = layer(x)
        y = self.out(x) * n
        return (y - t).square().mean(), y * scale["a"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        logits = self.out(self.layer(self.embedding(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.AdaptiveAvgPool2d(1))

    def forward(self, image):
        return self.net(image).flatten(1)


CASES: dict[str, Any] = {
    "normalized": (Net, (torch.randn(5, 4), torch.randn(5, 2)), {"scale": {"a": torch.ones(2)}}),
    "attention": (Attention, (torch.arange(12).reshape(2, 6) % 11,), {}),
    "convolutions": (Convolutions, (torch.randn(2, 3, 8, 8),), {}),
}


def finished(program, inputs=None):
    debugger = nncdbg.Debugger(program, inputs)
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    return debugger.outputs


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_have_the_bits_of_eager_mode(case):
    make, arguments, keywords = CASES[case]
    torch.manual_seed(0)
    module = make()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    program = nncdbg.torch.capture(module, arguments, keywords)
    assert nncdbg.parse(program.text()) == program
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    outputs = finished(program)

    results = module(*arguments, **keywords)
    results = results if isinstance(results, tuple) else (results,)
    results[0].sum().backward()
    expected = {"output" if i == 0 else f"output.{i}": each for i, each in enumerate(results)}
    expected |= {f"{name}.grad": each.grad for name, each in module.named_parameters()}
    expected |= {f"{name}.1": each for name, each in module.named_buffers()}
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(outputs[name], value.detach().numpy()), name


@pytest.fixture(scope="module")
def program():
    _, arguments, keywords = CASES["normalized"]
    return nncdbg.torch.capture(Net(), arguments, keywords)


def test_both_passes_have_lines_and_modules(program):
    assert {"forward", "backward", "layers.0", "layers.0.backward", "out", "out.backward"} <= set(
        program.graphs
    )
    nodes = [node for graph in program.graphs.values() for node in graph.nodes if not node.op.startswith("@")]
    assert all(str(node.location.file).endswith("test_capture.py") for node in nodes)
    assert program.graphs["layers.1.backward"].comment == "Block"
    places = {node.location.line for node in program.graphs["backward"].nodes if node.location}
    assert places <= {node.location.line for node in program.graphs["forward"].nodes if node.location}


def test_arguments_have_the_names_of_parameters(program):
    names = [value.name for value in program.graph.inputs]
    assert names[-5:] == ["x", "t", "scale.a", "output.grad", "output.1.grad"]
    assert "layers.0.fc.weight" in names


def test_another_batch_size_runs(program):
    changed = {"x": (7, 4), "t": (7, 2), "output.1.grad": (7, 2)}
    inputs = {name: np.ones(sizes, np.float32) for name, sizes in changed.items()}
    assert finished(program, inputs)["output.1"].shape == (7, 2)


def test_a_gradient_can_be_changed(program):
    debugger = nncdbg.Debugger(program)
    debugger.break_at(graph="backward")
    debugger.run()
    debugger.set_value("output.grad", np.float32(0))
    debugger.run()
    assert debugger.outputs is not None
    assert not debugger.outputs["out.weight.grad"].any()


def test_a_module_without_gradients_has_only_a_forward_pass():
    program = nncdbg.torch.capture(nn.ReLU(), (torch.tensor([-1.0, 2.0]),))
    assert list(program.graphs) == ["main", "forward"]
    assert isinstance(program.saved, SavedRun)
    assert finished(program)["output"].tolist() == [0, 2]


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("module", "arguments", "error", "message"),
    [
        (
            Branch(),
            (torch.ones(3),),
            LoadError,
            "torch cannot trace Branch: Unsupported: Data-dependent branching",
        ),
        (
            Branch(),
            (torch.ones(3), 2),
            UsageError,
            r"Branch cannot be called with \(f32\[3\], 2\): too many positional arguments",
        ),
        (Branch(), (), UsageError, r"Branch cannot be called with \(\): missing a required argument: 'x'"),
        (Branch(), {"x": torch.ones(3)}, UsageError, "the arguments of a module are a tensor or a tuple"),
        (
            torch.relu,
            (torch.ones(3),),
            UsageError,
            "cannot capture an object of type builtin_function_or_method",
        ),
    ],
)
def test_what_cannot_be_traced_is_one_error(module, arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        nncdbg.torch.capture(module, arguments)
    assert "\n" not in caught.value.message
    assert caught.value.hint


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.blocks = nn.ModuleList([nn.Linear(5, 2)])

    def forward(self, x):
        for block in self.blocks:
            x = block(self.first(x))  # the call
        return x


CALLS: dict[str, Any] = {
    "capture": nncdbg.torch.capture,
    "compiled_values": partial(nncdbg.torch.compiled_values, backend="aot_eager"),
    "load": lambda *pair: nncdbg.load(pair),
}


@pytest.mark.parametrize("call", CALLS)
def test_tensor_is_the_only_argument(call):
    x = torch.ones(2, 4)
    module = nn.Linear(4, 3)
    assert str(CALLS[call](module, x)) == str(CALLS[call](module, (x,)))


@pytest.mark.parametrize("call", CALLS)
def test_wrong_size_is_reported_at_the_module_that_fails(call, caplog):
    with pytest.raises(UsageError) as caught:
        CALLS[call](Nested(), torch.ones(2, 4))
    error = caught.value
    assert error.message == (
        "Nested cannot be called with these arguments: module blocks.0 (Linear) fails: "
        "a and b must have same reduction dim, but got [2, 3] X [5, 2]"
    )
    assert error.operands == ("input: f32[2,3]", "weight: f32[2,5]", "bias: f32[2]")
    lines = Path(__file__).read_text().splitlines()
    assert error.source == f"{__file__}:{lines.index('            x = block(self.first(x))  # the call') + 1}"
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_search_of_the_module_that_fails_changes_no_buffer():
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(3, 2))
    with pytest.raises(UsageError, match=r"module 1 \(Linear\) fails"):
        nncdbg.torch.capture(module, torch.ones(2, 4))
    assert module[0].num_batches_tracked == 0
    assert torch.equal(module[0].running_mean, torch.zeros(4))
