"""Hear of each call of a module of torch, without a change that the compiler sees.

`Module.__call__` stays the same function, as `torch.compile` and scripts keep it; only its code is exchanged.
While a compiled function runs, it has torch's own code: the compiler writes what it reads into the conditions
under which its code is valid, so that code would be compiled again at the end of the watch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import module_entry
from nncdbg.torch.compiled_calls import on_compiled_call
from nncdbg.torch.warning_places import warning_at_caller

Hear = Callable[[torch.nn.Module], None]


class _Calls:
    """The listeners to calls of modules, and the exchange of the code of `Module.__call__`."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.code = function.__code__
        self.original = FunctionType(self.code, function.__globals__, function.__name__)
        self.listeners: list[Hear] = []
        self._compiled = 0
        """The number of compiled functions that run now, on all threads."""
        self._lock = threading.Lock()

    def add(self, hear: Hear) -> Callable[[], None]:
        self.listeners.append(hear)
        ended = on_compiled_call(lambda *_: self._count(1), lambda *_: self._count(-1), begun=True)
        self._count(0)

        def remove() -> None:
            ended()
            if hear in self.listeners:
                self.listeners.remove(hear)
            self._count(0)

        return remove

    def _count(self, change: int) -> None:
        with self._lock:
            self._compiled += change
            self.function.__code__ = _HEARING if self.listeners and not self._compiled else self.code

    def tell(self, module: torch.nn.Module) -> None:
        for hear in [*self.listeners]:
            hear(module)


_calls = _Calls(module_entry)


@warning_at_caller
def _hearing(self: Any, *args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    # The global names of a function are those of torch's module.
    from nncdbg.torch.module_calls import _calls

    _calls.tell(self)
    return _calls.original(self, *args, **kwargs)


_HEARING = _hearing.__code__


def on_module_calls(hear: Hear) -> Callable[[], None]:
    """Call `hear` before each call of a module outside of compiled functions; return how to give up."""
    return _calls.add(hear)
