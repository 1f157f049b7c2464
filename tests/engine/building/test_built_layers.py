"""Layers of programs built in Python: names, shapes, initializers, and weights loaded by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.building.layers import Initializer
from nncdbg.engine.execution.machine import Machine
from nncdbg.ir.records import Node

RESNET50, RESNET101 = (3, 4, 6, 3), (3, 4, 23, 3)
WIDTH = 4
"""Channels of the first stage; 64 in the published networks."""


def bottleneck(
    layers: nncdbg.Layers, x: nncdbg.GraphValue, width: int, stride: int, training: bool
) -> nncdbg.GraphValue:
    """A block of He et al. (2016), with the names of torchvision."""
    b, h, norm = layers.builder, x, layers.batch_norm
    for number, (kernel, outputs) in enumerate(((1, width), (3, width), (1, 4 * width)), 1):
        step = stride if kernel == 3 else 1
        h = layers.conv(
            f"conv{number}", h, outputs, [kernel, kernel], stride=step, padding=kernel // 2, bias=False
        )
        h = norm(f"bn{number}", h, training=training)
        h = b.Relu(h) if number < 3 else h
    assert isinstance(x.type, nncdbg.TensorType)
    if stride > 1 or (x.type.shape or ())[1] != 4 * width:
        x = layers.conv("downsample.0", x, 4 * width, [1, 1], stride=stride, bias=False)
        x = norm("downsample.1", x, training=training)
    return b.Relu(h + x)


def resnet(blocks: tuple[int, ...], classes: int = 10, training: bool = False) -> nncdbg.Program:
    b = nncdbg.Builder(opset=18)
    layers = nncdbg.Layers(b, seed=3)
    with b.graph("net"):
        x = b.input("x", "f32[N,3,32,32]")
        h = layers.conv("conv1", x, WIDTH, [7, 7], stride=2, padding=3, bias=False)
        h = b.Relu(layers.batch_norm("bn1", h, training=training))
        for stage, count in enumerate(blocks, 1):
            for block in range(count):
                stride = 2 if stage > 1 and block == 0 else 1
                with layers.scope(f"layer{stage}.{block}"):
                    h = bottleneck(layers, h, WIDTH * 2 ** (stage - 1), stride, training)
        h = b.Flatten(b.GlobalAveragePool(h))
        b.returns(layers.linear("fc", h, classes))
    return b.program()


def firsts(program: nncdbg.Program) -> dict[str, Node]:
    """The statements that compute the first values of the states."""
    return {each.value.name: each.first for each in program.states if isinstance(each.first, Node)}


def test_weights_of_a_resnet_50_are_loaded_into_a_resnet_101(tmp_path: Path) -> None:
    """P11: the counts are exact, and more layers rename no other."""
    small, large = resnet(RESNET50), resnet(RESNET101, classes=7)
    file = tmp_path / "resnet50.safetensors"
    image = np.zeros((1, 3, 32, 32), np.float32)
    debugger = nncdbg.Debugger(small, {"x": image})
    assert debugger.run().reason == "end"
    assert len(debugger.states) == len(small.states) == 267
    nncdbg.save_states(debugger.states, file)
    found = nncdbg.load_states(large, file)
    assert len(large.states) == 522
    assert len(found.loaded) == 265
    assert len(found.missing) == 17 * 15
    assert {name.split(".")[0] for name in found.missing} == {"layer3"}
    assert found.unused == ()
    assert found.unfit == (
        ("fc.weight", "f32[7,128]", "f32[10,128]"),
        ("fc.bias", "f32[7]", "f32[10]"),
    )
    assert "265 states loaded" in str(found)
    assert "255 missing: %layer3.6.conv1.weight" in str(found)
    loaded = nncdbg.Debugger(found.program, {"x": image})
    assert loaded.run().reason == "end"
    assert np.array_equal(loaded.states["layer1.0.conv1.weight"], debugger.states["layer1.0.conv1.weight"])
    with pytest.raises(nncdbg.LoadError, match="255 missing"):
        nncdbg.load_states(large, file, strict_states=True)
    # The other way round, the further blocks of the file are not used.
    nncdbg.save_states(nncdbg.Debugger(large, {"x": image}).states | loaded.states, file)
    back = nncdbg.load_states(small, file)
    assert (len(back.loaded), len(back.missing), len(back.unused), len(back.unfit)) == (265, 0, 255, 2)
    assert {name.split(".")[0] for name in back.unused} == {"layer3"}


def test_another_layer_changes_no_name_and_no_initializer() -> None:
    """P11, G9: names and first values depend on the layer alone."""
    small, large = firsts(resnet(RESNET50)), firsts(resnet(RESNET101))
    assert len(small) == 267
    assert small.keys() <= large.keys()
    assert all(small[name].op == large[name].op for name in small)
    assert all(small[name].attributes == large[name].attributes for name in small)
    seeds = [each.attributes["seed"] for each in large.values() if "seed" in each.attributes]
    assert len(set(seeds)) == len(seeds)


def test_building_and_compiling_runs_no_kernel() -> None:
    """G1, G5: types suffice; an integer index without data does not fail."""
    with patch.object(Machine, "step", side_effect=AssertionError("a statement ran")):
        b = nncdbg.Builder(opset=18)
        layers = nncdbg.Layers(b)
        with b.graph("net"):
            tokens = b.input("tokens", "i64[N,5]")
            h = layers.layer_norm("norm", layers.embedding("words", tokens, 11, 6))
            y = layers.linear("out", h, 3)
            assert str(y.type) == "f32[N,5,3]"
            b.returns(y)
        program = b.program()
        nncdbg.Debugger(program)
    assert [each.name for each in layers.parameters] == [
        "words.weight",
        "norm.weight",
        "norm.bias",
        "out.weight",
        "out.bias",
    ]


def test_initializers_are_statements_that_can_be_stepped_over() -> None:
    """G4, G9: the first value is a statement of the program, the same for the same seed."""
    program = resnet((1, 1, 1, 1))
    debugger = nncdbg.Debugger(program, {"x": np.zeros((1, 3, 32, 32), np.float32)})
    assert debugger.states == {}
    debugger.step_over()
    assert list(debugger.states) == ["conv1.weight"]
    again = nncdbg.Debugger(resnet((1, 1, 1, 1)), {"x": np.zeros((1, 3, 32, 32), np.float32)})
    again.step_over()
    assert np.array_equal(debugger.states["conv1.weight"], again.states["conv1.weight"])
    weight = debugger.states["conv1.weight"]
    assert np.abs(weight).max() <= np.sqrt(6 / (3 * 49))


def test_a_shape_error_names_the_python_line() -> None:
    """G6: at the call, not at the run."""
    b = nncdbg.Builder()
    layers = nncdbg.Layers(b)
    with b.graph("net"):
        x = b.input("x", "f32[N,4]")
        with pytest.raises(nncdbg.GraphError) as caught:
            layers.conv("conv", x, 2, [3, 3])
        b.returns(x)
    assert "layers.conv(" in str(caught.value)


def test_batch_norm_updates_its_statistics_in_training_only() -> None:
    inputs = {"x": np.random.default_rng(0).normal(2.0, 3.0, (8, 3, 32, 32)).astype(np.float32)}
    for training in (True, False):
        debugger = nncdbg.Debugger(resnet((1, 1, 1, 1), training=training), inputs)
        debugger.run()
        moved = debugger.states["bn1.running_mean"]
        assert bool(np.any(moved)) is training
    programs = [resnet((1, 1, 1, 1), training=training) for training in (True, False)]
    assert [len(each.states) for each in programs] == [4 * 20 + 7] * 2


def test_compilation_with_types_only_calls_no_kernel() -> None:
    """G1: counted in the kernel; the run calls it once for each of the two layers."""
    called = []

    @nncdbg.op("test.Counted", infer=lambda attributes, types: [types[0]])
    def counted(xp: Any, x: Any) -> Any:
        """The operand."""
        called.append(x.shape)
        return x

    b = nncdbg.Builder(opset=18)
    layers = nncdbg.Layers(b)
    with b.graph("net"):
        h = b.op("test.Counted", layers.linear("in", b.input("x", "f32[N,3]"), 4))
        b.returns(b.op("test.Counted", layers.linear("out", h, 2)))
    debugger = nncdbg.Debugger(b.program(), dims={"N": 5})
    assert called == []
    assert debugger.run().reason == "end"
    assert called == [(5, 4), (5, 2)]


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_a_uniform_initializer_is_a_statement_with_its_limits(low: float) -> None:
    """G9: ``uniform(-1, 1)`` in the text, with a seed."""
    b = nncdbg.Builder()
    layers = nncdbg.Layers(b, seed=4)
    with b.graph("net"):
        layers.linear("fc", b.input("x", "f32[1,300]"), 200, bias=False, init=(low, 1))
        b.returns()
    program = b.program()
    (state,) = program.states
    assert isinstance(state.first, Node)
    assert f"RandomUniform(dtype=1, high=1.0, low={low}, seed=" in state.first.text()
    debugger, again = nncdbg.Debugger(program), nncdbg.Debugger(nncdbg.parse(str(program)))
    debugger.run()
    again.run()
    weight = debugger.states["fc.weight"]
    assert np.array_equal(weight, again.states["fc.weight"])
    assert low <= weight.min() < low + 0.01
    assert 0.99 < weight.max() <= 1.0


@pytest.mark.parametrize("init", ["he_uniform", "he_normal", "xavier_uniform", "normal", "zeros", "ones"])
def test_initializers_have_their_deviation(init: Initializer) -> None:
    b = nncdbg.Builder()
    layers = nncdbg.Layers(b)
    with b.graph("net"):
        layers.linear("fc", b.input("x", "f32[1,300]"), 200, init=init)
        b.returns()
    debugger = nncdbg.Debugger(b.program())
    debugger.run()
    wanted: dict[Initializer, float] = {
        "he_uniform": (2 / 300) ** 0.5,
        "he_normal": (2 / 300) ** 0.5,
        "xavier_uniform": (2 / 500) ** 0.5,
    }
    weight = debugger.states["fc.weight"]
    assert weight.std() == pytest.approx({**wanted, "normal": 0.02, "zeros": 0, "ones": 0}[init], rel=0.02)
    assert weight.mean() == pytest.approx(float(init == "ones"), abs=0.002)


def test_a_name_has_one_shape() -> None:
    b = nncdbg.Builder()
    layers = nncdbg.Layers(b)
    with b.graph("net"):
        x = b.input("x", "f32[1,4]")
        assert layers.linear("fc", x, 4).type == layers.linear("fc", x, 4).type
        assert len(layers.parameters) == 2
        with pytest.raises(nncdbg.GraphError, match=r"%fc.weight is f32\[4,4\], but this layer needs"):
            layers.linear("fc", x, 5)
        b.returns()
