"""Recorded steps against their own variants: compiled phases, and the casts of autocast."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.errors import LoadError, UsageError  # noqa: E402
from nncdbg.torch.capture import autocast_program  # noqa: E402
from nncdbg.torch.compiled import compiled_program_values  # noqa: E402


def mlp() -> Any:
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers)


def recorded(model: Callable[[], Any] = mlp, *, autocast: bool = False) -> Any:
    torch.manual_seed(0)
    module = model()
    optimizer = torch.optim.AdamW(module.parameters())
    x, y = torch.randn(16, 8), torch.randn(16, 4)
    with nncdbg.torch.record(module, optimizer) as step:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
    return step


def debugger_of(step: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(step, statistics=False)


def golden_report(step: Any, backend: str) -> Any:
    values = compiled_program_values(debugger_of(step), backend)
    return nncdbg.diff(step, golden=values, names={name: name for name in values})


def test_an_eager_backend_gives_each_statement_with_equal_bits() -> None:
    step = recorded()
    values = compiled_program_values(debugger_of(step), "aot_eager")
    phases = [step.program.graphs[name] for name in ("forward", "backward")]
    statements = [node for graph in phases for node in step.program.executed(graph)]
    wanted = {value.name for node in statements for value in node.outputs if "empty" not in node.op}
    assert wanted - {""} <= values.keys()
    debugger = debugger_of(step)
    debugger.run()
    for name, content in (debugger.outputs or {}).items():
        if name in values:
            assert np.array_equal(values[name], content), name
    assert golden_report(step, "aot_eager").equal


def test_dropout_has_the_numbers_of_the_recorded_step() -> None:
    step = recorded()
    values = compiled_program_values(debugger_of(step), "aot_eager")
    assert 0 < np.count_nonzero(values["2.mul"] == 0) < values["2.mul"].size
    assert golden_report(step, "aot_eager").equal


def test_modules_and_gradients_are_compared_for_a_compiler_that_fuses() -> None:
    def run_graph(graph: Any, _: Any) -> Any:
        return graph.forward

    torch._dynamo.register_backend(run_graph, name="variants_fused")
    step = recorded()
    values = compiled_program_values(debugger_of(step), "variants_fused")
    forward = {value.name for value in step.program.graphs["forward"].outputs}
    assert forward | {"0.weight.grad", "3.bias.grad"} <= values.keys()
    statements = sum(1 for _ in step.program.executed(step.program.graph))
    assert len(values) < statements / 2


def test_a_wrong_compiler_is_found_at_its_operator() -> None:
    def wrong_gelu(graph: Any, _: Any) -> Any:
        for node in graph.graph.nodes:
            if "gelu.default" in str(node.target):
                with graph.graph.inserting_after(node):
                    changed = graph.graph.call_function(operator.mul, (node, 1.01))
                    node.replace_all_uses_with(changed, lambda user, changed=changed: user is not changed)
        graph.recompile()
        return graph.forward

    torch._dynamo.register_backend(wrong_gelu, name="variants_wrong_gelu")
    report = golden_report(recorded(), "variants_wrong_gelu")
    assert report.status == "diverged"
    assert "tests/torch/test_variants.py:" in report.first.a.source
    assert "gelu" in report.cause.text


def test_an_exported_program_is_compiled_as_a_whole() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()
    program = nncdbg.load((module, (torch.randn(3, 4),)))
    values = compiled_program_values(nncdbg.Debugger(program, statistics=False), "aot_eager")
    output = program.graph.outputs[0].name
    assert np.array_equal(values[output], np.asarray(nncdbg.run(program)[output]))
    assert nncdbg.diff(program, golden=values, names={name: name for name in values}).equal


def test_random_numbers_of_an_exported_program_are_refused() -> None:
    program = nncdbg.load((torch.nn.Dropout(), (torch.ones(4),)))
    with pytest.raises(UsageError, match="draws other numbers when it is compiled"):
        compiled_program_values(nncdbg.Debugger(program, statistics=False), "aot_eager")


def test_compiled_graphs_take_the_eager_results_of_an_lstm_of_onednn() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN")
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LSTM(3, 4))
    with nncdbg.torch.record(model) as step:
        model(torch.ones(5, 2, 3))[0].square().sum().backward()
    lstm = [value.name for node in nodes_of(step) if "mkldnn_rnn" in node.op for value in node.outputs]
    assert lstm
    values = compiled_program_values(nncdbg.Debugger(step, statistics=False), "aot_eager")
    assert not values.keys() & set(lstm)
    gradients = [name for name in values if name.startswith("0.") and name.endswith(".grad")]
    assert sorted(gradients) == ["0.bias.grad", "0.weight.grad"]
    for name in gradients:
        np.testing.assert_array_equal(values[name], model.get_parameter(name.removesuffix(".grad")).grad)
    assert nncdbg.diff(step, golden=values, names={name: name for name in values}).equal


def nodes_of(step: Any) -> list[Any]:
    return [node for graph in step.program.graphs.values() for node in graph.nodes]


def test_control_flow_is_refused() -> None:
    program = nncdbg.parse(
        "#nncdbg 1\ngraph @main(%c: bool[], %x: f32[2]) -> (%y) {\n  %z = aten.neg.default(%x)\n"
        "  if %c {\n    yield %x\n  } else {\n    yield %z\n  } -> (%y)\n  return %y\n}\n"
    )
    inputs = {"c": np.asarray(True), "x": np.ones(2, np.float32)}
    with pytest.raises(UsageError, match="cannot compile a program with `if`"):
        compiled_program_values(nncdbg.Debugger(program, inputs, backend="torch"), "aot_eager")


def test_a_failing_compiler_is_a_load_error() -> None:
    def failing(graph: Any, _: Any) -> Any:
        raise ValueError("no code")

    torch._dynamo.register_backend(failing, name="variants_failing")
    with pytest.raises(LoadError, match="torch.compile cannot run @forward with variants_failing"):
        compiled_program_values(debugger_of(recorded()), "variants_failing")


def test_autocast_has_the_bits_of_a_step_with_autocast() -> None:
    full, half = recorded(), recorded(autocast=True)
    ours = nncdbg.run(autocast_program(full.program, "bf16"))
    real, without = nncdbg.run(half), nncdbg.run(full)
    for name in ("0.weight.grad", "0.bias.grad", "3.weight.grad", "loss"):
        assert np.array_equal(ours[full.changed[name]], real[half.changed[name]]), name
        assert not np.array_equal(ours[full.changed[name]], without[full.changed[name]]), name


def test_autocast_leaves_the_optimizer_and_functions_in_full_precision() -> None:
    step = recorded(lambda: torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4)))
    program = autocast_program(step.program, "f16")
    assert program.graphs["optimizer"].nodes == step.program.graphs["optimizer"].nodes
    found = {node.op: str(node.outputs[0].type) for node in program.executed(program.graphs["forward"])}
    assert found["aten.native_layer_norm.default"].startswith("f32[")
    assert found["aten.addmm.default"].startswith("f16[")
    assert "aten._to_copy.default" in found


class Attention(torch.nn.Module):  # type: ignore[name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        query, key, value = self.heads(x).view(1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(16, 8))


def test_autocast_keeps_the_log_sums_of_fused_attention_in_full_precision() -> None:
    full, half = recorded(Attention), recorded(Attention, autocast=True)
    program = autocast_program(full.program, "bf16")
    (forward,) = [
        node
        for graph in program.graphs.values()
        for node in graph.nodes
        if node.op == "aten._scaled_dot_product_flash_attention_for_cpu.default"
    ]
    types = [value.type for value in forward.outputs if isinstance(value.type, nncdbg.TensorType)]
    assert [each.dtype for each in types] == ["bf16", "f32"]
    ours, theirs = (nncdbg.run(each) for each in (program, half.program))
    np.testing.assert_array_equal(ours["loss"], theirs["loss"])


def test_autocast_to_another_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match='autocast cannot use "f64"'):
        autocast_program(recorded().program, "f64")
