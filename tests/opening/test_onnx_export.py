"""Programs and trainings written as ONNX models, against their own runs, ONNX Runtime and onnx.reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from onnx.reference import ReferenceEvaluator

import nncdbg
from nncdbg.dtypes import NUMPY
from nncdbg.opening import onnx_export
from nncdbg.terminal.main import main
from tests.engine.compilation.test_states import BLOCKS
from tests.engine.frontends.random_models import models
from tests.engine.frontends.training_models import classifier, graph, info, training
from tests.engine.frontends.training_models import model as model_of
from tests.engine.programs import runnable
from tests.laws import examples
from tests.presence import present

EXAMPLES = Path(__file__).parents[2] / "examples"
FEW = examples(40)
HEADER = "#nncdbg 1\nopset 18\n\n"
TWO = np.float32(2)


def runtime_outputs(model: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    given = {name: np.asarray(value) for name, value in data.items() if name in wanted}
    return dict(zip(names, session.run(names, given), strict=True))


def exported(program: nncdbg.Program) -> Any:
    model = nncdbg.to_onnx(program)
    onnx.checker.check_model(model, full_check=True)
    return model


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return list(one) == list(other) and all(
        np.asarray(one[name]).dtype == np.asarray(other[name]).dtype
        and np.array_equal(one[name], other[name], equal_nan=np.asarray(one[name]).dtype.kind == "f")
        for name in one
    )


# -- programs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["first_steps", "nan_softmax", "refine_loop", "attention", "overflow_f16"])
def test_an_example_gives_the_same_bits_as_its_model(name: str) -> None:
    program = nncdbg.load(EXAMPLES / f"{name}.nnc")
    debugger = nncdbg.Debugger(program)
    assert debugger.run().reason == "end"
    model = exported(program)
    data = {key: np.asarray(value) for key, value in debugger.inputs.items()}
    outputs = present(debugger.outputs)
    assert same(outputs, nncdbg.run(model, data))
    if name not in ("attention", "overflow_f16"):  # Random weights; f16 that ONNX Runtime computes in f32.
        for key, value in runtime_outputs(model, data).items():
            np.testing.assert_allclose(value, outputs[key], rtol=1e-5, equal_nan=True)


@FEW
@given(models())
def test_a_random_model_comes_back_with_the_same_outputs(model: Any) -> None:
    data = {"x": np.array([0.5, -1.0, 2.0]), "z": np.array([1.0, 0.0, -0.5])}
    program = nncdbg.load(model)
    again = exported(program)
    outputs = nncdbg.run(program, data)
    assert same(outputs, nncdbg.run(again, data))
    np.testing.assert_allclose(
        runtime_outputs(again, data)["y"], runtime_outputs(model, data)["y"], rtol=1e-7, atol=1e-7
    )


@FEW
@given(runnable("f64", random=False))
def test_a_random_program_gives_the_same_bits_as_its_model(text: str) -> None:
    data = {"x": np.array([0.5, -1.0, 2.0]), "z": np.array([1.0, 0.0, -0.5])}
    program = nncdbg.parse(text)
    model = exported(program)
    outputs = nncdbg.run(program, data)
    assert same(outputs, nncdbg.run(model, data))
    for name, value in runtime_outputs(model, data).items():
        np.testing.assert_allclose(value, outputs[name], rtol=1e-6, atol=1e-6)


def looped(kind: str) -> nncdbg.Program:
    b = nncdbg.Builder(opset=18)
    with b.graph("main"):
        x = b.input("x", "f32[2]")
        collects = kind.endswith("collects")
        yes = b.constant("yes", True)
        with b.loop("refine", times=None if kind == "no count" else 6) as loop:
            go = loop.carry("go", yes) if kind.startswith("first") else None
            s = loop.carry("s", x)
            if go is not None:
                b.break_unless(go)
            small = b.ReduceMax(s, keepdims=0) < 20.0
            if kind.startswith(("middle", "two", "no count")):
                b.break_unless(small)
            n = b.Add(s, s, name="n")
            if kind.startswith("two"):
                b.break_unless(b.ReduceMin(n, keepdims=0) > -3.0)
            following = [small, n] if go is not None else [n]
            b.next(*following, collect=[n] if collects else [])
        results = [loop.result(s, name="y")]
        if collects:
            results.append(loop.collected(0, name="each"))
        b.returns(*results)
    return b.program()


@pytest.mark.parametrize("start", [[1.0, 0.5], [30.0, 2.0], [0.1, -1.0]])
@pytest.mark.parametrize(
    "kind",
    [
        *("count", "count collects", "first", "first collects", "middle", "middle collects"),
        *("two", "two collects", "no count"),
    ],
)
def test_loops(kind: str, start: list[float]) -> None:
    program = looped(kind)
    data = {"x": np.array(start, np.float32)}
    model = exported(program)
    outputs = nncdbg.run(program, data)
    assert same(outputs, nncdbg.run(model, data))
    assert same(outputs, runtime_outputs(model, data))
    assert same(outputs, dict(zip(outputs, ReferenceEvaluator(model).run(None, data), strict=True)))


def test_results_inputs_and_constants_keep_their_names() -> None:
    text = (
        HEADER
        + "graph @main(%x: f32[2], %a b: f32[2]) -> (%x: f32[2], %c: f32[2], %y: f32[2], %y.2: f32[2]) {\n"
        + "  %c: f32[2] = [1.0, 2.0]\n  %y = @f(%x)\n  %y.2 = @f(%y)\n  return %x, %c, %y, %y.2\n}\n\n"
        + "graph @f(%c: f32[2]) -> (%y: f32[2]) {\n  %x = Neg(%c)\n  %y = Add(%x, 1)\n  return %y\n}\n"
    ).replace("%a b", '%"a b"')
    program = nncdbg.parse(text)
    model = exported(program)
    assert [each.name for each in model.graph.input] == ["x", "a b"]
    assert [each.name for each in model.graph.output] == ["x", "c", "y", "y.2"]
    data = {"x": np.array([1, 2], np.float32), "a b": np.zeros(2, np.float32)}
    assert same(nncdbg.run(program, data), nncdbg.run(model, data))


def test_calls_become_layers_again_and_locations_are_kept() -> None:
    text = (
        HEADER + "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %h = @block(%x)\n"
        '  ## the end\n  %y = Neg(%h) loc("net.py":7, node "last")\n  return %y\n}\n\n'
        "graph @block(%x: f32[2]) -> (%h: f32[2]) {\n  %a = Exp(%x)\n  %h = Log(%a)\n  return %h\n}\n"
    )
    again = nncdbg.load(nncdbg.to_onnx(nncdbg.parse(text)))
    assert list(again.graphs) == ["main", "block"]
    last = again.graph.nodes[-1]
    assert last.comment == "the end"
    assert str(last.location) == 'net.py:7, node "last"'


def test_values_of_all_types_are_constants() -> None:
    b = nncdbg.Builder(opset=23)
    arrays = {
        name: np.array([1, 0, 1]).astype(NUMPY[name])
        for name in (
            "bool",
            "i8",
            "u8",
            "i16",
            "u16",
            "i32",
            "u32",
            "i64",
            "u64",
            "f16",
            "bf16",
            "f32",
            "f64",
        )
    }
    arrays["str"] = np.array(["a", "", "ü"], object)
    with b.graph("main"):
        b.returns(*(b.Identity(b.constant(f"c_{name}", array), name=name) for name, array in arrays.items()))
    program = b.program()
    outputs = nncdbg.run(exported(program))
    assert {name: value.tolist() for name, value in outputs.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    assert all(outputs[name].dtype == array.dtype for name, array in arrays.items())


def test_statements_that_onnx_cannot_express_are_listed_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.nnc"
    file.write_text(
        HEADER + "graph @main(%x: f32[2]) -> (%y) {\n  %a = my.Op(%x)\n  %b = Neg(%a)\n"
        "  %y = nncdbg.Empty(shape=[2])\n  return %y\n}\n"
    )
    assert main(["print", str(file), "-o", str(tmp_path / "a.onnx")]) == 3
    found = capsys.readouterr().err
    assert "ONNX cannot express 2 statements: line 5: my.Op; line 7: nncdbg.Empty" in found
    assert not (tmp_path / "a.onnx").exists()


def test_an_input_needs_a_type() -> None:
    with pytest.raises(nncdbg.GraphError, match="the type of the input %x is not known"):
        nncdbg.to_onnx(nncdbg.parse(HEADER + "graph @main(%x) -> (%y) {\n  %y = Neg(%x)\n  return %y\n}\n"))


def test_a_model_is_written_and_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.onnx"
    for _ in range(2):
        assert main(["print", str(EXAMPLES / "refine_loop.nnc"), "-o", str(file)]) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["a.onnx"]
    onnx.checker.check_model(file)
    assert main(["print", str(EXAMPLES / "refine_loop.nnc"), "-o", str(tmp_path / "no" / "a.onnx")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_large_tensors_are_written_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "_LARGEST", 1000)
    b = nncdbg.Builder(opset=18)
    weights = np.arange(4000, dtype=np.float32).reshape(2, 2000)
    with b.graph("main"):
        b.returns(b.MatMul(b.input("x", "f32[1,2]"), b.constant("w", weights), name="y"))
    file = tmp_path / "large.onnx"
    for _ in range(2):
        nncdbg.write_onnx(b.program(), file)
    assert (tmp_path / "large.onnx.data").stat().st_size == weights.nbytes
    outputs = nncdbg.run(file, {"x": np.ones((1, 2), np.float32)})
    assert np.array_equal(outputs["y"][0], weights.sum(0))


# -- trainings ---------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
TRAININGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "train_mlp": (
        "  %x = RandomUniform(high=1.0, low=-1.0, shape=[32,2]) : f32[32,2]\n",
        "%x: f32[32,2]",
        {"x": RNG.uniform(-1, 1, (6, 32, 2)).astype(np.float32)},
    ),
    "train_cnn": (
        "  %image, %label = @bars() : f32[32,1,8,8], i64[32]\n",
        "%image: f32[32,1,8,8], %label: i64[32]",
        {
            "image": RNG.normal(size=(4, 32, 1, 8, 8)).astype(np.float32),
            "label": RNG.integers(0, 2, (4, 32)),
        },
    ),
    "train_transformer": (
        "  %tokens, %length, %label = @sequences() : i64[32,8], f32[32,1], i64[32]\n",
        "%tokens: i64[32,8], %length: f32[32,1], %label: i64[32]",
        {
            "tokens": RNG.integers(0, 12, (4, 32, 8)),
            "length": RNG.integers(1, 9, (4, 32, 1)).astype(np.float32),
            "label": RNG.integers(0, 2, (4, 32)),
        },
    ),
}
"""An example with data of its own: the statement that makes the data, its results, and data."""


def fed(name: str) -> tuple[nncdbg.Program, dict[str, Any]]:
    """An example whose data are inputs of the program: random ops depend on their place in it."""
    line, inputs, data = TRAININGS[name]
    text = (EXAMPLES / f"{name}.nnc").read_text()
    assert line in text
    text = text.replace(line, "").replace("graph @train()", f"graph @train({inputs})")
    text = text.replace(
        text[text.index("run @train") :], f"run @train for {', '.join(f'%{key}' for key in data)}\n"
    )
    text = re.sub(r"(?ms)^graph @(bars|sequences)\(.*?^}\n", "", text)
    return nncdbg.parse(text), data


def played(program: nncdbg.Program, data: Mapping[str, Any]) -> nncdbg.Debugger:
    debugger = nncdbg.Debugger(program, data)
    assert debugger.run().reason == "end", debugger.stop
    return debugger


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_goes_out_and_comes_in_with_the_same_bits(name: str) -> None:
    """Gradients, optimizers and first values: losses and states are the same, twice out and in."""
    program, data = fed(name)
    wanted = played(program, data)
    for _ in range(2):
        program = nncdbg.load(exported(program), training=True)
        assert nncdbg.parse(str(program)) == program
        got = played(program, data)
        assert same(present(wanted.outputs), present(got.outputs))
        assert {key: value.tobytes() for key, value in wanted.states.items()} == {
            key: got.states[key].tobytes() for key in wanted.states
        }


def test_a_training_of_onnx_comes_in_and_goes_out_with_the_same_bits() -> None:
    """The inference graph stays one graph, which ONNX Runtime runs; the algorithm reads its values."""
    program = nncdbg.load(classifier(), training=True)
    model = exported(program)
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Relu", "MatMul"]
    info = model.training_info[0]
    assert {entry.key for entry in info.update_binding} == {"w1", "w2", "v1", "v2", "s1", "s2", "k"}
    assert not {"a", "h", "y"} & {name for node in info.algorithm.node for name in node.output}
    assert [each.name for each in info.algorithm.input] == ["t"]
    assert {each.name for each in model.graph.initializer} == {"w1", "w2"}
    rng = np.random.default_rng(5)
    x = rng.normal(size=(8, 5, 4)).astype(np.float32)
    data = {"x": x, "t": rng.integers(0, 3, (8, 5))}
    wanted, got = played(program, data), played(nncdbg.load(model, training=True), data)
    assert same(present(wanted.outputs), present(got.outputs))
    start = nncdbg.run(nncdbg.load(model), {"x": x[0]})
    found = runtime_outputs(model, {"x": x[0]})
    np.testing.assert_allclose(found["y"], start["y"], rtol=1e-5, atol=1e-6)


def test_the_algorithm_is_what_onnx_defines() -> None:
    """One step by onnx.reference: the inference graph and the algorithm as one graph."""
    program, data = fed("train_mlp")
    model = exported(program)
    info = model.training_info[0]
    both = onnx.GraphProto()
    both.CopyFrom(info.algorithm)
    both.initializer.extend(model.graph.initializer)
    step = onnx.helper.make_model(both, opset_imports=model.opset_import, ir_version=10)
    reference = ReferenceEvaluator(step)
    results: Any = reference.run(None, {"x": data["x"][0]})
    found = dict(zip(reference.output_names, results, strict=True))
    debugger = played(program, {"x": data["x"][:1]})
    np.testing.assert_allclose(found["l"], present(debugger.outputs)["l"][0], rtol=1e-6)
    for entry in info.update_binding:
        np.testing.assert_allclose(found[entry.value], debugger.states[entry.key], rtol=1e-5, atol=1e-7)


CONTROL = {
    "while": """state %w: f32[3] = [0.5, -1.0, 2.0]
state %r: f32[3] = zeros for %w

graph @train(%x: f32[3]) -> (%l: f32[]) {
  %l: f32[], saved %s = @loss(%x)
  %d_w: f32[3] = @loss.backward(1.0, %s)
  %w.1: f32[3], %r.1: f32[3] = nncdbg.RMSProp(%w, %d_w, %r, lr=0.1)
  update %w = %w.1, %r = %r.1
  return %l
}

graph @loss(%x: f32[3]) -> (%l: f32[]) {
  while @time (%h: f32[3] = %x) times 4 {
    %p: f32[3] = Mul(%h, %w)
    %h.1: f32[3] = Tanh(%p)
    next %h = %h.1
  } -> (%y = %h)
  %l: f32[] = ReduceMean(%y, keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w)

run @train for %x
""",
    "if": """state %w: f32[3] = [0.5, -1.0, 2.0]
state %n: i64[] = 0
state %m1: f32[3] = zeros for %w
state %m2: f32[3] = zeros for %w

graph @train(%x: f32[3]) -> (%l: f32[], %seen: i64[]) {
  %l: f32[], saved %s = @loss(%x)
  %d_w: f32[3] = @loss.backward(2.0, %s)
  %good: bool[] = Less(%l, 1.0)
  if %good {
    %w.1, %m1.1, %m2.1, %n.1 = nncdbg.Adam(%w, %d_w, %m1, %m2, %n, lr=0.1)
    @count()
    update %w = %w.1, %m1 = %m1.1, %m2 = %m2.1
    yield
  } else {
    yield
  }
  %seen: i64[] = Identity(%n)
  return %l, %seen
}

graph @count() -> () {
  %n.1: i64[] = Add(%n, 1)
  update %n = %n.1
  return
}

graph @loss(%x: f32[3]) -> (%l: f32[]) {
  %p: f32[3] = Mul(%x, %w)
  %m: f32[] = ReduceMean(%p, keepdims=0)
  %positive: bool[] = Greater(%m, 0.0)
  if %positive {
    %a: f32[] = Exp(%m)
    yield %a
  } else {
    %b: f32[] = Mul(%m, %m)
    yield %b
  } -> (%l: f32[])
  return %l
}

backward @loss.backward of @loss by (%w)

run @train for %x
""",
}


@pytest.mark.parametrize("name", CONTROL)
def test_branches_and_loops_of_a_training_keep_their_bits(name: str) -> None:
    program = nncdbg.parse(HEADER + CONTROL[name])
    data = {"x": np.random.default_rng(2).normal(size=(9, 3)).astype(np.float32)}
    wanted, got = played(program, data), played(nncdbg.load(exported(program), training=True), data)
    assert same(present(wanted.outputs), present(got.outputs))
    assert {key: value.tobytes() for key, value in wanted.states.items()} == {
        key: got.states[key].tobytes() for key in wanted.states
    }


@pytest.mark.parametrize("flag", [True, False])
def test_updates_in_blocks_and_calls_are_bound_once(flag: bool) -> None:
    """A program without a run: one step of its training is the run of its entry graph."""
    program = nncdbg.parse(BLOCKS)
    once = played(program, {"flag": np.array(flag)})
    model = exported(program)
    assert sorted(entry.key for entry in model.training_info[0].update_binding) == ["a", "b"]
    step = played(nncdbg.load(model, training=True), {"flag": np.array([flag])})
    assert present(step.outputs)["seen"].tolist() == [present(once.outputs)["seen"].item()]
    assert {name: value.item() for name, value in step.states.items()} == {
        name: once.states[name].item() for name in ("a", "b")
    }


def test_algorithms_in_turn_become_one_algorithm() -> None:
    own = graph([onnx.helper.make_node("Mul", ["a", "b"], ["y"])], [], [info("y", [])], {"a": TWO, "b": TWO})
    first = graph([onnx.helper.make_node("Add", ["a", "x"], ["n"])], [info("x", [])], [info("n", [])])
    second = graph([onnx.helper.make_node("Add", ["b", "y"], ["n"])], [], [info("n", [])])
    source = model_of(own, training(first, {"a": "n"}), training(second, {"b": "n"}))
    program = nncdbg.load(source, training=True)
    data = {"x": np.array([1, 10, -3], np.float32)}
    wanted, got = played(program, data), played(nncdbg.load(exported(program), training=True), data)
    assert {name: wanted.states[name].item() for name in "ab"} == {
        name: got.states[name].item() for name in "ab"
    }
    assert same(present(wanted.outputs), present(got.outputs))


def test_an_evaluated_graph_is_the_inference_graph() -> None:
    text = (
        HEADER + "state %w: f32[2] = [1.0, -1.0]\n\n"
        "graph @train(%x: f32[2]) -> (%l: f32[]) {\n  %l = @loss(%x)\n  %w.1 = Mul(%w, 0.5)\n"
        "  update %w = %w.1\n  return %l\n}\n\n"
        "graph @loss(%x: f32[2]) -> (%l: f32[]) {\n  %p = Mul(%x, %w)\n  %l = ReduceSum(%p, keepdims=0)\n"
        "  return %l\n}\n\nrun @train for %x\nevaluate @loss for %test\n"
    ).replace("evaluate @loss for %test", "evaluate @loss for %x")
    model = exported(nncdbg.parse(text))
    assert model.graph.name == "loss"
    assert [node.op_type for node in model.training_info[0].algorithm.node] == ["Mul"]
    data = {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}
    wanted, got = played(nncdbg.parse(text), data), played(nncdbg.load(model, training=True), data)
    assert np.array_equal(present(wanted.outputs)["l"], present(got.outputs)["l"])


def test_without_an_inference_graph_onnxruntime_opens_the_states() -> None:
    model = exported(nncdbg.load(EXAMPLES / "train_mlp.nnc"))
    found = runtime_outputs(model, {})
    assert list(found) == ["w1", "b1", "w2", "m1", "mb", "m2"]
    debugger = nncdbg.Debugger(EXAMPLES / "train_mlp.nnc")
    debugger.break_at(graph="train")
    debugger.run()
    assert same(found, {name: np.asarray(value) for name, value in debugger.states.items()})


@pytest.mark.parametrize(
    ("lines", "sizes"),
    [
        (["%y = ReduceSum(%x, [1], keepdims=0)"], ["N"]),
        (["%s = SplitToSequence(%x)", "%y = ConcatFromSequence(%s, axis=0)"], ["", 3]),
        (["%n = Size(%x)", "%k = Unsqueeze(%n, [0])", "%y = Reshape(%x, %k)"], [""]),
    ],
)
def test_an_output_has_the_axes_that_onnx_infers(lines: list[str], sizes: list[Any]) -> None:
    body = "".join(f"  {line}\n" for line in lines)
    model = exported(
        nncdbg.parse(f"opset 21\n\ngraph @main(%x: f32[N,3]) -> (%y) {{\n{body}  return %y\n}}\n")
    )
    dims = model.graph.output[0].type.tensor_type.shape.dim
    assert [each.dim_value or each.dim_param for each in dims] == sizes
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert same(runtime_outputs(model, {"x": x}), nncdbg.run(nncdbg.load(model), {"x": x}))


def test_an_output_of_an_unknown_number_of_axes_needs_a_type() -> None:
    text = "opset 21\n\ngraph @main(%x: f32[N,3]) -> (%y) {\n  %y = Squeeze(%x)\n  return %y\n}\n"
    with pytest.raises(nncdbg.GraphError, match="the number of axes of the output %y is not known") as caught:
        nncdbg.to_onnx(nncdbg.parse(text))
    assert "declare it" in str(caught.value.hint)
    model = exported(nncdbg.parse(text.replace("(%y)", "(%y: f32[?,3])")))
    assert runtime_outputs(model, {"x": np.ones((2, 3), np.float32)})["y"].shape == (2, 3)


def test_a_training_of_several_graphs_is_refused() -> None:
    text = (
        HEADER
        + "state %w: f32[] = 1.0\n\n"
        + "".join(
            f"graph @{name}() -> () {{\n  %w.1 = Neg(%w)\n  update %w = %w.1\n  return\n}}\n\n"
            for name in "ab"
        )
        + "run @a steps 2\nrun @b steps 2\n"
    )
    with pytest.raises(nncdbg.UnsupportedOp, match="runs several graphs: @a, @b"):
        nncdbg.to_onnx(nncdbg.parse(text))


def test_a_written_training_is_opened_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mlp.onnx"
    assert main(["print", str(EXAMPLES / "train_mlp.nnc"), "-o", str(file)]) == 0
    assert main(["run", str(file), "--training", "--steps", "60"]) == 0
    assert "%l f32[60]" in capsys.readouterr().out
