"""Properties of random ONNX models with control flow, with ONNX Runtime as oracle."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import nncdbg
from nncdbg.errors import NncdbgError
from tests.engine.frontends.random_models import damage, models
from tests.engine.programs import largest
from tests.laws import examples
from tests.presence import present

X = {"x": np.array([0.5, -1.0, 2.0]), "z": np.array([1.0, 0.0, -0.5])}
FEW = examples(40)


def outputs_of_runtime(model):
    """Run the whole model in ONNX Runtime without optimizations and return its output."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], X)[0]


@FEW
@given(models())
def test_outputs_agree_with_onnxruntime(model):
    """Run in f64, so that rounding differences between kernels stay below the tolerance."""
    onnx.checker.check_model(model)
    wanted = outputs_of_runtime(model)
    for flat in (False, True):
        debugger = nncdbg.Debugger(nncdbg.load(model, flat=flat), X)
        assume(largest(debugger) < 1e4)
        np.testing.assert_allclose(present(debugger.outputs)["y"], wanted, rtol=1e-7, atol=1e-7)
    stepped = nncdbg.Debugger(nncdbg.load(model), X, backend="onnxruntime")
    assert stepped.run().reason == "end", stepped.stop.error
    np.testing.assert_allclose(present(stepped.outputs)["y"], wanted, rtol=1e-7, atol=1e-7)


@FEW
@given(models())
def test_outputs_are_the_same_bits_with_layers_text_steps_and_allocators(model):
    program = nncdbg.load(model)
    whole = nncdbg.Debugger(program, X)
    assert whole.run().reason == "end", whole.stop.error
    wanted = present(whole.outputs)["y"].tobytes()
    text = str(program)
    again = nncdbg.parse(text)
    assert again == program
    for other in (again, nncdbg.load(model, flat=True)):
        for allocator in ("debug", "plain", "arena", "poison"):
            debugger = nncdbg.Debugger(other, X, allocator=allocator)
            assert debugger.run().reason == "end", debugger.stop.error
            assert present(debugger.outputs)["y"].tobytes() == wanted
    stepped = nncdbg.Debugger(program, X)
    while not stepped.control.machine.ended:
        assert stepped.step_into().error is None
    assert present(stepped.outputs)["y"].tobytes() == wanted
    for _ in range(min(20, stepped.control.machine.tick)):
        stepped.step_back_into()
    assert stepped.run().reason == "end"
    assert present(stepped.outputs)["y"].tobytes() == wanted


@examples(200)
@given(models(), st.integers(1, 3), st.integers(0, 2**32))
def test_a_damaged_model_is_printable_or_an_nncdbg_error(model, count, seed):
    """Any error is an `NncdbgError`; a model that loads can be printed and parsed, even if it cannot run."""
    damaged = onnx.ModelProto.FromString(model.SerializeToString())
    rng = random.Random(seed)
    for _ in range(count):
        damage(damaged, rng)
    try:
        program = nncdbg.load(damaged)
    except NncdbgError:
        return
    assert nncdbg.parse(str(program)) == program
    inputs = {value.name: X[value.name] for value in program.graphs[program.entry].inputs if value.name in X}
    try:
        debugger = nncdbg.Debugger(program, inputs, max_ops=3000)
    except NncdbgError:
        return
    stop = debugger.run()
    assert stop.reason in ("end", "exception", "pause")
    assert stop.error is None or isinstance(stop.error, NncdbgError)
