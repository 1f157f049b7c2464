"""Updates that can make no NaN and no Inf run without a check of their operators; all others are checked."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.optim import SGD, Adam, AdamW, RMSprop  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg import stats  # noqa: E402
from nncdbg.engine.ops.aten.internals import DispatchMode  # noqa: E402
from nncdbg.torch.finiteness import are_moderate  # noqa: E402
from nncdbg.torch.guard import Guard  # noqa: E402
from nncdbg.torch.live.mode import LiveMode  # noqa: E402
from nncdbg.torch.live.training import LiveTraining  # noqa: E402
from nncdbg.torch.updates import SafeUpdates, UpdateCheck  # noqa: E402

pytestmark = pytest.mark.usefixtures("either_kernels")


@pytest.fixture(autouse=True)
def _compiled_check():
    stats.prepare(wait=True)


LARGEST = 2.0**20 * (1 - 2.0**-23)
"""The largest float32 that is moderate."""


def parameter(*numbers, dtype=torch.float32):
    made = torch.nn.Parameter(torch.tensor(numbers or (1.0, 2.0), dtype=dtype))
    made.grad = torch.full_like(made, 0.5)
    return made


def is_safe(optimizer, safe=None):
    safe = SafeUpdates() if safe is None else safe
    gradients = [each.grad for group in optimizer.param_groups for each in group["params"]]
    return safe.have_moderate(optimizer, gradients) and safe.is_safe(optimizer, gradients)


class OwnAdam(Adam):
    pass


def with_own_hook(optimizer):
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


def with_moments(name, value):
    one = parameter()
    optimizer = Adam([one])
    optimizer.step()
    optimizer.state[one][name].fill_(value)
    return optimizer


SAFE = {
    "adam": lambda: Adam([parameter()]),
    "adam, amsgrad": lambda: Adam([parameter()], amsgrad=True, maximize=True),
    "adam, foreach": lambda: Adam([parameter()], foreach=True),
    "adamw, fused": lambda: AdamW([parameter()], fused=True),
    "adamw, two groups": lambda: AdamW([{"params": [parameter()], "lr": 0.1}, {"params": [parameter()]}]),
    "adam after an update": lambda: with_moments("exp_avg", 1.0),
    "sgd": lambda: SGD([parameter()], lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True),
    "float64": lambda: Adam([parameter(dtype=torch.float64)]),
}

CHECKED = {
    "no eps": lambda: Adam([parameter()], eps=0),
    "learning rate of Inf": lambda: SGD([parameter()], lr=float("inf")),
    "learning rate of NaN": lambda: SGD([parameter()], lr=float("nan")),
    "learning rate as a tensor": lambda: Adam([parameter()], lr=torch.tensor(0.1)),
    "large learning rate": lambda: SGD([parameter()], lr=1.5),
    "large weight decay": lambda: SGD([parameter()], lr=1, weight_decay=1.5),
    "growing parameters": lambda: AdamW([parameter()], lr=5, weight_decay=1),
    "weight decay in the gradient": lambda: Adam([parameter()], weight_decay=0.1),
    "growing momentum": lambda: SGD([parameter()], lr=0.1, momentum=1.5),
    "one bad group": lambda: Adam([{"params": [parameter()]}, {"params": [parameter()], "eps": 0}]),
    "another optimizer": lambda: RMSprop([parameter()]),
    "a class of the user": lambda: OwnAdam([parameter()]),
    "a hook of the user": lambda: with_own_hook(Adam([parameter()])),
    "float16": lambda: SGD([parameter(dtype=torch.float16)], lr=0.1),
    "bfloat16": lambda: Adam([parameter(dtype=torch.bfloat16)]),
    "complex": lambda: Adam([parameter(1j, dtype=torch.complex64)]),
    "two types": lambda: Adam([parameter(), parameter(dtype=torch.float64)]),
    "NaN in a parameter": lambda: Adam([parameter(float("nan"))]),
    "Inf in a parameter": lambda: SGD([parameter(float("inf"))], lr=0.1),
    "large parameter": lambda: Adam([parameter(2.0**20)]),
    "large moment": lambda: with_moments("exp_avg", 2.0**20),
    "NaN in a moment": lambda: with_moments("exp_avg", float("nan")),
    "Inf in a moment": lambda: with_moments("exp_avg_sq", float("inf")),
    "negative square": lambda: with_moments("exp_avg_sq", -1.0),
    "negative step": lambda: with_moments("step", -1.0),
}


@pytest.mark.parametrize("name", SAFE)
def test_usual_update_is_safe(name):
    assert is_safe(SAFE[name]())


@pytest.mark.parametrize("name", CHECKED)
def test_update_that_may_make_nan_or_inf_is_checked(name):
    assert not is_safe(CHECKED[name]())


def test_update_in_a_dispatch_mode_is_checked():
    class Mode(DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    optimizer = Adam([parameter()])
    with Mode():
        assert not is_safe(optimizer)
    assert is_safe(optimizer)


def test_update_with_a_hook_of_the_user_on_all_optimizers_is_checked():
    optimizer = Adam([parameter()])
    hook = register_optimizer_step_pre_hook(lambda *_: None)
    assert not is_safe(optimizer)
    hook.remove()
    assert is_safe(optimizer)


def update(optimizer, safe):
    found = is_safe(optimizer, safe)
    optimizer.step()
    if found:
        safe.updated(optimizer)
    return found


def replace_moments(optimizer, one):
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg_sq"] = torch.full((2,), -1.0)
    optimizer.load_state_dict(saved)


CHANGES = {
    "write": lambda optimizer, one: one.detach().fill_(float("nan")),
    "new memory": lambda optimizer, one: setattr(one, "data", torch.full((2,), float("nan"))),
    "moment": lambda optimizer, one: optimizer.state[one]["exp_avg_sq"].sub_(1),
    "loaded": replace_moments,
    "option": lambda optimizer, one: optimizer.param_groups[0].update(eps=0),
    "hook": lambda optimizer, one: with_own_hook(optimizer),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_between_updates_is_noticed(name):
    one = parameter()
    optimizer, safe = Adam([one], lr=0.1), SafeUpdates()
    assert all(update(optimizer, safe) for _ in range(3))
    CHANGES[name](optimizer, one)
    assert not is_safe(optimizer, safe)


def test_parameters_are_read_again_after_a_checked_update():
    one = parameter()
    optimizer, safe = Adam([one]), SafeUpdates()
    assert update(optimizer, safe)
    optimizer.param_groups[0]["eps"] = 0
    assert not update(optimizer, safe)
    one.data.fill_(1e30)
    optimizer.param_groups[0]["eps"] = 1e-8
    assert not is_safe(optimizer, safe)


class Bad(DispatchMode):
    """Keeps the operators whose results have NaN or Inf."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        written = [each for each in args if isinstance(each, torch.Tensor)]
        for each in [result, *written]:
            if isinstance(each, torch.Tensor) and not bool(torch.isfinite(each).all()):
                self.found.append(str(func))
        return result


EXTREMES = {
    "adam": lambda each: Adam(each, lr=10, eps=1e-12, betas=(0.9999, 0.9999)),
    "adam without memory": lambda each: Adam(each, lr=10, eps=1e-12, betas=(0.0, 0.5), amsgrad=True),
    "adamw": lambda each: AdamW(each, lr=10, eps=1e-12, weight_decay=0.1, betas=(0.9999, 0.5)),
    "sgd": lambda each: SGD(each, lr=1, momentum=0.9999, nesterov=True, weight_decay=1),
}


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXTREMES)
def test_safe_updates_have_finite_results_at_the_bounds(name, dtype, foreach):
    """Gradients of 0, next to the bound and of both signs, with the largest options that are safe."""
    one = parameter(0.0, LARGEST, -LARGEST, LARGEST, 1.0, dtype=dtype)
    optimizer, safe, bad = EXTREMES[name]([one]), SafeUpdates(), Bad()
    optimizer.param_groups[0]["foreach"] = foreach
    safely = 0
    for number in range(40):
        sign = -1 if number % 3 == 2 else 1
        one.grad = torch.tensor([0.0, LARGEST, -LARGEST, sign * LARGEST, 1e-30], dtype=dtype)
        if not is_safe(optimizer, safe):
            break
        safely += 1
        with bad:
            optimizer.step()
        safe.updated(optimizer)
    assert safely >= 32
    assert bad.found == []


@pytest.mark.parametrize("foreach", [False, True])
def test_updates_by_large_means_over_small_squares_are_finite(foreach):
    one = parameter(LARGEST, -LARGEST)
    optimizer, safe, bad = EXTREMES["adamw"]([one]), SafeUpdates(), Bad()
    optimizer.param_groups[0]["foreach"] = foreach
    one.grad = torch.zeros(2)
    optimizer.state[one] |= {
        "step": torch.tensor(0.0),
        "exp_avg": torch.tensor([-LARGEST, LARGEST]),
        "exp_avg_sq": torch.zeros(2),
    }
    while is_safe(optimizer, safe):
        with bad:
            optimizer.step()
        safe.updated(optimizer)
    assert optimizer.state[one]["step"] == 32
    assert not are_moderate([one])
    assert float(one.detach().abs().min()) > 2.0**70
    assert bad.found == []


def updates_with_reading(monkeypatch, function, result, updates):
    """Return which of so many updates were safe, and before which ones `function` was called."""
    safely: list[bool] = []
    read: list[int] = []

    def noted(*_):
        read.append(len(safely))
        return result

    monkeypatch.setattr(f"nncdbg.torch.updates.{function}", noted)
    optimizer, safe = Adam([parameter()]), SafeUpdates()
    for _ in range(updates):
        safely.append(update(optimizer, safe))
    return safely, read


def test_parameters_that_stay_moderate_are_read_every_32_updates(monkeypatch):
    safely, read = updates_with_reading(monkeypatch, "_are_moderate", True, 70)
    assert all(safely)
    assert read == [0, 32, 64]


def test_large_gradients_are_read_once_in_a_while(monkeypatch):
    safely, read = updates_with_reading(monkeypatch, "are_moderate", False, 210)
    assert not any(safely)
    assert read == [0, 101, 202]


def test_parameters_that_the_user_writes_to_in_each_step_are_not_read_each_time():
    one = parameter()
    optimizer, safe = Adam([one]), SafeUpdates()
    found = []
    for _ in range(110):
        found.append(update(optimizer, safe))
        one.detach().clamp_(-1, 1)
    assert [number for number, safely in enumerate(found) if safely] == [0, 102]


@pytest.mark.parametrize(("elements", "large"), [(100, False), (1 << 20, True)])
def test_few_bytes_of_parameters_are_checked_if_only_large_updates_count(elements, large):
    one = torch.nn.Parameter(torch.ones(elements))
    one.grad = torch.ones(elements)
    assert is_safe(Adam([one]), SafeUpdates(only_large=True)) is large
    assert is_safe(Adam([one]))


# -- the watches that leave out such an update -------------------------------------------------------------


def training(**options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = Adam(model.parameters(), **options)

    def run():
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()

    return model, optimizer, run


@pytest.fixture
def idle(monkeypatch):
    """Return whether the watch of operators was idle, before each update and at its end."""
    seen = []
    before = Guard._set_updating

    def ended(self):
        seen.append(self._watch.idle)
        before(self)

    monkeypatch.setattr(Guard, "_set_updating", ended)
    return seen


def test_native_tier_is_idle_in_safe_updates(idle):
    model, optimizer, run = training()
    with nncdbg.torch.watch(model, optimizer, tier="native") as report:
        run()
        optimizer.param_groups[0]["eps"] = 0
        run()
        optimizer.param_groups[0]["eps"] = 1e-8
        run()
    assert report.ok
    assert idle == [False, True, False, False, False, True]


def test_native_tier_checks_again_after_an_update_that_raised():
    model, optimizer, run = training()
    with nncdbg.torch.watch(model, optimizer, tier="native", on_nan="report") as report:
        run()
        state = optimizer.state[model.weight]
        moment, state["exp_avg"] = state["exp_avg"], torch.zeros(5)
        with pytest.raises(RuntimeError, match="size"):
            optimizer.step()
        state["exp_avg"] = moment
        optimizer.zero_grad()
        (model(torch.full((1, 3), -1.0)).sum() * 0 - 1).log().backward()
        optimizer.step()
    assert report.bad_steps[-1].operators[0].op == "aten.log.default"


def large_training():
    """A training whose updates are safe in each tier, as reading its parameters takes a while."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1 << 10, 1 << 8)
    optimizer = Adam(model.parameters())

    def run():
        optimizer.zero_grad()
        model(torch.randn(2, 1 << 10)).square().mean().backward()
        optimizer.step()

    return model, optimizer, run


@pytest.mark.parametrize("tier", ["guard", "hooks", "native"])
def test_parameters_are_not_read_after_safe_updates(tier, monkeypatch):
    read = []
    original = UpdateCheck.newly_bad

    def noted(self, *args, **kwargs):
        read.append(number)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(UpdateCheck, "newly_bad", noted)
    model, optimizer, run = large_training()
    with nncdbg.torch.watch(model, optimizer, tier=tier) as report:
        for number in range(4):
            optimizer.param_groups[0]["eps"] = 0 if number == 2 else 1e-8
            run()
    assert report.ok
    assert read == [2]


@pytest.mark.parametrize("tier", ["guard", "native"])
def test_nan_that_torch_does_not_count_is_found_in_the_next_step(tier):
    model, optimizer, run = large_training()
    array = model.bias.detach().numpy()
    with nncdbg.torch.watch(model, optimizer, tier=tier, on_nan="report") as report:
        run()
        optimizer.zero_grad()
        model(torch.randn(4, 1 << 10)).square().mean().backward()
        array[0] = float("nan")
        optimizer.step()
        run()
    [bad] = report.bad_steps
    assert (bad.step, bad.where) == (3, "loss")
    assert "bias" in str(bad)


@pytest.mark.parametrize("tier", ["guard", "native"])
def test_nan_of_an_update_that_is_not_safe_is_found_after_safe_updates(tier):
    model, optimizer, run = large_training()
    with nncdbg.torch.watch(model, optimizer, tier=tier, on_nan="report") as report:
        for _ in range(3):
            run()
        with torch.no_grad():
            optimizer.state[model.bias]["exp_avg_sq"][0] = -1
        run()
    [bad] = report.bad_steps
    assert (bad.step, bad.where) == (4, "update")
    assert "bias" in str(bad)


@pytest.mark.parametrize(("options", "seen"), [({}, 0), ({"weight_decay": 0.1}, 4)])
def test_live_debugger_leaves_out_safe_updates_alone(options, seen, monkeypatch):
    """The gradient of a linear layer has no `aten.sqrt`; an update of Adam has one for each parameter."""
    operators = []
    original = LiveMode.__torch_dispatch__

    def noted(self, func, types, args=(), kwargs=None):
        operators.append(str(func))
        return original(self, func, types, args, kwargs)

    monkeypatch.setattr(LiveMode, "__torch_dispatch__", noted)
    _, _, run = training(**options)
    live = LiveTraining(lambda debugger: None, print)
    live.catch({"nan": None})
    with live:
        for _ in range(2):
            run()
    assert operators.count("aten.sqrt.default") == seen
    assert operators.count("aten.addmm.default") == 2


def test_live_debugger_stops_at_a_breakpoint_in_an_update_that_is_safe():
    from nncdbg.torch.live.breakpoints import parse_breakpoint

    _, _, run = training()
    stops = []
    live = LiveTraining(lambda debugger: stops.append(debugger.stop.reason), print)
    live.catch({"nan": None, "inf": None})
    live.add(parse_breakpoint(1, "aten.sqrt", temporary=True))
    with live:
        run()
    assert stops == ["breakpoint"]


def test_training_has_the_same_bits_with_and_without_safe_updates():
    results = []
    for tier in (None, "native"):
        model, optimizer, run = training()
        if tier is None:
            for _ in range(4):
                run()
        else:
            with nncdbg.torch.watch(model, optimizer, tier=tier):
                for _ in range(4):
                    run()
        results.append([*model.parameters()])
    for one, other in itertools.pairwise(results):
        assert all(map(torch.equal, one, other))
