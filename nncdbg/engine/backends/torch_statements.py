"""Statements on torch without Python between their kernels: the types of the library torch_kernels.cpp.

The library does what functions of Python do as well, with the same bits.  It is compiled in the background
once a program has many statements; until then, and without a compiler, these functions run.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.cpp_libraries import CppLibrary
from nncdbg.engine.ops.aten.internals import out_form, pointwise_tag
from nncdbg.engine.ops.aten.names import overwrites
from nncdbg.engine.ops.aten.signatures import Signature

if TYPE_CHECKING:
    from nncdbg.engine.backends import Call, Execute
    from nncdbg.engine.backends.torch_arguments import ArgumentSource, CallArguments

SWITCH = "NNCDBG_TORCH_KERNELS"
"""The environment variable: "off" runs all statements from Python, "now" waits for the compiler."""

_LIBRARY = CppLibrary(
    Path(__file__).with_name("torch_kernels.cpp"),
    "the backend torch",
    "the loop over its kernels",
    f"set {SWITCH}=off",
    python=True,
)

_PATIENCE = 1000
"""Statements linked in vain before compilation begins."""

_LONGEST = 600
"""Seconds after which a compilation that has not ended counts as given up."""

_vain = itertools.count()

_TENSORS = frozenset({"Tensor", "List[Tensor]", "Optional[Tensor]"})
"""The types of results that the library accepts."""


def compiled_statements() -> Any | None:
    """Return the module of the library; None if it is not compiled yet, cannot be loaded, or is not wanted.

    Raises UsageError if the environment requests it now and it cannot be compiled.
    """
    switch = os.environ.get(SWITCH)
    if switch == "off":
        return None
    if switch == "now":
        prepare()
    found = _loaded()
    if found is None and next(_vain) == _PATIENCE:
        _compile_later()
    return found


def prepare() -> None:
    """Compile the library now, unless it is kept already.  Raises UsageError if it cannot be compiled."""
    if not _path().is_file():
        _LIBRARY.compile()


@cache
def _path() -> Path:
    return _LIBRARY.path


_module: Any = None


def _loaded() -> Any | None:
    global _module
    if _module is None and _path().is_file():
        _module = _load()
    return _module


@cache
def _load() -> Any | None:
    name = "torch_kernels"
    loader = importlib.machinery.ExtensionFileLoader(name, str(_path()))
    spec = importlib.util.spec_from_file_location(name, _path(), loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:
        # Compiled for another machine that shares the cache folder, or not complete: Python's calls remain.
        return None
    return module


def _compile_later() -> None:
    """Compile in a process of its own, which outlives this one, unless another process does so now."""
    mark = _path().with_suffix(".begun")
    try:
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if mark.exists() and time.time() - mark.stat().st_mtime < _LONGEST:
            return
        mark.touch()
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        # A cache folder that cannot be written to: Python's calls remain.
        return


def kernel_of(
    call: Call, found: Signature, arguments: CallArguments, direct: bool, otherwise: Execute
) -> Execute | None:
    """Return the call of an operator by the library; None without it, and for a call that only Python makes.

    `direct` tells that the operands come first.  `otherwise` is the function in Python.
    """
    library = compiled_statements()
    if library is None or found.random or found.allocates or not _TENSORS.issuperset(found.results):
        return None
    sources = _sources(found, arguments)
    if any(source is not None and source.numbers for source in sources):
        return None
    replaces = direct and found.in_place
    into = out_form(found.overload) if replaces else None
    try:
        kernel: Execute = library.Kernel(
            operator=_name(found.overload),
            into=None if into is None else _name(into),
            sources=tuple([None if each is None else _encoded(each) for each in sources]),
            operands=len(call.node.inputs),
            outputs=len(call.node.outputs) if call.several else -1,
            overwrites=replaces and overwrites(found.name),
            has_results=bool(found.results),
            replaced=0 if replaces and pointwise_tag in found.overload.tags else -1,
            otherwise=otherwise,
        )
        return kernel
    except (TypeError, ValueError, RuntimeError):
        # Torch does not accept an argument: `otherwise` raises its error when the statement runs.
        return None


def _sources(found: Signature, arguments: CallArguments) -> list[ArgumentSource | None]:
    """Return the source of each argument in the order of the schema, None for its default."""
    positional = iter(arguments.positional)
    return [
        arguments.keywords.get(each.name) if each.keyword_only else next(positional)
        for each in found.arguments
    ]


def _encoded(source: ArgumentSource) -> tuple[int, int, bool, bool, Any]:
    return source.start, source.stop, source.written, source.several, source.constant


def _name(overload: Any) -> tuple[str, str]:
    """Return the name of an operator and of its overload, as torch's dispatcher has them."""
    schema = overload._schema
    return schema.name, schema.overload_name


if __name__ == "__main__":
    # Most often a process in the background (see `_compile_later`).
    os.nice(10)
    try:
        prepare()
    except UsageError as error:
        sys.exit(f"error: {error}")
