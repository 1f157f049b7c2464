"""Libraries in C++ for the installed torch: compiled once, and kept in the user's cache folder.

Those for what Python can do as well are used once they are compiled.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import itertools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nncdbg.errors import UsageError
from nncdbg.process.files import cache_folder

_COMPILERS = ("c++", "g++", "clang++")
"""Searched in this order, unless the environment variable CXX names one."""

# Without NDEBUG, at::RecordFunction has one more member than in the library of torch.
_FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-shared")

_ERROR_LINES = 8
"""The last lines of the compiler's output that an error quotes."""


@dataclass(frozen=True, slots=True)
class CppLibrary:
    """A library with one source file, which may include others of nncdbg by their relative path.

    With `python`, it is an extension module of this version of Python.

    `user` and `name` are what errors call it: ``the tier native`` cannot compile ``its observer``.
    `otherwise` ends the hint of what to do without a compiler.
    """

    source: Path
    user: str
    name: str
    otherwise: str
    python: bool = False

    @property
    def path(self) -> Path:
        """Return where the library is kept: one for each source, version of torch and kind of machine."""
        parts = (
            *self._texts(),
            *_FLAGS,
            torch.__version__,
            str(torch.version.git_version),
            sys.platform,
            platform.machine(),
            *platform.libc_ver(),
            sysconfig.get_config_var("SOABI") if self.python else "",
        )
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        return cache_folder() / self.source.stem / f"{key}.so"

    def _texts(self) -> Iterator[str]:
        """Yield the texts of the source file and of the files of nncdbg that it includes."""
        text = self.source.read_text(encoding="utf-8")
        yield text
        for name in re.findall(r'^#include "(.+)"', text, re.MULTILINE):
            yield (self.source.parent / name).read_text(encoding="utf-8")

    def compile(self) -> None:
        """Compile to a folder of its own, then rename: another process may compile or load the same library.

        Raises UsageError without a compiler, and for a library that cannot be compiled or kept.
        """
        compiler, path = self._compiler(), self.path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                draft = Path(folder) / path.name
                command = [*compiler, *self._arguments(), "-o", str(draft)]
                done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
                if done.returncode == 0:
                    draft.replace(path)
        except OSError as error:
            raise UsageError(
                f"{self.user} cannot compile {self.name}: {error}",
                hint="set XDG_CACHE_HOME to a folder that can be written to",
            ) from None
        if done.returncode != 0:
            last = "\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
            raise UsageError(
                f"{self.user} cannot compile {self.name}: {shlex.join(compiler)} ended with code "
                f"{done.returncode}:\n{last}",
                hint=f"set CXX to a compiler with C++20, such as g++ 11, or {self.otherwise}",
            )

    def _compiler(self) -> list[str]:
        """Return the command of a C++ compiler.  Raises UsageError without one."""
        named = shlex.split(os.environ.get("CXX", ""))
        for command in [named] if named else [[name] for name in _COMPILERS]:
            if shutil.which(command[0]):
                return command
        missing = f"CXX names {named[0]}, which does not exist" if named else "there is no C++ compiler"
        raise UsageError(
            f"{self.user} cannot compile {self.name}: {missing}",
            hint=f"install g++ or clang++, or {self.otherwise}",
        )

    def _arguments(self) -> list[str]:
        """Return the arguments of the compiler, without its output."""
        package = Path(torch.__file__).parent
        libraries = ["-ltorch_python"] if self.python else []
        # The process has torch's libraries already: macOS finds their symbols there, Linux by their names.
        link = (
            ["-undefined", "dynamic_lookup"]
            if sys.platform == "darwin"
            else [f"-L{package / 'lib'}", *libraries, "-ltorch_cpu", "-lc10"]
        )
        headers = [package / "include", package / "include/torch/csrc/api/include"]
        if self.python:
            headers.append(Path(sysconfig.get_path("include")))
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        return [*_FLAGS, abi, *[f"-I{folder}" for folder in headers], str(self.source), *link]


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
