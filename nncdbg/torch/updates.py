"""Updates of optimizers: those that can make no NaN, and how one made NaN or Inf."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.optim import SGD, Adam, AdamW

from nncdbg.engine.ops.aten.internals import dispatch_modes
from nncdbg.engine.ops.aten.signatures import DTYPES
from nncdbg.torch import guard_kernels
from nncdbg.torch.finiteness import are_moderate, kind_of, not_finite, suspicious
from nncdbg.torch.guard_findings import NOT_THIS_UPDATE, UPDATE, GuardTrip, optimizer_text
from nncdbg.torch.named_models import Trained, parameters_of, runs_only_torch
from nncdbg.torch.ranks import rank_notes
from nncdbg.torch.sharded_tensors import PLAIN, is_sharded, local_part, meshes_of
from nncdbg.torch.source_lines import Lines
from nncdbg.torch.step_call import tensors_in
from nncdbg.torch.step_recording import record
from nncdbg.torch.step_state import TensorCopies

# -- updates that can make no NaN and no Inf -----------------------------------------------

# Gradients, parameters and moments bound the numbers of such updates.  Let all of them be below ``2**20``,
# and then only gradients be read, in `_LONGEST` updates.  The moments of Adam are weighted means, so they
# stay below ``2**20`` and ``2**40``.  An update divides at most ``10 * 2**20 / 1e-4`` by at least
# ``1e-12``, so it changes a parameter by less than ``2**77``; a decoupled weight decay makes no parameter
# larger.  In SGD, let ``x`` bound parameters and momentum, and be ``2**20`` or more.  The gradient with its
# weight decay is below ``2 * x``, the next momentum below ``3 * x``, and so the next parameter below ``6 *
# x``, with Nesterov's momentum too.  `_LONGEST` such updates lead from ``2**20`` to less than ``2**103``.
# float32 goes up to ``2**128``, and float64 further.


_DTYPES = (torch.float32, torch.float64)
_NOT_NEGATIVE = ("step", "exp_avg_sq", "max_exp_avg_sq")
"""Entries of the state of an optimizer that must not be negative, for a square root or a power of them."""

_LONGEST = 32
"""The most updates until parameters and moments are read again."""

_FEW = 4
"""So few updates between two readings take longer than checks of the parameters after each update."""

_PATIENCE = 100
"""The number of updates that are checked after large numbers, or after few updates between two readings."""

_FASTER_READ = 1 << 15
"""The bytes of parameters, for each parameter or moment, that are read in less time than `is_safe` takes."""


class SafeUpdates:
    """Finds updates that can make no NaN and no Inf.

    Parameters and moments are read before the first one, and again after `_LONGEST` updates.  In between,
    torch's counts of writes show whether anything but a safe update has changed them.  torch does not count
    writes of NumPy, or through `Tensor.data`.  A NaN that such a write makes is found later, in a loss or in
    gradients.  With `only_large`, no update of few bytes is safe: reading its parameters takes less time.
    """

    def __init__(self, *, only_large: bool = False) -> None:
        self._only_large = only_large
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Moderate] = weakref.WeakKeyDictionary()
        self._waiting: dict[int, int] = {}
        """By identity of the optimizer: how many updates are checked before another may be safe."""

    def have_moderate(self, optimizer: torch.optim.Optimizer, gradients: Sequence[Any]) -> bool:
        """Return whether all gradients of an update are moderate, so that it may be safe.

        Returns False without reading them for some updates after one that was not.
        """
        waiting = self._waiting.get(id(optimizer), 0)
        if waiting:
            self._waiting[id(optimizer)] = waiting - 1
            return False
        return are_moderate(gradients) or self._wait(optimizer)

    def is_safe(self, optimizer: torch.optim.Optimizer, gradients: Sequence[Any]) -> bool:
        """Return whether no operator of an update without closure can make a NaN or Inf.

        `gradients` are those of its parameters, which must be moderate.
        """
        moderate = self._known.pop(optimizer, None)
        if dispatch_modes() or not is_usual(optimizer):
            return False
        kinds = {*map(kind_of, gradients)}
        if len(kinds) != 1 or not kinds <= _KINDS:
            return False
        writes = _writes_of(optimizer)
        if moderate is None or not moderate.left or writes != moderate.writes:
            tensors = _tensors_of(optimizer)
            if moderate is not None and moderate.left > _LONGEST - _FEW:
                return self._wait(optimizer)
            size = sum(int(each.nbytes) for each in parameters_of(optimizer)) if self._only_large else 0
            if self._only_large and size < _FASTER_READ * len(tensors):
                return self._wait(optimizer)
            if not _are_moderate(optimizer, tensors, gradients[0].dtype):
                return self._wait(optimizer)
            moderate = _Moderate(tensors, writes, _LONGEST)
        self._known[optimizer] = moderate
        return True

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """Enter the end of a safe update."""
        moderate = self._known.pop(optimizer, None)
        if moderate is not None:
            writes, count = _writes_of(optimizer), len(moderate.writes) // 3
            if len(writes) != len(moderate.writes) or writes[:count] != moderate.writes[:count]:
                moderate.tensors = _tensors_of(optimizer)
            moderate.left, moderate.writes = moderate.left - 1, writes
            self._known[optimizer] = moderate

    def _wait(self, optimizer: torch.optim.Optimizer) -> bool:
        self._waiting[id(optimizer)] = _PATIENCE
        return False


@dataclass(slots=True)
class _Moderate:
    """Parameters and moments that were moderate, for as many as `left` updates."""

    tensors: Sequence[Any]
    """Kept, as no other tensor has their identities then."""
    writes: _Writes
    """What `_writes_of` returned."""
    left: int


_Writes: TypeAlias = "bytes | list[int]"


def _writes_of(optimizer: torch.optim.Optimizer) -> _Writes:
    """Return the identities of parameters and moments, their addresses, and how often each was written to.

    Empty if torch does not count the writes to one.
    """
    library = guard_kernels.used
    found: bytes | None = None if library is None else library.writes(optimizer.param_groups, optimizer.state)
    if found is not None:
        return found
    tensors = _tensors_of(optimizer)
    if not {*map(type, tensors)} <= PLAIN or any(map(torch.Tensor.is_inference, tensors)):
        return []
    return [*map(id, tensors), *map(torch.Tensor.data_ptr, tensors), *map(_version_of, tensors)]


_version_of = operator.attrgetter("_version")
_KINDS = frozenset((each, True, torch.strided, dtype) for each in PLAIN for dtype in _DTYPES)


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return parameters and all that an optimizer keeps for them, except None."""
    tensors = parameters_of(optimizer)
    for state in optimizer.state.values():
        tensors += state.values()
    return tensors if None not in {*map(type, tensors)} else [each for each in tensors if each is not None]


def _are_moderate(optimizer: torch.optim.Optimizer, tensors: Sequence[Any], dtype: torch.dtype) -> bool:
    """Return whether parameters and moments of a dtype are moderate; some must not be negative."""
    if not {*map(type, tensors)} <= PLAIN:
        return False
    steps = {id(state.get("step")) for state in optimizer.state.values()}
    if any(
        kind_of(each) not in _KINDS or each.is_inference() or (each.dtype != dtype and id(each) not in steps)
        for each in tensors
    ):
        return False
    not_negative = (
        state[name] for state in optimizer.state.values() for name in _NOT_NEGATIVE if name in state
    )
    return (
        are_moderate([each for each in tensors if id(each) not in steps])
        and not suspicious([each for each in tensors if id(each) in steps])
        and not any(bool((each < 0).any()) for each in not_negative)
    )


def is_usual(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an update is one of torch alone, with options that make no large number of others."""
    rule = _RULES.get(type(optimizer))
    return (
        rule is not None
        and all(map(rule, optimizer.param_groups))
        and not hasattr(optimizer, "grad_scale")
        and runs_only_torch(optimizer)
    )


def _is_between(number: Any, least: float, most: float) -> bool:
    return type(number) in (int, float) and least <= number <= most


def _is_usual_adam(group: Mapping[str, Any]) -> bool:
    """Return whether the options of Adam keep the bounds, without a weight decay that changes gradients."""
    first, second = group["betas"]
    rate, decay = group["lr"], group["weight_decay"]
    return (
        _is_between(first, 0, 0.9999)
        and _is_between(second, 0.5, 0.9999)
        and _is_between(rate, 0, 10)
        and _is_between(group["eps"], 1e-12, 1)
        and _is_between(decay, 0, 10)
        and (not decay or (bool(group.get("decoupled_weight_decay")) and rate * decay <= 1))
        and not group["capturable"]
        and not group["differentiable"]
    )


def _is_usual_sgd(group: Mapping[str, Any]) -> bool:
    """Return whether the options of SGD keep the bounds."""
    return (
        _is_between(group["momentum"], 0, 0.9999)
        and _is_between(group["dampening"], 0, 1)
        and _is_between(group["lr"], 0, 1)
        and _is_between(group["weight_decay"], 0, 1)
        and not group["differentiable"]
    )


_RULES: Mapping[type, Callable[[Mapping[str, Any]], bool]] = {
    Adam: _is_usual_adam,
    AdamW: _is_usual_adam,
    SGD: _is_usual_sgd,
}
"""Classes of optimizers, and whether the options of a group keep the bounds."""


# -- updates that run again ----------------------------------------------------------------


class UpdateState:
    """Copies of the parameters and moments of an optimizer, and its options."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.proxy(optimizer)
        self._groups: Sequence[dict[str, Any]] = ()
        self._states: dict[Any, dict[str, Any]] = {}
        self._copies = TensorCopies(())
        self.update()

    def update(self) -> None:
        """Copy everything as it is now."""
        optimizer = self._optimizer
        self._groups = [dict(group) for group in optimizer.param_groups]
        self._states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
        self._copies.update([*tensors_in([self._groups, [*self._states.values()]])])

    def restore(self) -> None:
        """Make parameters, moments and options as they were."""
        state = self._optimizer.state
        state.clear()
        state.update({parameter: dict(kept) for parameter, kept in self._states.items()})
        for group, kept in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.clear()
            group.update(kept)
        self._copies.restore()


# -- how an update made NaN or Inf ---------------------------------------------------------

_ADAM = "p - lr * m / (sqrt(v) + eps), with bias-corrected moments m and v of the gradient and its square"

FORMULAS: Mapping[str, str] = {
    "SGD": "p - lr * b, with b = momentum * b + gradient",
    "ASGD": "p * (1 - lambd * eta) - eta * gradient",
    "Adam": _ADAM,
    "AdamW": f"p * (1 - lr * weight_decay), then {_ADAM}",
    "SparseAdam": _ADAM,
    "NAdam": _ADAM.replace("m and", "m with Nesterov's momentum and"),
    "RAdam": "p - lr * r * m / (sqrt(v) + eps), with the rectification r",
    "Adamax": "p - lr * m / u, with u = max(beta2 * u, |gradient| + eps)",
    "Adagrad": "p - lr * gradient / (sqrt(sum) + eps), with the sum of squares of the gradients",
    "Adadelta": "p - lr * gradient * sqrt(d + eps) / sqrt(v + eps), with means d and v of squares",
    "RMSprop": "p - lr * gradient / (sqrt(v) + eps), with the mean v of squares of the gradient",
    "Rprop": "p - sign(gradient) * step_size",
}
"""The new value of a parameter p, by the class of the optimizer in `torch.optim`."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What an optimizer divides, as keys of its numbers, and the mean of squares in the divisor."""

    dividend: str
    squares: str = ""
    eps_in_root: bool = False


_MOMENTS = _Step("exp_avg", "exp_avg_sq")

_STEPS: Mapping[str, _Step] = {
    "SGD": _Step("momentum_buffer"),
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "SparseAdam"), _MOMENTS),
    "Adagrad": _Step("gradient", "sum"),
    "Adadelta": _Step("gradient", "square_avg", eps_in_root=True),
    "RMSprop": _Step("gradient", "square_avg"),
}
"""How optimizers scale the gradient of one element, by the class in `torch.optim`."""

_OPTIONS = ("lr", "eps", "momentum", "betas", "alpha", "rho", "weight_decay", "lambd")


def _class_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the class of `torch.optim` with a known formula that an optimizer extends; "" for none."""
    classes = [each.__name__ for each in type(optimizer).__mro__ if each.__module__.startswith("torch.optim")]
    return next((name for name in classes if name in FORMULAS), "")


def described_update(optimizer: torch.optim.Optimizer, name: str, parameter: Any, bad: Any) -> list[str]:
    """Return sentences about an update that made NaN or Inf.

    `bad` is the parameter, or a moment of it, with NaN or Inf; `name` is that of the parameter.
    """
    group = next(
        (each for each in optimizer.param_groups if any(p is parameter for p in each["params"])), None
    )
    options = [f"{key} {_written(group[key])}" for key in _OPTIONS if group and group.get(key) is not None]
    formula = FORMULAS.get(_class_of(optimizer), "")
    update = f"{type(optimizer).__name__} computes {formula}" if formula else type(optimizer).__name__
    return [f"{update}; {', '.join(options)}", *_element(optimizer, name, parameter, bad, group or {})]


def _element(
    optimizer: torch.optim.Optimizer, name: str, parameter: Any, bad: Any, group: Mapping[str, Any]
) -> list[str]:
    """Return the numbers at the first element of a strided parameter that is NaN or Inf, and the cause."""
    values = {"gradient": parameter.grad, **optimizer.state.get(parameter, {})}
    values = {key: local_part(each) for key, each in values.items()}
    shard = " of this shard" if is_sharded(bad) else ""
    parameter, bad = local_part(parameter), local_part(bad)
    if bad.layout is not torch.strided or bad.shape != parameter.shape:
        return []
    at = tuple(torch.nonzero(~torch.isfinite(bad.detach()))[0].tolist())
    numbers = {
        key: value.detach()[at].item()
        for key, value in values.items()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.shape == bad.shape
    }
    place = f"{name}[{', '.join(map(str, at))}]{shard}" if at else name
    shown = ", ".join(f"{key} {number:.4g}" for key, number in numbers.items())
    number = parameter.detach()[at].item()
    found = f"{place} is {number:.4g} after the update: {shown}"
    cause = _cause(_STEPS.get(_class_of(optimizer)), numbers, group, parameter.dtype)
    if not cause and _is_finite_step(optimizer, numbers, group, parameter.dtype) and math.isnan(number):
        cause = (
            f"{NOT_THIS_UPDATE}: its step is finite at {place}, so the element was NaN or Inf before; "
            "look for code that writes to the parameter after the forward pass, through NumPy or `.data`"
        )
    return [found, cause] if cause else [found]


def _is_finite_step(
    optimizer: torch.optim.Optimizer, numbers: Mapping[str, Any], group: Mapping[str, Any], dtype: Any
) -> bool:
    """Return whether an update with usual options made no NaN of a finite element, by the numbers after it.

    The bias correction of Adam makes a step larger by 1e4 at most.
    """
    if dtype not in (torch.float32, torch.float64) or not is_usual(optimizer):
        return False
    step = _STEPS[_class_of(optimizer)]
    divisor = 1.0
    if step.squares:
        squares = numbers.get(_squares_of(step, group), math.nan)
        divisor = math.sqrt(squares) + group.get("eps", math.nan) if squares >= 0 else math.nan
    dividend = numbers.get(step.dividend, numbers.get("gradient", math.nan))
    return bool(abs(group.get("lr", math.nan) * dividend / divisor) < 2.0**64)


def _squares_of(step: _Step, group: Mapping[str, Any]) -> str:
    """Return the key of the mean of squares that an update divides by."""
    return "max_exp_avg_sq" if group.get("amsgrad") else step.squares


def _cause(step: _Step | None, numbers: Mapping[str, Any], group: Mapping[str, Any], dtype: Any) -> str:
    """Return the operation that made NaN or Inf, by the numbers after it; empty if these do not show it."""
    rate = float(group.get("lr", 0))
    if not math.isfinite(rate):
        return f"cause: the learning rate is {rate:g}; check the schedule: scheduler.get_last_lr()"
    if step is None or any(isinstance(each, complex) for each in numbers.values()):
        return ""
    dividend = numbers.get(step.dividend, numbers.get("gradient"))
    divisor = 1.0
    if step.squares:
        squares = numbers.get(_squares_of(step, group))
        if squares is None or dividend is None or group.get("centered"):
            return ""
        if not squares >= 0 or math.isinf(squares):
            return _bad_squares(squares, numbers.get("gradient"), dtype)
        eps = torch.tensor(float(group.get("eps", 0)), dtype=dtype).item()
        divisor = math.sqrt(squares + eps) if step.eps_in_root else math.sqrt(squares) + eps
        if not divisor:
            return _zero_divisor(step, dividend, float(group.get("eps", 0)), dtype)
    if dividend is None or not abs(rate * dividend / divisor) > torch.finfo(dtype).max:
        return ""
    return f"cause: the step overflows: lr * {dividend:.4g} is larger than {_largest(dtype)}; reduce lr"


def _bad_squares(squares: float, gradient: Any, dtype: Any) -> str:
    """Return the cause of a mean of squares that is negative or Inf."""
    if squares < 0:
        return (
            f"cause: square root of a negative number: v is {squares:.4g}; check betas and the loaded state"
        )
    if gradient is None or not gradient * gradient > torch.finfo(dtype).max:
        return ""
    return (
        f"cause: the square of the gradient overflows: {gradient:.4g} ** 2 is larger than {_largest(dtype)}; "
        "clip the gradients before the update, or reduce the loss"
    )


def _zero_divisor(step: _Step, dividend: float, eps: float, dtype: Any) -> str:
    name = DTYPES[dtype]
    rounded = f", because {eps:g} is 0 in {name}" if eps else ""
    remedy = f"use an eps that {name} can represent, or f32 parameters" if eps else "use an eps above 0"
    what = "division by zero" if dividend else "zero divided by zero"
    divisor = "sqrt(v + eps)" if step.eps_in_root else "(sqrt(v) + eps)"
    return f"cause: {what}: {dividend:.4g} / {divisor}, and the divisor is 0{rounded}; {remedy}"


def _largest(dtype: Any) -> str:
    return f"the largest {DTYPES[dtype]}, {torch.finfo(dtype).max:.4g}"


def _written(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_written(each) for each in value)})"
    return f"{float(value):g}"


# -- checks after updates ------------------------------------------------------------------

_FAR = 1000
"""The factor by which an update moves a parameter far."""


class UpdateCheck:
    """Checks parameters and moments after updates; with `keeps`, an update can run again and be undone."""

    def __init__(self, trained: Trained, *, keeps: bool) -> None:
        self.spoiled: set[str] = set()
        """Parameters and moments that are NaN or Inf since a finding."""
        self.repeating = False
        """Whether an update runs again now."""
        self._given: weakref.WeakKeyDictionary[torch.optim.Optimizer, frozenset[str]] = (
            weakref.WeakKeyDictionary()
        )
        """The parameters and moments that were NaN or Inf before the first update of an optimizer."""
        self._last: weakref.ref[torch.optim.Optimizer] | None = None
        """The last optimizer of them."""
        self._trained = trained
        self._keeps = keeps
        self._evaluations: list[Any] = []
        """The results of the closure in this update."""
        self._large: tuple[int, str, dict[int, float]] | None = None
        """The last update, if it may have been large: its step and optimizer, and the sizes before it.

        Sizes are by identity: a search for names takes longer than many updates.
        """
        self._before: weakref.WeakKeyDictionary[torch.optim.Optimizer, UpdateState] = (
            weakref.WeakKeyDictionary()
        )

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the state before an update."""
        self._evaluations = []
        if self._last is None or self._last() is not optimizer:
            self._last = weakref.ref(optimizer)
            if optimizer not in self._given:
                self._given[optimizer] = frozenset(self._bad(optimizer, moments=True))
        if not self._keeps or meshes_of(parameters_of(optimizer)):
            return
        if optimizer in self._before:
            self._before[optimizer].update()
        else:
            self._before[optimizer] = UpdateState(optimizer)

    def expect(self, optimizer: torch.optim.Optimizer, step: int, *, large: bool) -> None:
        """Keep the sizes of the parameters before an update that is large, or whose rate is."""
        rates = (group.get("lr") for group in optimizer.param_groups)
        # A tensor is not read in each step.
        large = large or any(isinstance(each, (int, float)) and not each <= 1 for each in rates)
        self._large = (step, optimizer_text(optimizer), _sizes(parameters_of(optimizer))) if large else None

    def moved(self, optimizer: torch.optim.Optimizer) -> str:
        """Return a sentence about the parameter that the last update moved farthest; "" if none went far."""
        if self._large is None:
            return ""
        step, by, before = self._large
        sizes = _sizes(parameters_of(optimizer))
        far = {key: sizes[key] for key in before if sizes.get(key, 0) > _FAR * max(before[key], 10)}
        if not far:
            return ""
        key = max(far, key=far.__getitem__)
        named = self._trained.named(parameters_of(optimizer))
        name = next(name for name, each in named if id(each) == key)
        where = f"the largest magnitude of {name} from {before[key]:.3g} to {far[key]:.3g}"
        return f"the update of step {step} moved {where}: {by}"

    def written(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the parameters that were finite after the last update of an optimizer."""
        updated = {name for optimizer in self._given for name, _, _ in self._named(optimizer)}
        return frozenset(updated.intersection(names) - self.spoiled.union(*self._given.values()))

    def evaluated(self, result: Any) -> None:
        """Keep the result of a closure of the update."""
        self._evaluations.append(result)

    def newly_bad(self, optimizer: torch.optim.Optimizer, *, moments: bool) -> dict[str, str]:
        """Return the names and counts of the parameters and moments that became NaN or Inf.

        With `moments`, moments alone are enough; otherwise a parameter must have changed.
        """
        bad = self._bad(optimizer, moments=moments)
        if not bad:
            return {}
        known = self.spoiled | self._given[optimizer]
        new = {name: counts for name, counts in bad.items() if name not in known}
        self.spoiled |= new.keys()
        return new

    def trip(
        self, optimizer: torch.optim.Optimizer, step: int, new: dict[str, str], lines: Lines
    ) -> GuardTrip:
        """Return what is reported about an update that made `new`."""
        notes = rank_notes(parameters_of(optimizer))
        undoable = optimizer in self._before
        trip = GuardTrip(UPDATE, step, optimizer, new, lines, undoable=undoable, notes=notes)
        named = self._named(optimizer)
        parameter, bad = next((owner, each) for name, owner, each in named if name in new)
        name = next(name for name, _, each in named if each is parameter)
        trip.notes += described_update(optimizer, name, parameter, bad)
        return trip

    def undo(self, optimizer: torch.optim.Optimizer, new: dict[str, str]) -> None:
        """Leave out an update that made `new`, if its state was kept."""
        if optimizer in self._before:
            self._before[optimizer].restore()
            self.spoiled -= new.keys()

    def record_again(self, trip: GuardTrip, optimizer: torch.optim.Optimizer) -> None:
        """Record a second run of the update in a trip, if its state was kept; otherwise enter a note."""
        if meshes_of(parameters_of(optimizer)):
            trip.notes.append(
                "an update of shards does not run again, and is not undone: the other ranks may not have the "
                "NaN or Inf"
            )
            return
        if not self._keeps:
            trip.notes.append("to run such an update again, use --keep-update or keep_update=True")
            return
        if len(self._evaluations) > 1:
            trip.notes.append("the update evaluates its closure several times, so it does not run again")
            return
        self.repeating = True
        closure = [lambda: self._evaluations[0]] if self._evaluations else []
        try:
            models = self._trained.models_of(parameters_of(optimizer))
            after = UpdateState(optimizer)
            self._before[optimizer].restore()
            try:
                with record(models, optimizer) as recorded:
                    optimizer.step(*closure)
                trip.recorded = recorded
            finally:
                after.restore()
        except Exception as error:  # noqa: BLE001  an optimizer of the user, which may not run twice
            trip.notes.append(f"the second run of the update failed: {type(error).__name__}: {error}")
        finally:
            self.repeating = False

    def _bad(self, optimizer: torch.optim.Optimizer, *, moments: bool) -> dict[str, str]:
        """Return names and counts of parameters and moments that are NaN or Inf, if a parameter is.

        With `moments`, moments alone are enough.
        """
        changed = tensors_in([*optimizer.state.values()]) if moments else ()
        parameters = parameters_of(optimizer)
        if not suspicious([*parameters, *changed]):
            return {}
        if not any(map(not_finite, [*parameters, *tensors_in([*optimizer.state.values()])])):
            return {}  # They are large: the search for names takes longer.
        return {name: counts for name, _, each in self._named(optimizer) if (counts := not_finite(each))}

    def _named(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, Any, Any]]:
        """Return name, parameter and tensor of each parameter and moment, parameters first."""
        named = [(name, each, each) for name, each in self._trained.named(parameters_of(optimizer))]
        names = {id(each): name for name, each, _ in named}
        for parameter, state in optimizer.state.items():
            name = names.get(id(parameter), "parameter")
            for key, value in state.items():
                named += [(f"{name}.{key}", parameter, each) for each in tensors_in(value)]
        return named


def _sizes(parameters: Iterable[Any]) -> dict[int, float]:
    """Return the largest magnitude of each dense parameter, or of its shard on this rank, by identity."""
    parts = ((id(each), local_part(each)) for each in parameters)
    return {key: float(part.detach().abs().max()) for key, part in parts if part.numel()}
