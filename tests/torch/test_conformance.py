"""torch's samples of operators, modules and optimizers replay to the same bits: record, print, parse, run.

They are in the package torch: `op_db` (operators, forward and backward), `module_db` and `optim_db`.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="torch's samples need the package expecttest")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402
from torch.testing._internal.common_optimizers import (  # noqa: E402
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)

import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.aten.arrays import host_array  # noqa: E402
from nncdbg.torch.program import program_of  # noqa: E402
from nncdbg.torch.recorded_step import named_tensors  # noqa: E402
from nncdbg.torch.recording import Recorder  # noqa: E402

pytestmark = pytest.mark.conformance_torch

_SPARSE = "a sparse tensor is an opaque result, with no array to compare"

EXEMPT = {
    "chalf": (range(5), "complex32 has no NumPy dtype: an opaque result, with no array to compare"),
    "sparse.mm_reduce": (range(16), _SPARSE),
    "sparse.sampled_addmm": (range(8), _SPARSE),
    "to_sparse": (range(2), _SPARSE),
}
"""Name of an operator to the samples that do not replay, and the reason."""

ONLY_ON_DEVICES = {
    "jiterator_2inputs_2outputs",
    "jiterator_4inputs_with_extra_args",
    "jiterator_binary",
    "jiterator_binary_return_by_ref",
    "jiterator_unary",
}
"""Operators that torch compiles for GPUs; they raise on the CPU."""

UNDEFINED = {
    "empty": "memory with any content",
    "empty_like": "memory with any content",
    "empty_permuted": "memory with any content",
    "empty_strided": "memory with any content",
    "new_empty": "memory with any content",
    "new_empty_strided": "memory with any content",
    "linalg.lstsq": "torch does not write the solution of an empty matrix",
}
"""Operators with results that differ from call to call in torch too; they must run, and gradients agree."""

OPERATORS = [info for info in op_db if info.supports_dtype(torch.float32, "cpu")]
OPERATORS = [info for info in OPERATORS if info.name not in ONLY_ON_DEVICES]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def leaves(value):
    return [each for each in torch.utils._pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def backward(outputs):
    """Run a backward pass from the sum of all results."""
    sums = [each.abs() if each.is_complex() else each for each in outputs if each.requires_grad]
    if sums:
        sum(each.double().sum() for each in sums).backward()


def record(function, given):
    """Return the recorded program of `function`, forward and backward, and what it computed by name."""
    torch.manual_seed(0)
    for each in leaves(given):  # samples share tensors
        each.grad = None
    recorder = Recorder()
    try:
        with recorder:
            outputs = [each.clone() for each in leaves(function())]
            backward(outputs)
        computed = {f"result{index}": each.detach() for index, each in enumerate(outputs)}
        gradients = [each.grad for each in leaves(given) if each.is_leaf and each.grad is not None]
        computed |= {f"gradient{index}": each for index, each in enumerate(gradients)}
        for name, tensor in computed.items():
            recorder.label(tensor, name)
        recorder.copy_inputs()
        recorded = program_of(recorder.events, recorder.inputs, recorder.labels, {})
    finally:
        recorder.release()
    return recorded, computed


def replayed(recorded):
    """Print, parse and run a program; return its results by name."""
    program = nncdbg.Program.parse(recorded.program.text())
    assert program == recorded.program
    debugger = nncdbg.Debugger(program, recorded.inputs, backend="torch", statistics=False)
    stop = debugger.run()
    assert stop.reason == "end", stop.error
    return debugger.outputs


def differences(computed, changed, outputs):
    """Return the names of tensors that the program does not compute, or computes to other bits."""
    found = []
    for name, tensor in computed.items():
        if name not in changed or not same(host_array(tensor), outputs[changed[name]]):
            found.append(name)
    return found


def same(a, b):
    """Return whether arrays have the same bits, but for the payload of NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "c":
        a, b = np.atleast_1d(a).view(a.real.dtype), np.atleast_1d(np.ascontiguousarray(b)).view(a.real.dtype)
    if a.dtype.kind == "f":
        both = np.isnan(a) & np.isnan(b)
        a, b = np.where(both, a.dtype.type(0), a), np.where(both, a.dtype.type(0), b)
    return a.tobytes() == np.ascontiguousarray(b).tobytes()


def samples(info):
    """Return torch's samples of an operator."""
    torch.manual_seed(0)
    np.random.seed(0)
    return list(info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd))


def name_of(info):
    return "_".join(part for part in (info.name, info.variant_test_name) if part)


def failure(info, sample):
    """Return why a sample does not replay to the same bits, empty if it does."""
    try:
        recorded, computed = record(
            lambda: info(sample.input, *sample.args, **sample.kwargs),
            (sample.input, sample.args, sample.kwargs),
        )
        if name_of(info) in UNDEFINED:
            computed = {name: each for name, each in computed.items() if not name.startswith("result")}
        return ", ".join(differences(computed, recorded.changed, replayed(recorded)))
    except (AssertionError, RuntimeError, TypeError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("info", OPERATORS, ids=name_of)
def test_operator_replays_to_the_same_bits(info):
    failures = {index: failure(info, sample) for index, sample in enumerate(samples(info))}
    failures = {index: reason for index, reason in failures.items() if reason}
    exempt, _ = EXEMPT.get(name_of(info), ((), ""))
    assert [reason for index, reason in failures.items() if index not in exempt] == []
    assert failures.keys() == set(exempt), "these samples replay now: remove them from the table"


def test_at_least_995_of_1000_samples_replay():
    exempt = sum(len(indices) for indices, _ in EXEMPT.values())
    count = sum(len(samples(info)) for info in OPERATORS)
    assert count > 14_000
    assert exempt <= 0.005 * count
    assert EXEMPT.keys() | UNDEFINED.keys() <= {name_of(info) for info in OPERATORS}


# -- modules -------------------------------------------------------------------------------------------


def module_inputs(info, training):
    torch.manual_seed(0)
    return info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )


REFUSED_BY_TORCH = {"nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"}
"""Modules with samples of f64 random numbers, which torch refuses together with f32."""

MODULES = [info for info in module_db if torch.float32 in info.dtypes and info.name not in REFUSED_BY_TORCH]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name)
def test_module_replays_to_the_same_bits(info, training):
    failures = {}
    for index, given in enumerate(module_inputs(info, training)):
        torch.manual_seed(0)
        module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
        module.train(training)
        if given.forward_input is None:
            continue
        try:
            with nncdbg.torch.record(module) as step:
                outputs = leaves(module(*given.forward_input.args, **given.forward_input.kwargs))
                backward(outputs)
            tensors = dict(named_tensors({"": module}, []))
            changed = step.changed
            outputs = replayed(step)
            computed = {name: each for name, each in tensors.items() if name in changed}
            missing = [name for name in tensors if name.endswith(".grad") and name not in changed]
            found = missing + differences(computed, changed, outputs)
        except (AssertionError, RuntimeError, TypeError, ValueError, KeyError) as error:
            found = [f"{type(error).__name__}: {error}"]
        if found:
            failures[index] = found
    assert failures == {}


# -- optimizers ----------------------------------------------------------------------------------------


def optimizer_cases():
    for info in optim_db:
        if info.only_supports_sparse_grads:
            continue
        # A differentiable step writes to parameters that are no leaves, as a meta-optimizer has them.
        for given in _get_optim_inputs_including_global_cliquey_kwargs(
            "cpu", torch.float32, info, skip=("differentiable",)
        ):
            yield pytest.param(info, given.kwargs, id=f"{info.optim_cls.__name__}-{given.desc}")


@pytest.mark.parametrize(("info", "options"), optimizer_cases())
def test_two_steps_of_an_optimizer_replay_to_the_same_bits(info, options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    parameters = model.parameters()
    if info.optim_cls.__name__ == "Muon":
        parameters = [each for each in parameters if each.dim() == 2]
    optimizer = info.optim_cls(parameters, **options)
    batch = torch.randn(6, 5)

    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    with nncdbg.torch.record(model, optimizer) as step:
        for _ in range(2):
            if info.step_requires_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    tensors = dict(named_tensors({"": model}, [optimizer]))
    changed = step.changed
    outputs = replayed(step)
    assert (
        differences({name: each for name, each in tensors.items() if name in changed}, changed, outputs) == []
    )
    trained = {name for name, each in model.named_parameters() if each.grad is not None}
    if info.optim_cls.__name__ != "Muon":
        assert trained <= changed.keys()
