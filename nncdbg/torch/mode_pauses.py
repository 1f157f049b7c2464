"""Leave a dispatch mode where its operators do not matter, and hide the operators of nncdbg.

Both classes exist in guard_kernels.cpp too, with the same names: a step of a training needs each several
times, when none of the code is in the processor's caches.
"""

from __future__ import annotations

from typing import Any, Protocol

from nncdbg.engine.ops.aten.internals import (
    MODE_FLAGS,
    DispatchMode,
    check_whole_graphs,
    count_whole_graphs,
    innermost_mode,
    mode_flags,
    tell_compiler_of_mode,
    unseen_by_functions,
)
from nncdbg.torch.origin_watch import OriginWatch


class Pause(Protocol):
    """The pauses of a dispatch mode, which may be nested: the mode is left while one lasts."""

    depth: int
    """The number of pauses that last now; 1 before `start`, and after `stop`."""

    def start(self) -> None:
        """Enter the mode on this thread."""

    def stop(self) -> None:
        """Leave the mode until `start`."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def is_innermost(self) -> bool:
        """Return whether the mode is entered, and no mode of the user after it."""


class OwnWork(Protocol):
    """Nested blocks whose operators are those of nncdbg: a watch is inactive in them.

    No function mode and no subclass of the user sees the functions that are called in them.
    """

    depth: int
    """The number of blocks that run now."""
    watch: OriginWatch | None

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def new_pause(mode: DispatchMode, library: Any | None, *, enters: bool) -> Pause:
    """Return the pauses of a mode, made by the library if there is one.

    Without `enters`, pauses are only counted.
    """
    if library is None or tell_compiler_of_mode is None:
        return _Pause(mode, enters)
    pause: Pause = library.Pause(
        mode, mode_flags, *MODE_FLAGS, tell_compiler_of_mode, count_whole_graphs, enters
    )
    return pause


def new_own_work(library: Any | None) -> OwnWork:
    """Return blocks of own work, made by the library if there is one."""
    work: OwnWork = _OwnWork() if library is None else library.OwnWork()
    return work


class _Pause:
    """`Pause` in Python."""

    def __init__(self, mode: DispatchMode, enters: bool) -> None:
        self.depth = 1
        self._mode = mode
        self._enters = enters
        self._entered = False
        self._stopped = True

    def start(self) -> None:
        self.depth, self._stopped = 0, False
        self._enter()

    def stop(self) -> None:
        self._leave()
        self.depth, self._stopped = 1, True

    def begin(self) -> None:
        self.depth += 1
        self._leave()

    def end(self) -> None:
        if self._stopped:
            return
        self.depth = max(self.depth - 1, 0)
        if not self.depth:
            self._enter()

    def is_innermost(self) -> bool:
        return self._entered and innermost_mode() is self._mode

    def _enter(self) -> None:
        if self._enters and not self._entered:
            self._mode.__enter__()
            self._entered = True
            check_whole_graphs(False)

    def _leave(self) -> None:
        """Leave the mode; one that the user entered after it must end first, and then this one only idles."""
        if self.is_innermost():
            self._mode.__exit__(None, None, None)
            self._entered = False
            check_whole_graphs(True)


class _OwnWork:
    """`OwnWork` in Python."""

    def __init__(self) -> None:
        self.depth = 0
        self.watch: OriginWatch | None = None
        self._stopped: OriginWatch | None = None
        """The watch that the outermost block has made inactive."""
        self._unseen: Any = None

    def __enter__(self) -> None:
        watch = self.watch
        if not self.depth:
            self._unseen = unseen_by_functions()
            self._unseen.__enter__()
        if not self.depth and watch is not None and watch.active:
            watch.active, self._stopped = False, watch
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth:
            self._unseen.__exit__(None, None, None)
        if not self.depth and self._stopped is not None:
            self._stopped.active, self._stopped = True, None
