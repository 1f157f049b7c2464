"""Laws over random ONNX models with control flow: they are what ONNX Runtime, as a whole, takes them for."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.errors import NncdbgError
from tests.engine.frontends.random_models import damage, models
from tests.engine.programs import largest

X = {"x": np.array([0.5, -1.0, 2.0]), "z": np.array([1.0, 0.0, -0.5])}
FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def in_runtime(model):
    """What a session of the whole model gives, its optimisations off."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], X)[0]


@FEW
@given(models())
def test_a_model_is_what_onnx_runtime_takes_it_for(model):
    """In f64, where the last digits in which kernels differ cannot grow into what is compared."""
    onnx.checker.check_model(model)
    wanted = in_runtime(model)
    for flat in (False, True):
        debugger = nncdbg.Debugger(nncdbg.load(model, flat=flat), X)
        assume(largest(debugger) < 1e4)
        np.testing.assert_allclose(debugger.outputs["y"], wanted, rtol=1e-7, atol=1e-7)
    stepped = nncdbg.Debugger(nncdbg.load(model), X, backend="onnxruntime")
    assert stepped.run().reason == "end", stepped.stop.error
    np.testing.assert_allclose(stepped.outputs["y"], wanted, rtol=1e-7, atol=1e-7)


@FEW
@given(models())
def test_layers_text_steps_and_memory_change_no_bit(model):
    program = nncdbg.load(model)
    whole = nncdbg.Debugger(program, X)
    assert whole.run().reason == "end", whole.stop.error
    wanted = whole.outputs["y"].tobytes()
    text = str(program)
    again = nncdbg.parse(text)
    assert again == program
    for other in (again, nncdbg.load(model, flat=True)):
        for allocator in ("debug", "plain", "arena", "poison"):
            debugger = nncdbg.Debugger(other, X, allocator=allocator)
            assert debugger.run().reason == "end", debugger.stop.error
            assert debugger.outputs["y"].tobytes() == wanted
    stepped = nncdbg.Debugger(program, X)
    while not stepped.control.machine.ended:
        assert stepped.step_into().error is None
    assert stepped.outputs["y"].tobytes() == wanted
    for _ in range(min(20, stepped.control.machine.tick)):
        stepped.step_back_into()
    assert stepped.run().reason == "end"
    assert stepped.outputs["y"].tobytes() == wanted


@settings(FEW, max_examples=200)
@given(models(), st.integers(1, 3), st.integers(0, 2**32))
def test_a_damaged_model_is_shown_as_it_is_or_explained(model, count, seed):
    """Any error is one of ours; what loads can be printed and read again, whether it runs or not."""
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
