"""Exported PyTorch programs (`.pt2`, `torch.export.ExportedProgram`), with the modules as layers.

Nodes of the exported graph become statements; parameters, buffers and constants are read from a store in
memory.  The example inputs with which a program was exported are its saved inputs.  Symbolic sizes keep their
names; `torch.cond` is an `if`, `while_loop`, `map` and `scan` are loops.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nncdbg.engine.errors import LoadError, NncdbgError, UsageError
from nncdbg.engine.frontends.exported.calls import positional_arguments, quiet, tracing
from nncdbg.engine.ops.aten.names import installed
from nncdbg.ir.records import Program


def load(path: Path, *, flat: bool = False, stores: Sequence[Path] = ()) -> Program:
    """Return the program in a `.pt2` file; with `flat`, as one graph.  `stores` are not used.

    Reading runs no code of the file (`archive.py`).  Raises LoadError if torch is not installed or the file
    is no archive of an exported program, GraphError for an operation that a program cannot hold.
    """
    if not installed():
        raise LoadError(
            f"{path} needs the package torch, which is not installed", hint="pip install nncdbg[torch]"
        )
    if not os.path.isfile(path):
        raise LoadError(f"{path} does not exist", hint="save one with torch.export.save(program, path)")
    from nncdbg.engine.ops.aten.versions import check_version

    try:
        check_version()
    except UsageError as error:
        raise LoadError(error.message, hint=error.hint) from None
    with quiet():
        try:
            from nncdbg.engine.frontends.exported.archive import read

            exported, notes = read(path)
            program = from_exported(exported, flat=flat)
        except NncdbgError:
            raise
        except Exception as error:
            raise LoadError(
                f"torch cannot read {path}: {type(error).__name__}: {_first_line(str(error))}",
                hint="save the program again with torch.export.save, with this version of torch",
            ) from error
    return replace(program, source=str(path), notes=(*program.notes, *notes))


def from_exported(exported: Any, *, flat: bool = False) -> Program:
    """Return the program of a `torch.export.ExportedProgram`.

    Raises GraphError for an operation that a program cannot hold.
    """
    from nncdbg.engine.frontends.exported.conversion import ExportedConversion, needs_decomposition

    if needs_decomposition(exported.graph_module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch calls its own deprecated names
            exported = exported.run_decompositions({})
    return ExportedConversion(exported).program(flat=flat)


def from_module(module: Any, arguments: Any, *, flat: bool = False) -> Program:
    """Return the program of a PyTorch module called with these arguments, as `torch.export` traces it.

    `arguments` is a tuple, or the only argument if it is a tensor.  Raises UsageError for arguments that the
    module cannot take, LoadError if it cannot be exported, and GraphError as `from_exported`.
    """
    import torch

    given, what = positional_arguments(arguments), f"torch.export cannot export {type(module).__name__}"
    with tracing(what, module, given, {}, "record a run instead, with nncdbg.torch.record"):
        exported = torch.export.export(module, given)
    return from_exported(exported, flat=flat)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
