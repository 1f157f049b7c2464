"""Sources of programs by file suffix, and the stores behind their weights."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nncdbg.engine.errors import LoadError, UsageError
from nncdbg.engine.graph import Program
from nncdbg.engine.stores import Store

_FRONTENDS = {
    ".onnx": "nncdbg.engine.frontends.onnx:load",
    ".nnc": "nncdbg.engine.frontends.text:load",
}
"""Suffix to ``module:function`` of `(path, *, flat) -> Program`."""

_STORES = {
    ".onnx": "nncdbg.engine.frontends.onnx:open_store",
    ".safetensors": "nncdbg.engine.frontends.safetensors:open_store",
}
"""Suffix to ``module:function`` of `(path) -> Store`."""


def load(source: Any, *, flat: bool = False) -> Program:
    """The program in a file (`.onnx`, `.nnc`) or in an `onnx.ModelProto`.

    `flat` leaves module scopes as one graph instead of layers that are called; graph text is
    taken as it is.  Raises LoadError for what cannot be read, GraphError for a wrong graph,
    ParseError for wrong text, UsageError for a source of an unknown kind.
    """
    if isinstance(source, Program):
        return source
    if isinstance(source, (str, os.PathLike)):
        path = Path(os.fsdecode(source))
        program: Program = _find(_FRONTENDS, path, "model")(path, flat=flat)
        return program
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(source, onnx.ModelProto):
        from nncdbg.engine.frontends.onnx import from_model

        return from_model(source, flat=flat)
    raise UsageError(
        f"cannot load a program from a {type(source).__module__}.{type(source).__qualname__}",
        hint=f"give a path to a file ({', '.join(_FRONTENDS)}) or an onnx.ModelProto",
    )


def open_stores(paths: Sequence[str], folder: Path) -> tuple[Store, ...]:
    """The stores that a program text names, relative to `folder`; LoadError if one cannot be opened."""
    return tuple(_open(path, folder) for path in paths)


def attach_stores(program: Program, folder: str | os.PathLike[str] = ".") -> Program:
    """The program with its stores opened, relative to `folder`; LoadError if one cannot be."""
    return replace(program, readers=open_stores(program.stores, Path(folder)))


def _open(name: str, folder: Path) -> Store:
    path = folder / name
    store: Store = _find(_STORES, path, "store")(path)
    return store


def _find(table: dict[str, str], path: Path, kind: str) -> Callable[..., Any]:
    target = table.get(path.suffix.lower())
    if target is None and path.is_dir():
        raise LoadError(f"{path} is a directory", hint=f"give a file in it: {', '.join(table)}")
    if target is None:
        known = ", ".join(table)
        raise LoadError(
            f'{path} has the suffix "{path.suffix}", which is no known {kind}',
            hint=f"known are {known}" + ("" if path.exists() else f"; and there is no file {path}"),
        )
    module, _, function = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
