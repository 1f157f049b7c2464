"""Repro bundles on the command line: `nncdbg DIR` and its commands take what the bundle says."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.nan_watch.bundles.bundle import Bundle
    from nncdbg.presentation.screen import Screen

DOCUMENT = "nncdbg.json"
"""What makes a folder a bundle."""

PROGRAM = "program.nnc"
"""Its program."""

_SETTINGS = ("backend", "fallback", "allocator", "seed", "max_ops", "fail_on", "strict")
"""Options that a bundle speaks for where the command line is silent."""


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a repro bundle, damaged or not."""
    return os.path.lexists(os.path.join(path, DOCUMENT))


def bundle_at(path: str | os.PathLike[str]) -> Bundle | None:
    """The bundle at a path, None if there is none.  Raises LoadError if it is damaged."""
    if not is_bundle(path):
        return None
    from nncdbg.nan_watch.bundles.bundle import open_bundle

    return open_bundle(Path(path))


def settle(options: argparse.Namespace) -> dict[str, Any]:
    """Fill in the options that nobody gave with what the bundle says; the inputs that it has.

    For a model that is no bundle there are none.

    Raises LoadError if it is damaged, UsageError if it needs an op library that nobody gave.
    """
    bundle = bundle_at(options.model)
    if bundle is None:
        return {}
    settings = bundle.settings
    for name in _SETTINGS:
        if hasattr(options, name) and name not in options.said:
            said = getattr(settings, name)
            setattr(options, name, ",".join(said) if name == "fail_on" else said)
    check_libraries(bundle, options.op_library)
    return dict(bundle.inputs)


def check_libraries(bundle: Bundle, given: Sequence[str]) -> None:
    """UsageError if a bundle needs op libraries and none is given: what it names is never run unasked."""
    if bundle.settings.op_libraries and not given:
        names = ", ".join(bundle.settings.op_libraries)
        raise UsageError(
            f"the bundle {bundle.folder} needs custom kernels: {names}",
            hint="review the Python file, then pass it with --op-library FILE.py",
        )


def go_to_finding(debugger: Debugger, path: str, screen: Screen) -> None:
    """Stop before the statement of a bundle's finding, and say what it is; nothing for another program."""
    bundle = bundle_at(path)
    if bundle is None:
        return
    debugger.go_to(bundle.statements)
    screen.put(f"{bundle.sentence()}; `next` shows it")
