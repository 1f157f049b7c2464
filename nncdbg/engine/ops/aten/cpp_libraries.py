"""Libraries in C++ for the installed torch: compiled once, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from nncdbg.engine.errors import UsageError
from nncdbg.engine.process.state_folder import cache_folder

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
