"""Record whole training steps, run them in the engine, and compare every changed tensor bit by bit."""

import random
from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.frontends.program_folder import open_program_folder  # noqa: E402
from nncdbg.engine.ops.aten.arrays import host_array  # noqa: E402
from nncdbg.engine.ops.aten.internals import VERSION  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402
from nncdbg.torch.named_models import named_models, tensors_by_name  # noqa: E402
from nncdbg.torch.statements import _covers  # noqa: E402
from tests.torch.steps import STEPS  # noqa: E402

UNSEEN = {
    "numpy_interop": "NumPy writes to the memory of a tensor, which no operator shows",
    "numpy_write_into_parameter": "NumPy writes to the memory of a parameter, which no operator shows",
}


MOVES = [
    nncdbg.Debugger.step_over,
    nncdbg.Debugger.step_into,
    nncdbg.Debugger.step_out,
    nncdbg.Debugger.step_back,
    nncdbg.Debugger.step_back_into,
]


def cases(unseen):
    """Return a parameter for each step; `unseen` marks those with writes that no operator shows."""
    return [
        pytest.param(step, id=step.name, marks=[*_skip(step), *(unseen(step) if step.name in UNSEEN else ())])
        for step in STEPS
    ]


def _skip(step):
    return [pytest.mark.skip(step.skip_reason)] if step.skip_reason else []


def fails(step):
    return [pytest.mark.xfail(reason=UNSEEN[step.name], strict=True)]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def record(step):
    """Return a recorded run of a step, the training, and the tensors before, by name."""
    training = step.build()
    before = {name: host_array(tensor).copy() for name, tensor in tensors(training).items()}
    with nncdbg.torch.record(training.models, training.optimizers) as recorded:
        training.run()
    return recorded, training, before


def tensors(training):
    return tensors_by_name(named_models(training.models), training.optimizers)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == np.ascontiguousarray(b).tobytes()


def same_or_nan(a, b):
    """Return whether arrays have the same bits, but for the payload of NaN."""
    floats = a.dtype.kind in "fc"
    return same(a, b) or (floats and a.shape == b.shape and np.array_equal(a, b, equal_nan=True))


@pytest.mark.nightly
@pytest.mark.parametrize("step", cases(fails))
def test_a_recorded_step_runs_to_the_same_bits(step):
    recorded, training, before = record(step)
    program = nncdbg.Program.parse(recorded.program.text())
    assert program == recorded.program

    debugger = nncdbg.Debugger(program, recorded.inputs, backend="torch")
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    for name, tensor in tensors(training).items():
        now = host_array(tensor)
        if name in recorded.changed:
            assert same_or_nan(now, debugger.outputs[recorded.changed[name]]), name
        else:
            assert name in before, f"{name} was made by the step"
            assert same_or_nan(now, before[name]), f"{name} changed"


@pytest.mark.nightly
@pytest.mark.parametrize("step", cases(lambda step: []))
def test_a_saved_step_is_read_back(step, tmp_path):
    recorded, _, _ = record(step)
    recorded.save(tmp_path / "step")
    folder = open_program_folder(tmp_path / "step")
    assert folder.program == recorded.program
    read = {**nncdbg.Debugger(folder.program, folder.inputs, backend="torch").states, **folder.inputs}
    assert read.keys() == recorded.inputs.keys()
    for name, value in recorded.inputs.items():
        assert same_or_nan(host_array(read[name]), host_array(value)), name


CUMPROD = "cumulative_ops"
"""The backward pass of cumprod in torch 2.10 has another formula while any dispatch mode is entered."""


class EmptyMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.nightly
@pytest.mark.parametrize("step", cases(lambda step: []))
def test_recording_changes_no_bit(step):
    expected = step.build()
    with EmptyMode() if step.name == CUMPROD and VERSION < (2, 12) else nullcontext():
        expected.run()
    recorded, training, _ = record(step)
    plain, now = tensors(expected), tensors(training)
    assert plain.keys() == now.keys()
    for name, tensor in plain.items():
        assert same_or_nan(host_array(tensor), host_array(now[name])), name


@pytest.mark.nightly
@pytest.mark.parametrize(
    "step",
    [step for step in STEPS if not step.skip_reason and not step.heavy][::12],
    ids=lambda step: step.name,
)
@pytest.mark.parametrize("limited", [False, True], ids=["all history", "no history"])
def test_200_random_steps_back_and_forth_change_no_bit(step, limited, monkeypatch):
    if step.name in UNSEEN:
        pytest.skip(UNSEEN[step.name])
    recorded, _, _ = record(step)
    plain = nncdbg.Debugger(recorded.program, recorded.inputs, backend="torch")
    assert plain.run().reason == "end"
    if limited:
        monkeypatch.setattr("nncdbg.engine.memory.plain.STEP", 1)
        monkeypatch.setattr("nncdbg.engine.time.checkpoints.COUNTING", 0)
    stepped = nncdbg.Debugger(
        recorded.program, recorded.inputs, backend="torch", history=1 if limited else None
    )
    stepped.run()
    assert (live_bytes(stepped) < live_bytes(plain)) == limited
    draw = random.Random(0)
    for _ in range(200):
        try:
            draw.choice(MOVES)(stepped)
        except UsageError:  # the start or the end of the program
            stepped.restart()
    if not stepped.ended:
        stepped.run()
    assert plain.outputs is not None
    assert stepped.outputs is not None
    for name, value in plain.outputs.items():
        assert same_or_nan(value, stepped.outputs[name]), name


def live_bytes(debugger):
    debugger.timeline.checkpoints.recount()
    return debugger.timeline.checkpoints.live_bytes()


def test_resized_memory_is_not_all_of_memory_with_gaps() -> None:
    f32 = torch.float32
    gaps = (1, 0, torch.Size([8]), (2,), f32, 0)
    assert not _covers((1, 0, torch.Size([8]), (1,), f32, 0), gaps)
    assert _covers((1, 0, torch.Size([15]), (1,), f32, 0), gaps)
