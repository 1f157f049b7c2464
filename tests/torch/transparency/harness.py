"""Run a program in a forked process, with or without a watch, and return everything that a user can see."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch._dynamo

import nncdbg.torch
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.errors import NncdbgError

# Each process would import them again.
from nncdbg.nan_watch.training import watching  # noqa: F401
from nncdbg.torch import second_run, step_recording  # noqa: F401
from nncdbg.torch.live import training  # noqa: F401

LIMIT = 120
"""Seconds after which a program is killed."""

WAYS = ("guard", "hooks", "native", "live", "record")


_PROCESSES: Any = multiprocessing.get_context("forkserver")
"""Forks a process that has no threads, and has torch already."""

_PROCESSES.set_forkserver_preload([__name__, f"{__package__}.programs"])


def seen(name: str, way: str | None) -> dict[str, Any]:
    """Return what a program says and does under a tier of the watch, in a recording, or alone (None)."""
    reader, writer = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_send, args=(writer, name, way))
    process.start()
    writer.close()
    try:
        found: dict[str, Any] = reader.recv()
    except EOFError:
        found = {}
    process.join()
    assert process.exitcode == 0, f"the process ended with {process.exitcode}"
    return found


def _send(writer: Any, name: str, way: str | None) -> None:
    from tests.torch.transparency.programs import PROGRAMS

    signal.alarm(LIMIT)
    gc.freeze()  # A search for live objects would copy the memory of the parent.
    with (
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        found = _run(PROGRAMS[name], way)
    writer.send(found)


def _run(function: Any, way: str | None) -> dict[str, Any]:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    said: list[tuple[str, Any]] = []
    error = refused = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with _around(way):
                try:
                    function(lambda name, value: said.append((name, _plain(value))))
                except BaseException as raised:
                    error = raised
                    raise
        except NncdbgError as raised:
            refused = str(raised)
        except BaseException as raised:  # noqa: BLE001
            error = raised
    outcome = None if error is None else (type(error).__name__, str(error))
    error = None  # Its frames have models.
    gc.collect()
    kinds = torch.nn.Module, torch.optim.Optimizer
    numbers = (
        torch.get_rng_state().numpy().tobytes(),
        repr(np.random.get_state()),
        random.getstate(),
    )
    return {
        "said": said,
        "error": outcome,
        "objects": sorted(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), kinds)),
        "warnings": [_warning(each) for each in warned],
        "random numbers": numbers,
        "traced": sys.gettrace() is None,
        "refused": refused,
    }


def _around(way: str | None) -> AbstractContextManager[Any]:
    if way is None:
        return nullcontext()
    if way == "record":
        return nncdbg.torch.record()
    return nncdbg.torch.watch(tier=way, on_nan="report")


def _warning(warned: warnings.WarningMessage) -> tuple[str, str, str, int]:
    """Return kind, text and place of a warning.

    The lines within torch's own files may differ: torch calls a module with hooks on another one.
    """
    line = 0 if _OF_TORCH in warned.filename else warned.lineno
    return warned.category.__name__, str(warned.message), warned.filename, line


_OF_TORCH = os.path.dirname(torch.__file__)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            value = value.to_dense()
        array = host_array(value.detach().resolve_conj())
        return str(value.dtype), tuple(value.shape), value.requires_grad, array.tobytes()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
