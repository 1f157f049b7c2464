"""Keep the calls of a step on a tape: hooks of outermost modules, and functions of autograd."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial, wraps
from itertools import chain
from threading import get_ident
from types import ClassMethodDescriptorType, FrameType
from typing import Any

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from nncdbg.engine.ops.aten.internals import (
    TRACERS,
    any_autocast,
    compile_body,
    compiler_of,
    compiles_body,
    not_compiled,
    profiler_marks_undispatched,
    stand_in,
)
from nncdbg.torch.hooks import hidden_hooks, modules_in, on_compiled_call, on_module_calls
from nncdbg.torch.named_models import inside_of_parallel, takes_hooks
from nncdbg.torch.source_lines import user_places, warning_at_caller
from nncdbg.torch.step_call import BACKWARD, GRADIENT, REGISTER_HOOK, Evaluation, StepCall, is_plain
from nncdbg.torch.step_state import KeptBuffers, RandomState
from nncdbg.torch.tape import Tape

_LOSSES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
)
"""Functions of `torch.nn.functional` that write to no tensor and draw no numbers.

The tape keeps the call itself: in a step of 5 ms, each operator that it keeps instead takes up to 40 us.
"""

WHOLE_CALLS: tuple[tuple[Any, str], ...] = (
    *((torch.nn.functional, name) for name in _LOSSES),
    (torch.nn.utils, "clip_grad_norm_"),
)
"""Owner and name of each function."""


def whole_call(call: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """Return a function in place of one of `WHOLE_CALLS`: it calls `call(original, args, kwargs)`."""

    @not_compiled
    @warning_at_caller
    @wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        # A second run could not read an iterator again.
        again = [
            each if each.__class__ is torch.Tensor or not hasattr(each, "__next__") else [*each]
            for each in args
        ]
        if kwargs:
            kwargs = {name: [*each] if hasattr(each, "__next__") else each for name, each in kwargs.items()}
        return call(original, again, kwargs)

    return stand_in(function, original)


_CALLS = (
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (torch.autograd.Function, "apply"),
    (torch.Tensor, "register_hook"),
)
"""Functions whose effect on autograd operators do not show: the tape keeps the calls themselves."""


def _kept(calls: StepCalls, original: Any, name: str) -> Any:
    """Return a function in place of one of `_CALLS`, which may be another one of the user."""
    if isinstance(original, (classmethod, ClassMethodDescriptorType)):

        @not_compiled
        @warning_at_caller
        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return calls.call(original.__get__(None, cls), name, args, kwargs)

        return classmethod(apply)

    @not_compiled
    @warning_at_caller
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return calls.call(original, name, args, kwargs)

    return stand_in(call, original)


_TRANSFORMED = StepCall(is_plain, (), {}, (), gradients_enabled=True)
"""In place of a module inside of `torch.func`: the tape keeps its operators instead."""


class StepCalls:
    """Keeps the calls of this thread on `tape` while it is entered.

    `before_module` is called before an outermost module that computes gradients, `before_evaluation` before
    one that does not, `after_backward` after each backward pass, and `gradients` returns those of the
    parameters.  Without `repeatable`, neither operators nor buffers are kept, so no step can run again.
    """

    def __init__(
        self,
        before_module: Callable[[], None],
        after_backward: Callable[[StepCall], None],
        *,
        before_evaluation: Callable[[], None] = lambda: None,
        gradients: Callable[[], Iterable[Any]] = tuple,
        repeatable: bool = True,
    ) -> None:
        self.tape = Tape(keeps_operators=repeatable, gradients=gradients)
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """The outermost modules that were called so far."""
        self._before_module = before_module
        self._before_evaluation = before_evaluation
        self._after_backward = after_backward
        self._repeatable = repeatable
        self._buffers = KeptBuffers()
        self.marked = False
        """Whether a marked step runs: modules without gradients are parts of it, too."""
        self._inside: list[tuple[Any, StepCall | None]] = []
        """The outermost modules that run now, each with its call if the tape keeps it."""
        self._thread = 0
        self.stop_learning: Callable[[], None] = lambda: None
        """Learn no more modules; hooks on those that were learned remain."""
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        """Owner and name of each replaced function, with its original and what replaces it."""
        self._compiled = 0
        """The number of compiled functions that run now, one inside of the other."""
        self._hooks: list[RemovableHandle] = []
        """Those on the outermost modules."""
        self._entered = ExitStack()

    def __enter__(self) -> StepCalls:
        self._thread = get_ident()
        self._entered.callback(self._replaced.clear)
        self._entered.callback(self._buffers.clear)
        for owner, name in _CALLS:
            self._replace(owner, name, _kept(self, vars(owner)[name], name))
        for owner, name in TRACERS:
            self._replace(owner, name, whole_call(self.call_unseen, vars(owner)[name]))
        if self._repeatable:
            for owner, name in WHOLE_CALLS:
                self._replace(owner, name, whole_call(self.call_whole, vars(owner)[name]))
        self.stop_learning = on_module_calls(self.learn)
        self._entered.callback(on_compiled_call(self._enter_compiled, self._leave_compiled))
        self._entered.callback(lambda: self.stop_learning())
        self._entered.callback(self._remove_hooks)
        self._entered.enter_context(hidden_hooks(self._hooks))
        self._entered.enter_context(profiler_marks_undispatched())
        self.tape.begin()
        self._entered.callback(self.tape.end)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace a function until this is left, except while compiled functions run."""
        original = vars(owner)[name]
        self._replaced.append((owner, name, original, replacement))
        self._entered.callback(setattr, owner, name, original)
        setattr(owner, name, replacement)

    @property
    def here(self) -> bool:
        """Whether this is the thread of the training."""
        return get_ident() == self._thread

    def leave_process(self) -> None:
        """Stop keeping calls: this process is a fork."""
        self.tape.end()
        self._thread = 0

    def learn(self, module: torch.nn.Module) -> None:
        """Add hooks to a module that is called at the top level and has parameters."""
        if (
            self.tape.paused
            or not self.here
            or module in self.modules
            or next(module.parameters(), None) is None
            or not takes_hooks(module)  # The tape keeps its operators.
            # After `module.compile()`, hooks are part of its code; the tape keeps the call of the function.
            or module._compiled_call_impl is not None
        ):
            return
        self.modules.add(module)
        pre = module.register_forward_pre_hook(self._enter_module, with_kwargs=True, prepend=True)
        post = module.register_forward_hook(self._leave_module, with_kwargs=True, always_call=True)
        self._hooks += pre, post

    def _remove_hooks(self) -> None:
        for each in self._hooks:
            each.remove()
        self._hooks.clear()

    @not_compiled
    def _enter_module(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        # The compiler calls hooks of the modules that it traces.
        if not is_compiling() and get_ident() == self._thread:
            self._enter(module, module, args, kwargs, sys._getframe(1))

    @not_compiled
    def _leave_module(self, module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if not is_compiling() and get_ident() == self._thread:
            self._leave(module, result)

    @not_compiled
    def _enter_compiled(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType
    ) -> None:
        if get_ident() == self._thread:
            # Functions of a higher-order operator are compiled for their gradients, not for other kernels.
            body = compiles_body(frame)
            if not body:
                self.tape.compiler = compiler_of(frame)
            # The compiler writes the functions that it reads into the conditions of its code, and keeps them.
            if not self._compiled:
                for owner, name, original, _ in self._replaced:
                    setattr(owner, name, original)
            self._compiled += 1
            again: Any = partial(compile_body, function) if body else function
            if not body and isinstance(owner := getattr(function, "__self__", None), torch.nn.Module):
                again = owner  # Of a compiled `Module.__call__`.
            self._enter(function, again, args, kwargs, frame.f_back or frame, keeps=body)

    @not_compiled
    def _leave_compiled(self, function: Callable[..., Any], result: Any) -> None:
        if get_ident() == self._thread:
            self._leave(function, result)
            self._compiled -= 1
            if not self._compiled:
                for owner, name, _, replacement in self._replaced:
                    setattr(owner, name, replacement)

    def _enter(
        self,
        function: Any,
        again: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        frame: FrameType,
        *,
        keeps: bool = False,
    ) -> None:
        """Begin a call of an outermost module or compiled function; the tape pauses until `_leave`.

        A second run calls `again`.  A call without gradients is an evaluation, unless `keeps` says otherwise.
        """
        trains = is_grad_enabled() or self.marked
        kind = StepCall if keeps or trains else Evaluation
        if trains and not self._inside:
            self._before_module()
        tape, call = self.tape, None
        keeps = not tape.paused and (kind is StepCall or self._repeatable)
        if not tape.paused:
            if not is_plain(args, kwargs):
                self._inside.append((function, _TRANSFORMED))
                return
            if kind is Evaluation:
                tape.has_drawn = True
                self._before_evaluation()
        tape.pause()
        if keeps:
            random = tape.starting() or RandomState()
            called = inside_of_parallel(again)  # A second run must not communicate.
            if kind is StepCall and getattr(called, "training", True) is False:
                tape.evaluates_with_gradients()
            functions, modules = [*filter(callable, args)], iter((called,))
            if functions or not isinstance(called, torch.nn.Module):
                modules = chain.from_iterable(map(modules_in, (called, *functions)))
            for module in modules if self._repeatable else ():
                if module.training and id(module) not in tape.kept:
                    with tape.own_work:
                        tape.kept[id(module)] = self._buffers.of(module)
            places, enabled = user_places(frame), is_grad_enabled()
            call = kind(called, args, kwargs, places, enabled, random=random, autocast=_autocast())
            tape.add(call)
        self._inside.append((function, call))

    def _leave(self, function: Any, result: Any) -> None:
        # A hook that raises before the forward has not entered it: torch calls `_leave_module` all the same.
        if not self._inside or self._inside[-1][0] is not function:
            return
        _, call = self._inside.pop()
        if call is _TRANSFORMED:
            return
        self.tape.resume()
        if isinstance(call, Evaluation):
            self.tape.evaluated(call, result)
        elif call is not None:
            call.result = result

    @warning_at_caller
    def call(
        self, original: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call one of `_CALLS`, and keep it on the tape."""
        __tracebackhide__ = True
        tape = self.tape
        if tape.paused or get_ident() != self._thread or not is_plain(args, kwargs):
            return original(*args, **kwargs)
        if name == REGISTER_HOOK and args[0].is_leaf:
            return original(*args, **kwargs)  # It has the hook in a second run as well.
        random = tape.starting()
        if random is None and (name != BACKWARD or tape.has_drawn):
            random = RandomState()
        places = user_places(sys._getframe(2))
        call = StepCall(original, args, kwargs, places, is_grad_enabled(), random=random, name=name)
        tape.run(call)
        if name in (BACKWARD, GRADIENT):
            tape.written.gradients_changed()
            self._after_backward(call)
        return call.result

    @warning_at_caller
    def call_unseen(
        self, original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call one of `TRACERS`, which the tape does not keep."""
        __tracebackhide__ = True
        if not self.here:
            return original(*args, **kwargs)
        tape = self.tape
        tape.has_drawn = tape.has_drawn or not tape.paused
        tape.pause()
        try:
            return original(*args, **kwargs)
        finally:
            tape.resume()

    @warning_at_caller
    def call_whole(self, original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call one of `WHOLE_CALLS`; keep it on the tape, unless the user's modes must see its operators."""
        __tracebackhide__ = True
        tape = self.tape
        if tape.paused or get_ident() != self._thread:
            return original(*args, **kwargs)
        if not tape.is_innermost or not is_plain(args, kwargs):
            return original(*args, **kwargs)
        tape.starting()
        places = user_places(sys._getframe(2))
        call = StepCall(original, args, kwargs, places, is_grad_enabled(), autocast=_autocast())
        return tape.run(call)


def _autocast() -> tuple[str, torch.dtype] | None:
    if not any_autocast():
        return None
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return device, torch.get_autocast_dtype(device)
    return None
