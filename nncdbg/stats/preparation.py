"""Background compilation of the compiled pass, off the start-up path.

Importing numba and compiling take seconds the first time (later runs load from numba's cache). Until a
dtype is ready, the plain pass computes the same numbers more slowly.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nncdbg import dtypes
from nncdbg.process.threads import BackgroundThread, parsed

MODERATE = 20
"""The exponent of the power of two below which the numbers of a usual training are."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled pass for one dtype.

    ``entry(*leading, address, count, guard_bytes, row_address) -> flags``; with `exact`, the address of
    two i64 for the exact extremes (0 for none) follows `leading`.
    """

    entry: Callable[..., int]
    leading: tuple[int | float, ...]
    exact: bool
    all_finite: Callable[[int, int], bool] | None = None
    """``all_finite(address, count)``: whether there is no NaN or Inf; for floats of 16 bits and more."""
    squares_finite: Callable[[int, int, int], bool] | None = None
    """``squares_finite(addresses, counts, arrays)``: whether the square of each element of several arrays is.

    The first two arguments are addresses of one i64 per array."""
    moderate: Callable[[int, int, int], bool] | None = None
    """The same: whether the magnitude of each element is below ``2**MODERATE``."""


_FIRST = ("f32", "i64", "bool", "f64", "f16", "bf16", "i32")

NAMES: tuple[str, ...] = _FIRST + tuple(
    name for name in dtypes.NUMPY if name not in (*_FIRST, "str", "c64", "c128")
)
"""The dtypes of the compiled pass, in the order in which they become ready."""


kernels: dict[np.dtype[Any], Kernel] = {}
"""The compiled dtypes so far; entries are never removed."""


_LONGEST_BUILD = 30.0
"""Seconds that a fork waits at most until a dtype is compiled."""


class _Preparation:
    """The background thread, and its result."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.stopping = threading.Event()
        self.finished = threading.Event()
        self.address: Callable[[np.ndarray[Any, Any]], int] | None = None
        self.failure: str | None = None
        self._compiles = threading.RLock()
        """Held while LLVM is at work: a process that is forked then would crash when it ends."""
        self._waited = False
        """Whether the fork that begins has the lock."""

    def start(self) -> None:
        with self.lock:
            if self.thread is None:
                # A thread inside LLVM at interpreter shutdown crashes the process, so the exit waits for the
                # current dtype, and no further one begins.
                atexit.register(self.stop)
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(
                        before=self._before_fork, after_in_parent=self._forked, after_in_child=self._forked
                    )
                self.thread = BackgroundThread(target=self._work, name="nncdbg-compilation")
                self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        if self.thread is not None:
            self.thread.join()

    def _before_fork(self) -> None:
        self._waited = self._compiles.acquire(timeout=_LONGEST_BUILD)

    def _forked(self) -> None:
        if self._waited:
            self._compiles.release()

    def _work(self) -> None:
        try:
            with self._compiles:
                from nncdbg.stats import compiled

            with _warnings_of_others():
                with self._compiles:
                    self.address = parsed(compiled.build_address)
                for name in NAMES:
                    if self.stopping.is_set():
                        return
                    with self._compiles:
                        kernels[dtypes.NUMPY[name]] = parsed(partial(compiled.build, name))
        except Exception as error:  # noqa: BLE001  fall back to the plain pass; `failure()` says why
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self.finished.set()


@contextmanager
def _warnings_of_others() -> Iterator[None]:
    """Let numba catch no Python warnings on this thread: it catches, and may lose, those of all threads."""
    from numba.core import errors

    fixer_class: Any = errors.WarningsFixer  # type: ignore[attr-defined]
    here = threading.get_ident()
    original = fixer_class.catch_warnings

    def catch_warnings(fixer: Any, filename: Any = None, lineno: Any = None) -> Any:
        return nullcontext() if threading.get_ident() == here else original(fixer, filename, lineno)

    fixer_class.catch_warnings = catch_warnings
    try:
        yield
    finally:
        fixer_class.catch_warnings = original


_preparation = _Preparation()

_PATIENCE = 2000
"""Tensors processed in NumPy before compilation begins automatically."""

_MANY = 1 << 25
"""Elements processed in NumPy before compilation begins: half a second, about its cost when cached."""

_vain = itertools.count()
_looked_at = 0


def prepare(wait: bool = False) -> None:
    """Start compiling the fast pass in a daemon thread, once; with `wait`, return when it is done.

    Never raises: if numba cannot be imported or cannot compile, the plain pass stays in use and
    `failure` returns the reason.
    """
    _preparation.start()
    if wait:
        _preparation.finished.wait()


def abandon() -> None:
    """Do not wait for a compilation at exit; `os._exit` must end the process."""
    _preparation.stopping.set()
    atexit.unregister(_preparation.stop)


def ready() -> bool:
    """Return True once every dtype of `NAMES` is compiled."""
    return len(kernels) == len(NAMES)


def failure() -> str | None:
    """Return why preparing the compiled pass failed; None if it did not."""
    return _preparation.failure


def address_of(raw: np.ndarray[Any, Any]) -> int:
    """Return the address of a one-dimensional contiguous u8 array, by the fastest available way."""
    address = _preparation.address
    return int(raw.ctypes.data) if address is None else address(raw)


def looked_at(elements: int) -> None:
    """Count elements processed in NumPy; compile once there are many, even in few tensors."""
    global _looked_at
    before = _looked_at
    _looked_at = before + elements
    if before < _MANY <= _looked_at:
        prepare()


def kernel_of(name: str) -> Kernel | None:
    """Return the compiled pass for a short dtype name; None if it is not ready, or there is none.

    After enough requests in vain, compilation begins: a long run starts it automatically, and a short
    one never pays for it.
    """
    dtype = dtypes.NUMPY.get(name)
    kernel = None if dtype is None else kernels.get(dtype)
    if kernel is None and next(_vain) == _PATIENCE:
        prepare()
    return kernel
