"""The user's source lines and modules of a node of an exported graph."""

from __future__ import annotations

import os
import re
from typing import Any

from nncdbg.engine.frontends.layers import ModulePath
from nncdbg.ir.records import Location

_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')

_MADE = ("<", "torch/fx/passes/")
"""Starts of the names of files that are not the user's: code that torch generates, and its assertions."""

_ROOT = re.compile(r"^L\['\w+'\]\.?")
"""The name of the outermost module in graphs that TorchDynamo traced."""

_NO_MODULE = "_empty_nn_module_stack"
"""The start of the module that torch gives to nodes without one."""


def place_of(node: Any) -> tuple[Location | None, ModulePath]:
    """Return the user's source line of a node, and the modules around it."""
    modules = tuple(classes_of(node))
    lines = user_lines(node.meta.get("stack_trace") or "")
    name = modules[-1] if modules else None
    if not lines:
        return (Location(name=name) if name else None), modules
    (file, line), *callers = lines
    return Location(file, line, name, tuple(callers)), modules


def classes_of(node: Any) -> dict[str, str]:
    """Return the modules around a node, outermost first, and the class of each."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    found = ((_ROOT.sub("", path), kind) for path, kind, *_ in stack.values())
    return {path: _class_name(kind) for path, kind in found if path and not path.startswith(_NO_MODULE)}


def _class_name(kind: Any) -> str:
    return kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__


def user_lines(trace: str) -> list[tuple[str, int]]:
    """Return the lines of a stack trace outside of installed packages, innermost first."""
    found = [(match["file"], int(match["line"])) for match in _LINE.finditer(trace)]
    own = [(file, line) for file, line in found if "-packages/" not in file and not file.startswith(_MADE)]
    folder = os.getcwd() + os.sep
    return [(file.removeprefix(folder), line) for file, line in reversed(own)][:4]
