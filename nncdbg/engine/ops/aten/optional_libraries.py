"""Libraries in C++ for what Python can do as well: used once they are compiled."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from nncdbg.engine.ops.aten.cpp_libraries import CppLibrary

SWITCH = "NNCDBG_TORCH_KERNELS"
"""The environment variable: "off" leaves all to Python, "now" waits for the compiler."""

_LONGEST = 600
"""Seconds after which a compilation that has not ended counts as given up."""


_IN_THE_BACKGROUND = """
import contextlib, os
os.nice(19)
if hasattr(os, "SCHED_IDLE"):
    with contextlib.suppress(PermissionError):  # A container may refuse it.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
from {} import LIBRARY
LIBRARY.prepare()
"""
"""The program that compiles a library.

It uses a processor only when no other process does: threads of torch wait for each other, so that a training
would otherwise wait for the compiler.
"""


class OptionalLibrary:
    """An extension module of Python with one source file, for functions that exist in Python too.

    `owner` is the module whose `LIBRARY` this is, `user` and `name` are as for a `CppLibrary`.  With
    `patience`, so many uses in vain let it be compiled in the background.
    """

    def __init__(
        self, source: Path, owner: str, user: str, name: str, *, patience: int | None = None
    ) -> None:
        self._library = CppLibrary(source, user, name, f"set {SWITCH}=off", python=True)
        self._owner = owner
        self._patience = patience
        self._vain: Iterator[int] = itertools.count()
        self._failed = False
        """Whether the library that is kept could not be loaded."""
        self._module: Any = None

    @cached_property
    def path(self) -> Path:
        """Return where the library is kept."""
        return self._library.path

    def module(self) -> Any | None:
        """Return the module; None if it is not compiled yet, cannot be loaded, or is not wanted.

        Raises UsageError if the environment requests it now and it cannot be compiled.
        """
        switch = os.environ.get(SWITCH)
        if switch == "off":
            return None
        if switch == "now":
            self.prepare()
        if self._module is None and not self._failed and self.path.is_file():
            self._module = self._load()
            self._failed = self._module is None
        if self._module is None and next(self._vain) == self._patience:
            self.compile_later()
        return self._module

    def prepare(self) -> None:
        """Compile the library now, unless it is kept already.  Raises UsageError if it cannot be compiled."""
        if not self.path.is_file():
            self._library.compile()

    def compile_later(self) -> None:
        """Compile in a process of its own, which outlives this one, unless another process does so now.

        Does nothing if the library is kept already, or not wanted.
        """
        if os.environ.get(SWITCH) == "off" or self.path.is_file():
            return
        mark = self.path.with_suffix(".begun")
        try:
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if mark.exists() and time.time() - mark.stat().st_mtime < _LONGEST:
                return
            mark.touch()
            subprocess.Popen(
                [sys.executable, "-c", _IN_THE_BACKGROUND.format(self._owner)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Not a session: Linux gives each one the same share of the processor.
            )
        except OSError:
            # A cache folder that cannot be written to: Python does the work.
            return

    def _load(self) -> Any | None:
        name = self._library.source.stem
        loader = importlib.machinery.ExtensionFileLoader(name, str(self.path))
        spec = importlib.util.spec_from_file_location(name, self.path, loader=loader)
        assert spec is not None
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError:
            # Compiled for another machine that shares the cache folder, or not complete.
            return None
        return module
