"""The program of a recorded step: names, phases, graphs of modules, hooks, and what cannot be recorded."""

import contextlib
import gc
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.optim import SGD  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg.errors import RunError, UsageError  # noqa: E402
from nncdbg.torch.named_models import runs_only_torch  # noqa: E402
from tests.torch.steps import STEPS  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def two_layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def train(model, optimizer, batch=None):
    optimizer.zero_grad()
    model(torch.ones(2, 3) if batch is None else batch).square().mean().backward()
    optimizer.step()


def ops(step, graph):
    """Return the ops of a graph, without calls of the graphs of modules."""
    return [node.op for node in step.program.graphs[graph].nodes if not node.op.startswith("@")]


@pytest.mark.parametrize("name", ["aten._softmax.default", "aten._softmax", "aten.softmax"])
def test_breakpoint_at_an_operator_needs_no_overload(name):
    x = torch.ones(2, 3)
    with nncdbg.torch.record() as step:
        torch.softmax(x, 1)
    debugger = nncdbg.Debugger(step)
    debugger.break_at(op=name)
    assert (debugger.run().reason, debugger.run().reason) == ("breakpoint", "end")


def test_breakpoint_at_an_operator_that_is_not_there_has_a_hint():
    with nncdbg.torch.record() as step:
        torch.ones(2).sqrt()
    with pytest.raises(UsageError, match=r"no op aten\.sqrrt") as raised:
        nncdbg.Debugger(step).break_at(op="aten.sqrrt")
    assert raised.value.hint == "did you mean aten.sqrt?"


def all_nodes(step):
    return [node for graph in step.program.graphs.values() for node in graph.nodes]


def test_small_step_as_text():
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
    x = torch.ones(1, 2)
    with nncdbg.torch.record(model, optimizer) as step:
        model(x).sum().backward()
        optimizer.step()
    lines = [line.split(" loc(")[0] for line in step.program.text().splitlines()]
    assert lines[2].startswith("state %weight: f32[1,2] = [[")
    assert lines[4:11] == [
        "graph @main(%input: f32[1,2]) -> (%weight.grad: f32[1,2], %loss: f32[]) {",
        "  %loss, %ones_like = @forward(%input) : f32[], f32[]",
        "  %weight.grad = @backward(%ones_like, %input) : f32[1,2]",
        "  @optimizer(%weight.grad)",
        "  return %weight.grad, %loss",
        "}",
        "",
    ]
    assert lines[-5:] == [
        "graph @optimizer(%weight.grad: f32[1,2]) -> () {",
        "  %weight.1 = aten.add_(%weight, %weight.grad, alpha=-0.5) : f32[1,2]",
        "  update %weight = %weight.1",
        "  return",
        "}",
    ]


def test_labels_of_the_first_step_with_moments():
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with nncdbg.torch.record(model, optimizer) as step:
        train(model, optimizer)
    names = {"0.weight", "0.bias", "1.weight", "1.bias"}
    kinds = ("", ".grad", ".exp_avg", ".exp_avg_sq", ".step")
    assert {name + kind for name in names for kind in kinds} | {"loss"} <= step.changed.keys()
    assert names <= step.inputs.keys()
    assert not any("exp_avg" in name for name in step.inputs), "the first step makes them"
    with nncdbg.torch.record(model, optimizer) as step:
        train(model, optimizer)
    assert {f"{name}.exp_avg" for name in names} <= step.inputs.keys()


def test_changed_values_are_those_of_the_model():
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with nncdbg.torch.record(model, optimizer) as step:
        train(model, optimizer)
    debugger = nncdbg.Debugger(step.program, step.inputs, backend="torch")
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    for name, parameter in model.named_parameters():
        assert np.array_equal(debugger.outputs[step.changed[name]], parameter.detach().numpy()), name


def test_tied_weights_are_one_value():
    model = torch.nn.ModuleDict({"one": torch.nn.Linear(3, 3), "two": torch.nn.Linear(3, 3)})
    model["two"].weight = model["one"].weight
    with nncdbg.torch.record(model) as step:
        model["two"](model["one"](torch.ones(1, 3))).sum().backward()
    assert "one.weight" in step.inputs
    assert not any(name.startswith("two.weight") for name in (*step.inputs, *step.changed))
    assert "one.weight.grad" in step.changed


def test_models_by_name_prefix_their_tensors():
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    with nncdbg.torch.record({"maker": one, "judge": two}) as step:
        two(one(torch.ones(1, 3))).sum().backward()
    assert {"maker.weight", "judge.weight", "maker.bias", "judge.bias"} <= step.inputs.keys()
    assert {"maker.weight.grad", "judge.bias.grad"} <= step.changed.keys()


def test_lazy_module_gets_its_names_with_its_sizes():
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 2))
    with nncdbg.torch.record(model) as step:
        model(torch.ones(2, 4)).sum().backward()
    assert {"0.weight", "0.weight.grad", "1.weight.grad"} <= step.changed.keys()


def test_phases_of_accumulation():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.record(model, optimizer) as step:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model(torch.ones(1, 3))
    calls = [node.op for node in step.program.graphs["main"].nodes]
    assert calls == [
        "@forward",
        "@backward",
        "@forward.2",
        "@backward.2",
        "@gradients",
        "@optimizer",
        "@after",
    ]


def test_modules_are_graphs():
    model = two_layers()
    with nncdbg.torch.record(model) as step:
        model(torch.ones(2, 3)).sum().backward()
    called = [node.op for graph in ("forward", "backward") for node in step.program.graphs[graph].nodes]
    assert [op for op in called if op.startswith("@")] == ["@0", "@1", "@1.backward", "@0.backward"]
    assert ops(step, "0") == ["aten.t.default", "aten.addmm.default"]


def test_hooks_are_removed_afterwards():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.record(model, optimizer):
        train(model, optimizer)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert gc.isenabled()


def test_exception_in_the_block_ends_the_program_there():
    model = two_layers()

    def fail():
        with nncdbg.torch.record(model) as step:
            recorded.append(step)
            model(torch.ones(1, 3))
            _ = 1 / 0

    recorded: list[Any] = []
    pytest.raises(ZeroDivisionError, fail)
    (step,) = recorded
    assert [node.op for node in step.program.graphs["main"].nodes] == ["@forward"]
    assert not model._forward_hooks


def test_program_is_not_there_before_the_end():
    with (
        nncdbg.torch.record() as step,
        pytest.raises(UsageError, match="the step is not complete yet"),
    ):
        _ = step.program


def test_nested_recording_is_refused():
    with (
        nncdbg.torch.record(),
        pytest.raises(UsageError, match="inside another recording"),
        nncdbg.torch.record(),
    ):
        pass


def test_wrong_arguments_are_refused():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters())
    with (
        pytest.raises(UsageError, match=r"a model must be a torch\.nn\.Module, not SGD"),
        nncdbg.torch.record(optimizer, model),
    ):
        pass
    with (
        pytest.raises(UsageError, match=r"an optimizer must be a torch\.optim\.Optimizer, not Linear"),
        nncdbg.torch.record(model, model[0]),
    ):
        pass


# -- source lines --------------------------------------------------------------------------------------


def backward_lines(steps):
    """Return how many backward statements there are, and how many have a line or the name of a parameter."""
    count = located = 0
    for step in steps:
        training = step.build()
        with nncdbg.torch.record(training.models, training.optimizers) as recorded:
            training.run()
        for name, graph in recorded.program.graphs.items():
            if not name.startswith("backward") and ".backward" not in name:
                continue
            for node in graph.nodes:
                if node.op.startswith("@"):
                    continue
                count += 1
                found = node.location
                located += found is not None and (
                    bool(found.file) or (found.name or "").endswith("AccumulateGrad")
                )
    return count, located


def test_backward_statements_of_ordinary_steps_have_lines():
    chosen = [step for step in STEPS if not step.skip_reason and not step.heavy][::8]
    count, located = backward_lines(chosen)
    assert count > 300
    assert located >= 0.95 * count


def test_backward_statements_with_writes_to_views_have_lines():
    from tests.torch.steps import writes

    count, located = backward_lines([step for step in writes.STEPS if not step.skip_reason])
    assert count > 50
    assert located >= 0.60 * count


# -- tensors without a value in a program --------------------------------------------------------------


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore")
def test_nested_tensor_is_refused_with_operator_and_line(layout):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with nncdbg.torch.record() as step:
        nested * 2
    with pytest.raises(RunError) as caught:
        step.program  # noqa: B018
    assert "aten.mul.Tensor uses a nested tensor, which cannot be recorded" in caught.value.message
    assert str(caught.value.source).startswith(f"{__file__}:")
    assert "padded tensors" in str(caught.value.hint)


class Shards(torch.Tensor):  # type: ignore[name-defined]
    """A tensor that consists of another one and has no memory of its own, as DTensor does."""

    @staticmethod
    def __new__(cls, part):
        return torch.Tensor._make_wrapper_subclass(cls, part.shape, dtype=part.dtype)

    def __init__(self, part):
        self.part = part

    def __tensor_flatten__(self):
        return ["part"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*(each.part if isinstance(each, cls) else each for each in args), **(kwargs or {})))


def test_operators_on_the_parts_of_a_tensor_are_recorded():
    layer = torch.nn.Linear(3, 1, bias=False)
    layer.weight = torch.nn.Parameter(Shards(torch.ones(1, 3)), requires_grad=False)
    with nncdbg.torch.record(layer) as step:
        result = layer(Shards(torch.full((2, 3), 3.0))) * 2
        layer.weight.mul_(result.part[0, 0])
    text = step.program.text()
    assert "aten.mm(" in text
    assert "state %weight: f32[1,3] = " in text
    assert nncdbg.run(step.program)[step.changed["weight"]].tolist() == [[18.0] * 3]


def test_parts_of_a_tensor_inside_of_a_mode_are_refused_with_operator_and_line():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Passing(), nncdbg.torch.record() as step:
        doubled: Any = Shards(torch.ones(3)) * 2
        assert doubled.part.tolist() == [2.0] * 3
    with pytest.raises(RunError) as caught:
        step.program  # noqa: B018
    assert "aten.mul.Tensor runs on tensors that consist of others" in caught.value.message
    assert str(caught.value.source).startswith(f"{__file__}:")
    assert "without this mode" in str(caught.value.hint)


def runs(step):
    debugger = nncdbg.Debugger(nncdbg.Program.parse(step.program.text()), step.inputs, backend="torch")
    stop = debugger.run()
    return stop.reason == "end"


def test_sparse_gradients_are_indices_and_values():
    model = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    with nncdbg.torch.record(model, optimizer) as step:
        model(torch.tensor([1, 2, 1])).square().sum().backward()
        optimizer.step()
    outputs = nncdbg.run(step.program)
    assert outputs[step.changed["weight.grad.indices"]].tolist() == [[1, 2, 1]]
    expected = model.weight.grad._values().numpy()
    assert outputs[step.changed["weight.grad.values"]].tobytes() == expected.tobytes()
    assert step.verify_determinism().ok


@pytest.mark.filterwarnings("ignore")
def test_sparse_tensor_is_a_recorded_result():
    sparse = torch.eye(3).to_sparse()
    dense = torch.ones(3, 3, requires_grad=True)
    with nncdbg.torch.record() as step:
        torch.sparse.mm(sparse, dense).sum().backward()
    recorded = [node for node in all_nodes(step) if node.op == "torch.recorded"]
    assert {node.attributes["reason"] for node in recorded} == {"its layout is sparse_coo"}
    assert runs(step)


@pytest.mark.filterwarnings("ignore")
def test_quantized_and_complex32_are_recorded_results():
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    half = torch.ones(3, dtype=torch.complex32)
    with nncdbg.torch.record() as step:
        quantized.dequantize() * 2
        product = half * 2
        product.mul_(2)
        torch.view_as_real(product) * 2
    reasons = {node.attributes["reason"] for node in all_nodes(step) if node.op == "torch.recorded"}
    assert reasons == {"its dtype is qint8", "its dtype is complex32"}
    assert any(
        note.startswith("aten.mul.Tensor and 1 other operator have results that cannot be shown")
        for note in step.notes
    )
    assert runs(step)


def test_conjugated_view_of_written_memory_is_derived_again():
    with nncdbg.torch.record() as step:
        z = torch.ones(3, dtype=torch.complex64) * 1j
        conjugate = z.conj()
        z.mul_(2)
        result = conjugate * 1j
    debugger = nncdbg.Debugger(step.program, step.inputs, backend="torch")
    assert debugger.run().reason == "end"
    assert "aten._conj.default" in [node.op for node in all_nodes(step)]
    assert result.tolist() == [2, 2, 2]


def test_own_dispatch_mode_inside_sees_the_same_operators():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with nncdbg.torch.record() as step, Counting() as counting:
        (torch.ones(2) + 1).sum()
    assert counting.seen == 3
    assert ops(step, "forward") == ["aten.ones.default", "aten.add.Tensor", "aten.sum.default"]


def test_lines_are_those_of_the_operators_not_of_an_own_dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def places(*modes):
        with nncdbg.torch.record() as step, contextlib.ExitStack() as entered:
            for mode in modes:
                entered.enter_context(mode)
            x = torch.ones(2, requires_grad=True)
            (x * 2).sum().backward()
        return [(node.op, str(node.location)) for node in all_nodes(step) if not node.op.startswith("@")]

    assert places(Passing()) == places()


def test_a_compiled_model_has_the_names_of_the_model():
    model = torch.nn.Sequential(two_layers(), torch.nn.ReLU())
    wrapped = torch.nn.Sequential(torch.compile(model), torch.nn.Tanh())
    for given, names in (
        (torch.compile(model), {"0.0.weight", "0.0.bias", "input"}),
        (wrapped, {"0.0.0.weight", "0.0.0.bias", "input"}),
    ):
        # The argument is an input with a name only if it existed before the block.
        argument = torch.ones(2, 3)
        with nncdbg.torch.record(given) as step:
            given(argument).square().mean().backward()
        assert names <= step.inputs.keys()
        assert not any("_orig_mod" in name for name in (*step.inputs, *step.program.graphs))


def test_a_compiled_model_runs_eagerly_with_one_note():
    model = torch.nn.Sequential(two_layers(), torch.nn.ReLU())
    compiled = torch.compile(model)

    @torch.compile
    def loss_of(result):
        return result.square().mean()

    with nncdbg.torch.record(model) as step:
        loss_of(compiled(torch.ones(2, 3))).backward()
        loss_of(compiled(torch.ones(2, 3))).backward()
    assert runs(step)
    (note,) = step.notes
    assert note == "torch.compile compiles nothing while a step is recorded: the step ran eagerly"
    assert step.program.notes == (note,)
    with nncdbg.torch.record(model, torch.optim.SGD(model.parameters())) as plain:
        train(model, torch.optim.SGD(model.parameters()))
    assert plain.notes == ()


FIRST_COMPILATION = """
import sys
import torch
import nncdbg.torch

graphs = []

def backend(graph, inputs):
    graphs.append(graph)
    return graph

def double(x):
    return x * 2

x = torch.ones(2, requires_grad=True)
finders = [*sys.meta_path]
with nncdbg.torch.record():
    (x + 1).sum().backward()
assert not any(name.startswith("torch._dynamo") for name in sys.modules)
assert sys.meta_path == finders
with nncdbg.torch.record() as step:
    compiled = torch.compile(double, backend=backend)
    compiled(x).sum().backward()
assert sys.meta_path == finders
assert not graphs
print(*step.notes)
compiled(x)
assert len(graphs) == 1
"""


def test_compiler_is_imported_by_the_block_only_and_compiles_after_it():
    done = subprocess.run(
        [sys.executable, "-c", FIRST_COMPILATION], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.compile compiles nothing while a step is recorded: the step ran eagerly\n"


def test_ctrl_c_in_a_backward_pass_ends_the_program_there():
    class Interrupted(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            signal.raise_signal(signal.SIGINT)
            return gradient * 1

    model = torch.nn.Linear(3, 1)
    with pytest.raises(KeyboardInterrupt), nncdbg.torch.record(model) as step:
        Interrupted.apply(model(torch.ones(2, 3))).mean().backward()
    assert "backward" in step.program.graphs
    assert runs(step)
    # Nothing is recorded any more, and hooks are gone.
    count = len(all_nodes(step))
    model(torch.ones(2, 3)).mean().backward()
    assert len(all_nodes(step)) == count


def test_anomaly_mode_can_be_on():
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=False), nncdbg.torch.record() as step:
        (x * 2).sum().backward()
    assert runs(step)


def test_recording_that_begins_inside_of_a_module_changes_nothing():
    class Recorded(nn.Linear):
        def forward(self, x):
            self.step = self.recording.enter_context(nncdbg.torch.record(self))
            return super().forward(x)

    model = Recorded(3, 2)
    model.register_forward_hook(lambda *_: None)
    with contextlib.ExitStack() as model.recording:
        model(torch.ones(1, 3)).sum().backward()
    assert runs(model.step)


@pytest.mark.filterwarnings("error:.*always_call")
def test_module_that_a_hook_refuses_is_not_left():
    def refuse(module, inputs):
        raise KeyError

    model = two_layers()
    with nncdbg.torch.record(model) as step:
        hook = model[1].register_forward_pre_hook(refuse, prepend=True)
        with pytest.raises(KeyError):
            model(torch.ones(2, 3))
        hook.remove()
        model(torch.ones(2, 3)).sum().backward()
    assert {"0", "1", "1.backward"} <= step.program.graphs.keys()


def test_operator_that_fails_after_a_part_of_its_writes() -> None:
    model, counts = nn.Module(), torch.ones(2, dtype=torch.int64)
    model.register_buffer("total", torch.ones(2))
    with nncdbg.torch.record(model) as step:
        model.total += 1
        with contextlib.suppress(RuntimeError):
            torch._foreach_mul_([model.total, counts], 0.5)
        model.total += 3
    debugger = nncdbg.Debugger(step)
    debugger.run()
    assert model.total.tolist() == [4.0, 4.0]
    assert debugger.outputs is not None
    assert debugger.outputs[step.changed["total"]].tolist() == [4.0, 4.0]
    assert "it raised RuntimeError and may have written a part" in str(step.program)


def test_double_backward_has_the_line_of_the_forward_operator():
    x = torch.linspace(0.5, 1, 4, requires_grad=True)
    with nncdbg.torch.record() as step:
        y = x.sin()
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        gradient.square().sum().backward()
    line = next(node.location.line for node in all_nodes(step) if node.op == "aten.sin.default")
    negatives = [node for node in all_nodes(step) if node.op == "aten.neg.default"]
    assert [node.location.line for node in negatives] == [line]


class Halving(SGD):
    """An optimizer of the user, with an operator of its own."""

    def step(self, closure=None):
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.grad.mul_(0.5)
        return super().step(closure)


def plain_update(model, optimizer):
    train(model, optimizer)


def update_with_closure(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def update_with_hook(model, optimizer):
    def shrink(changed, args, kwargs):
        for parameter in changed.param_groups[0]["params"]:
            parameter.grad.mul_(0.5)

    hook = optimizer.register_step_pre_hook(shrink)
    train(model, optimizer)
    hook.remove()


def update_after_a_failed_one(model, optimizer):
    group = optimizer.param_groups[0]
    group["lr"], rate = "wrong", group["lr"]
    with pytest.raises((TypeError, RuntimeError)):
        train(model, optimizer)
    group["lr"] = rate
    other = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    other.step()
    train(model, optimizer)


@pytest.mark.parametrize(
    "update", [plain_update, update_with_closure, update_with_hook, update_after_a_failed_one]
)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, Halving])
def test_lines_of_an_update_are_those_found_for_each_operator(kind, update, monkeypatch):
    def located():
        model = two_layers()
        optimizer = kind(model.parameters(), lr=0.1)
        train(model, optimizer)
        with nncdbg.torch.record(model, optimizer) as step:
            update(model, optimizer)
        return str(step.program)

    found = []
    for shared in (runs_only_torch, lambda optimizer: False):
        monkeypatch.setattr("nncdbg.torch.step_recording.runs_only_torch", shared)
        found.append(located())
    assert found[0] == found[1]


def test_lines_of_an_update_of_torch_are_found_once(monkeypatch):
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    searched: list[Any] = []
    monkeypatch.setattr("nncdbg.torch.recording.user_lines", searched.append)
    with nncdbg.torch.record(model, optimizer) as step:
        optimizer.step()
    assert len(ops(step, "optimizer")) > 20
    assert not searched


def test_memory_that_is_allocated_again_is_no_nan():
    gathered, source = torch.full((4,), torch.nan), torch.arange(4.0)
    gathered.untyped_storage().resize_(0)
    with nncdbg.torch.record() as step:
        gathered.untyped_storage().resize_(16)
        gathered.copy_(source)
        gathered.mul(2)
    assert all(np.isfinite(each).all() for each in step.inputs.values())
    assert runs(step)
