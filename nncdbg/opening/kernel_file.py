"""Kernel files: the backends of statements, as `nncdbg autotune` writes them and `--kernels` reads them.

A kernel file is JSON::

    {"nncdbg_kernels": 1, "kernels": {"%h": "torch", "@layer.%y": "numpy", "12 Conv": "numpy"}}

Its other keys are the measurements behind the choice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from nncdbg.engine.errors import UsageError

VERSION = 1


class _File(msgspec.Struct):
    nncdbg_kernels: int
    kernels: dict[str, str]


def read_kernels(kernel_file: str | os.PathLike[str]) -> dict[str, str]:
    """Return the argument `kernels` of a run from a kernel file: backends by op, value or line.

    `kernel_file` is a file that `nncdbg autotune` wrote.  Raises UsageError for other files.
    """
    name = os.fspath(kernel_file)
    try:
        document = msgspec.json.decode(Path(name).read_bytes(), type=_File)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"cannot read the kernel file {name}: {reason}", hint="write one: nncdbg autotune MODEL -o FILE"
        ) from None
    if document.nncdbg_kernels != VERSION:
        raise UsageError(
            f"{name} has unsupported kernel file version {document.nncdbg_kernels}",
            hint=f"use version {VERSION}",
        )
    return document.kernels


def kernel_file_text(measured: Mapping[str, Any]) -> str:
    """Return the text of a kernel file; `measured` is a tuning as a dictionary, with its `kernels`."""
    return json.dumps({"nncdbg_kernels": VERSION, **measured}, indent=1) + "\n"
