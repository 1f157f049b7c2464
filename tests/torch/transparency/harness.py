"""Run a program in a forked process, with or without a watch, and return everything that a user can see."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import random
import signal
import sys
import traceback
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch._dynamo

import nncdbg.torch
from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.ops.aten.arrays import host_array

# Each process would import them again.
from nncdbg.nan_watch.training import watching  # noqa: F401
from nncdbg.torch import second_run, step_recording  # noqa: F401
from nncdbg.torch.live import recording_watch  # noqa: F401

LIMIT = 120
"""Seconds after which a program is killed."""

WAYS = ("guard", "hooks", "native", "live", "record")


def seen(function: Any, way: str | None) -> dict[str, Any]:
    """Return what a program says and does under a tier of the watch, in a recording, or alone (None)."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        signal.alarm(LIMIT)
        torch.set_num_threads(1)  # The other threads of the parent do not exist here.
        gc.freeze()  # A search for live objects would copy the memory of the parent.
        os.close(reader)
        try:
            with open(writer, "wb") as file, open(os.devnull, "w") as nothing:
                with contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
                    found = _run(function, way)
                pickle.dump(found, file)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(70)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        content = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code == 0, f"the process ended with {code}"
    return pickle.loads(content)


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
    numbers = torch.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes(), random.getstate()
    return {
        "said": said,
        "error": outcome,
        "alive": sorted(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), kinds)),
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
