"""The library of the guard does what the functions of Python do in its place."""

import gc
import os
import sys
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils import _python_dispatch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.aten.cpp_libraries import SWITCH  # noqa: E402
from nncdbg.engine.ops.aten.internals import (  # noqa: E402
    MODE_FLAGS,
    DispatchMode,
    dispatch_modes,
    innermost_mode,
    key_of,
    mode_flags,
)
from nncdbg.torch import guard, guard_kernels  # noqa: E402
from nncdbg.torch.source_lines import (  # noqa: E402
    call_again,
    kind_of_frame,
    lines_of,
    user_frame,
    user_lines,
    user_places,
)
from nncdbg.torch.step_state import BufferState  # noqa: E402
from nncdbg.torch.tape import new_own_work, new_pause  # noqa: E402
from nncdbg.torch.updates import _writes_of  # noqa: E402
from tests.torch.steps.training import same_bits  # noqa: E402

if os.environ.get(SWITCH) == "off":
    pytest.skip("there is no C++ compiler with the headers of Python", allow_module_level=True)


@pytest.fixture(scope="module")
def library():
    found = guard_kernels.LIBRARY.module()
    assert found is not None
    return found


@pytest.fixture
def used(library, monkeypatch):
    monkeypatch.setattr(guard_kernels, "used", library)
    return library


# -- pauses of a mode -------------------------------------------------------------------------


class Mode(DispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Other(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def states_in(pause, mode, blocks):
    """Yield what can be seen before and in nested blocks: pauses, and modes of the user."""
    innermost = innermost_mode() is mode
    assert pause.is_innermost() == innermost
    yield pause.depth, dispatch_modes(), innermost, [mode_flags[each] for each in MODE_FLAGS]
    for kind, inner in blocks:
        if kind == "pause":
            pause.begin()
            yield from states_in(pause, mode, inner)
            pause.end()
        else:
            with Other():
                yield from states_in(pause, mode, inner)
        yield from states_in(pause, mode, [])


BLOCKS: Any = st.recursive(
    st.just([]), lambda inner: st.lists(st.tuples(st.sampled_from(["pause", "user"]), inner), max_size=3)
)


@given(blocks=BLOCKS)
def test_pauses_are_those_of_python(blocks):
    found = []
    for library in (None, guard_kernels.LIBRARY.module()):
        mode = Mode()
        pause = new_pause(mode, library, enters=True)
        pause.end()  # Not begun yet: nothing is entered.
        seen = [*states_in(pause, mode, [])]
        for _ in range(2):
            pause.start()
            seen += states_in(pause, mode, blocks)
            pause.end()  # One too many.
            seen += states_in(pause, mode, [])
            pause.stop()
            seen += states_in(pause, mode, [])
        found.append(seen)
    assert found[0] == found[1]
    assert found[1][-1] == (1, 0, False, [False] * 3)
    assert (0, 1, True, [True] * 3) in found[1]


def test_a_mode_that_is_not_to_be_entered_is_only_counted(library):
    pause = new_pause(Mode(), library, enters=False)
    pause.start()
    assert (pause.depth, dispatch_modes()) == (0, 0)
    pause.begin()
    assert pause.depth == 1
    assert type(pause).__module__ == "guard_kernels"


def test_a_mode_with_its_pauses_is_collected(library):
    class Holder(Mode):
        def __init__(self):
            super().__init__()
            self.pause = new_pause(self, library, enters=True)

    holder = Holder()
    holder.pause.start()
    holder.pause.stop()
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_a_missing_flag_is_an_error(library):
    pause = library.Pause(Mode(), {}, *MODE_FLAGS, print, print, True)
    with pytest.raises(KeyError, match=MODE_FLAGS[0]):
        pause.start()
    assert dispatch_modes() == 0
    assert not any(vars(_python_dispatch)[each] for each in MODE_FLAGS)


class Watch:
    def __init__(self):
        self.active = True


@pytest.mark.parametrize("kept", [False, True], ids=["Python", "library"])
def test_a_watch_is_inactive_in_nested_blocks(library, kept):
    watch: Any = Watch()
    work = new_own_work(library if kept else None)
    with work:
        pass
    work.watch = watch
    with work:
        assert (work.depth, watch.active) == (1, False)
        with work:
            assert (work.depth, watch.active) == (2, False)
        assert (work.depth, watch.active) == (1, False)
    assert (work.depth, watch.active) == (0, True)
    with pytest.raises(ZeroDivisionError), work:
        raise ZeroDivisionError
    assert (work.depth, watch.active) == (0, True)
    watch.active = False
    with work:
        pass
    assert not watch.active


# -- lines ------------------------------------------------------------------------------------


def deeper(depth, most):
    if depth:
        return deeper(depth - 1, most)
    frame = sys._getframe()
    return user_lines(frame, most)


class Lines:
    """Returns the lines that a call in a module finds."""

    def __init__(self):
        self.found = None

    def __call__(self, module, args):
        self.found = user_lines(sys._getframe(), 3)


def in_a_module():
    lines, module = Lines(), nn.Identity()
    module.register_forward_pre_hook(lines)
    module(torch.ones(1))
    return lines.found


CALLS = {
    "one line": lambda: deeper(0, 1),
    "no line": lambda: deeper(2, 0),
    "several lines": lambda: deeper(5, 4),
    "more than there are": lambda: deeper(2, 1000),
    "in a module": in_a_module,
    "in a second run": lambda: call_again(deeper, (1, 4), {}, (("a.py", 3), ("b.py", 4))),
    "no frame": lambda: user_lines(None),
}


@pytest.mark.parametrize("name", CALLS)
def test_lines_are_those_of_python(library, name, monkeypatch):
    found = []
    for used in (None, library):
        monkeypatch.setattr(guard_kernels, "used", used)
        found.append(CALLS[name]())
    assert found[0] == found[1]
    assert type(found[1]) is tuple


def test_frames_that_only_python_reads_give_no_lines(library):
    def inside():
        return library.user_lines(sys._getframe(1), 4, kind_of_frame)

    assert call_again(inside, (), {}, (("a.py", 3),)) is None
    with pytest.raises(TypeError, match="user_lines takes a frame"):
        library.user_lines(3, 4, kind_of_frame)
    with pytest.raises(TypeError):
        library.user_lines(sys._getframe(), "four", kind_of_frame)


FRAMES = {
    "user_places": lambda: user_places(sys._getframe()),
    "user_places in a second run": lambda: call_again(
        lambda: user_places(sys._getframe()), (), {}, (("a.py", 3), ("b.py", 4))
    ),
    "user_frame": lambda: user_frame(sys._getframe()),
    "no frame of the user": lambda: user_frame(None),
    "user_frame in a second run": lambda: call_again(user_frame, (sys._getframe(1),), {}, (("a.py", 3),)),
    "in a second run alone": lambda: call_again(lambda: _frame_of_torch(), (), {}, (("a.py", 3),)),
}


def _frame_of_torch():
    return user_frame(sys._getframe(1).f_back)


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_those_of_python(library, name, monkeypatch):
    found = []
    for used in (None, library):
        monkeypatch.setattr(guard_kernels, "used", used)
        found.append(FRAMES[name]())
    if isinstance(found[0], tuple):
        # The instruction of the innermost frame is that of the call.
        assert [lines_of((each,)) for each in found[0]] == [lines_of((each,)) for each in found[1]]
    else:
        assert found[0] is None or found[0].f_code is found[1].f_code
        assert (found[0] is None) is (found[1] is None)


def test_places_have_the_lines_of_their_frames(library, monkeypatch):
    for used in (None, library):
        monkeypatch.setattr(guard_kernels, "used", used)
        frame = sys._getframe()
        assert lines_of(user_places(frame))[:4] == user_lines(frame)


# -- buffers ----------------------------------------------------------------------------------


def normalized():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3))


CHANGES = {
    "forward": lambda module: module(torch.randn(4, 3)),
    "another buffer": lambda module: setattr(module[0], "running_mean", torch.full((3,), 2.0)),
    "other memory": lambda module: setattr(module[0].running_mean, "data", torch.full((3,), 3.0)),
    "one more": lambda module: module[1].register_buffer("more", torch.ones(2)),
    "one less": lambda module: delattr(module[2], "running_var"),
    "none": lambda module: setattr(module[2], "running_var", None),
    "written by numpy": lambda module: module[0].running_mean.numpy().fill(4),
}


@pytest.mark.parametrize("change", CHANGES)
def test_buffers_are_copied_as_they_are_now(used, change):
    module = normalized()
    state = BufferState(module)
    for _ in range(3):
        state.update()
    CHANGES[change](module)
    state.update()
    expected = {name: each.clone() for name, each in module.named_buffers()}
    for each in module.buffers():
        each.fill_(9)
    state.restore()
    assert all(same_bits(each, expected[name]) for name, each in module.named_buffers())


def test_the_library_reads_buffers_that_are_the_same(used):
    module = normalized()
    state = BufferState(module)
    state.update()
    memory = state._memory
    assert type(memory).__name__ == "BufferMemory"
    assert memory.content() == b"".join(each.numpy().tobytes() for each in module.buffers())
    module[0].running_mean = torch.ones(3)
    assert memory.content() is None


# -- outputs and gradients --------------------------------------------------------------------


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2


def watched(model, x, tier="hooks", **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with nncdbg.torch.watch(model, optimizer, tier=tier, on_nan="report", **options) as report:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return report


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.bfloat16], ids=str)
def test_each_dtype_is_checked(dtype):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=dtype))
            self.doubled = Doubled()

        def forward(self, x):
            return self.doubled(self.weight * x).abs().float()

    report = watched(Root(), torch.tensor([1.0, float("nan"), 3.0]).to(dtype))
    assert [each.path for each in report.bad_steps[0].modules] == ["doubled"]


def test_a_graph_that_outlives_its_watch_is_freed():
    model = nn.Sequential(nn.Linear(3, 3), Doubled())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with nncdbg.torch.watch(model, optimizer, tier="hooks"):
        loss = model(torch.ones(2, 3)).sum()
    gone = weakref.ref(model[1])
    loss.backward()  # The watch has ended: gradients are not checked.
    del model, optimizer, loss
    gc.collect()
    assert gone() is None


def test_an_exception_of_the_report_of_a_gradient_is_raised(library, monkeypatch):
    class Failing:
        active = True
        _last_finite = None

        def _check_gradient_at(self, module, code, position, gradient):
            raise ZeroDivisionError(code.co_name)

    check = library.OutputCheck(Failing(), print, {}, type(None), kind_of_frame)
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    assert check(nn.Identity(), (x,), {}, y) is None
    with pytest.raises(ZeroDivisionError, match="test_an_exception_of_the_report"):
        (y * float("nan")).sum().backward()


WRITES = {
    "none": lambda tensor: None,
    "numpy": lambda tensor: tensor.detach().numpy().fill(float("nan")),
    "torch": lambda tensor: tensor.detach().fill_(float("nan")),
}
"""Writes to an output that was found finite; torch does not count that of NumPy."""


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("inplace", [False, True])
def test_activation_of_a_checked_output_is_read_after_a_counted_write(library, inplace, write):
    def otherwise(module, args, kwargs, result):
        read.append(type(module).__name__)

    read: list[str] = []
    kept = {nn.ReLU: "keeps an element or makes it 0"}
    check = library.OutputCheck(Watch(), otherwise, kept, type(None), kind_of_frame)
    x = torch.ones(3)
    check(nn.Identity(), (torch.ones(3),), {}, x)
    WRITES[write](x)
    activation = nn.ReLU(inplace)
    y = activation(x)
    check(activation, (x,), {}, y)
    check(nn.Sequential(), (x,), {}, y)  # Returns it again.
    assert read == (["ReLU"] if write == "torch" else [])
    check(nn.Tanh(), (y,), {}, y * float("nan"))  # In no list: its output is read.
    assert read[-1:] == ["Tanh"]


USUAL = {
    "contiguous": lambda: torch.ones(3, 4),
    "number": lambda: torch.tensor(2),
    "empty": lambda: torch.ones(0, 3),
    "view": lambda: torch.arange(24.0).reshape(4, 6)[1:, ::2].T,
    "expanded": lambda: torch.ones(1).expand(300, 4),
    "parameter": lambda: nn.Parameter(torch.ones(3)),
    "negated": lambda: torch.ones(2, dtype=torch.float64)._neg_view(),
    "bf16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "f16": lambda: torch.ones(2, dtype=torch.half),
    "i32": lambda: torch.ones(2, dtype=torch.int32),
    "bool": lambda: torch.ones(2, dtype=torch.bool),
}


class Subclass(torch.Tensor):  # type: ignore[name-defined]
    pass


UNUSUAL = {
    "no tensor": lambda: 3.0,
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.ones(2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "zeros without memory": lambda: torch._efficientzerotensor((2, 3)),
    "subclass": lambda: torch.ones(2).as_subclass(Subclass),
    "lazy": lambda: nn.LazyLinear(2).weight,
}


@pytest.mark.parametrize("name", USUAL)
def test_memory_is_that_of_python(library, name):
    tensor = USUAL[name]()
    found = library.usual_key(tensor)
    assert found == key_of(tensor)
    assert {found: 1}[key_of(tensor)] == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", UNUSUAL)
def test_memory_of_unusual_tensors_is_left_to_python(library, name):
    assert library.usual_key(UNUSUAL[name]()) is None


def test_memory_inside_of_a_transformation_is_left_to_python(library):
    found = []

    def inner(x):
        found.append(library.usual_key(x))
        return x.sum()

    torch.func.vmap(inner)(torch.ones(2, 3))
    torch.func.grad(inner)(torch.ones(3))
    assert found == [None, None]


def test_gradients_are_those_of_the_parameters(library):
    model = nn.Linear(3, 2)
    parameters = [*model.parameters()]
    assert library.gradients(parameters) == [None, None]
    model.weight.sum().backward()
    found = library.gradients(parameters)
    assert found[0] is model.weight.grad
    assert found[1] is None
    assert library.gradients([]) == []
    assert library.gradients([model.weight * 2]) is None
    assert library.gradients([model.weight, "text"]) is None


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_writes_to_an_optimizer_are_those_of_python(library, kind, monkeypatch):
    model = nn.Linear(3, 2)
    optimizer = kind([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.1}])
    for change in (
        lambda: None,
        model(torch.ones(1, 3)).sum().backward,
        optimizer.step,
        model.bias.detach().zero_,
    ):
        change()
        monkeypatch.setattr(guard_kernels, "used", library)
        found = _writes_of(optimizer)
        monkeypatch.setattr(guard_kernels, "used", None)
        assert isinstance(found, bytes)
        assert [*memoryview(found).cast("Q")] == _writes_of(optimizer)


@pytest.mark.parametrize("entry", [torch.ones(2).as_subclass(Subclass), 3.0, "text"], ids=type)
def test_writes_that_are_not_counted_are_left_to_python(library, entry):
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter])
    optimizer.state[parameter]["exp_avg"] = entry
    assert library.writes(optimizer.param_groups, optimizer.state) is None
    assert _writes_of(optimizer) == []


def test_writes_to_inference_tensors_are_left_to_python(library):
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter])
    with torch.inference_mode():
        optimizer.state[parameter]["exp_avg"] = torch.ones(2)
    assert library.writes(optimizer.param_groups, optimizer.state) is None
    assert _writes_of(optimizer) == []


def test_wrong_arguments_are_errors(library):
    check = library.OutputCheck(Watch(), print, {}, type(None), kind_of_frame)
    with pytest.raises(TypeError, match="takes a module"):
        check(nn.Identity())
    with pytest.raises(TypeError):
        library.OutputCheck(Watch())
    with pytest.raises(TypeError):
        library.moderate([torch.ones(1)])
    with pytest.raises(TypeError, match="groups and the state"):
        library.writes([], 3)
    assert library.squares_finite("text") is None
    assert library.squares_finite([1.0]) is None


def test_a_watch_uses_the_library_while_it_is_entered(library):
    model = nn.Linear(3, 1)
    with nncdbg.torch.watch(model, torch.optim.SGD(model.parameters(), lr=0.01)):
        assert guard_kernels.used is library
    assert guard_kernels.used is None


def test_a_long_training_compiles_the_library_for_the_next_one(monkeypatch):
    begun: list[int] = []
    updates: list[int] = []
    monkeypatch.setattr(guard, "_MANY_UPDATES", 3)
    monkeypatch.setattr(guard_kernels.LIBRARY, "compile_later", lambda: begun.append(len(updates)))
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with nncdbg.torch.watch(model, optimizer):
        for _ in range(6):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            updates.append(1)
    assert begun == [2]
