"""Kernel files: the backends of statements, as `nncdbg autotune` writes them and `--kernels` reads them.

A kernel file is JSON::

    {"nncdbg_kernels": 1, "kernels": {"%h": "torch", "@layer.%y": "numpy", "12 Conv": "numpy"}}

Its other keys are the measurements behind the choice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from nncdbg.engine.process.json_document import DocumentKind

VERSION = 1


class _File(msgspec.Struct):
    nncdbg_kernels: int
    kernels: dict[str, str]


_KIND = DocumentKind(
    "kernel file", _File, "nncdbg_kernels", "write one: nncdbg autotune MODEL -o FILE", VERSION
)


def read_kernels(kernel_file: str | os.PathLike[str]) -> dict[str, str]:
    """Return the argument `kernels` of a run from a kernel file: backends by op, value or line.

    `kernel_file` is a file that `nncdbg autotune` wrote.  Raises UsageError for other files.
    """
    return _KIND.read(kernel_file).kernels


def kernel_file_text(measured: Mapping[str, Any]) -> str:
    """Return the text of a kernel file; `measured` is a tuning as a dictionary, with its `kernels`."""
    return json.dumps({"nncdbg_kernels": VERSION, **measured}, indent=1) + "\n"
