"""Exported PyTorch programs (`.pt2`, `torch.export.ExportedProgram`), with the modules as layers.

Nodes of the exported graph become statements; parameters, buffers and constants are read from a store in
memory.  The example inputs with which a program was exported are its saved inputs.  Symbolic sizes keep their
names; `torch.cond` is an `if`, `while_loop`, `map` and `scan` are loops.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nncdbg.engine.frontends.exported.block import ExportedBlock, ExportedNames, type_of
from nncdbg.engine.frontends.exported.calls import positional_arguments, quiet, tracing
from nncdbg.engine.frontends.layers import group_layers
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import Array, Constant, Graph, Program, Reference, SavedRun, Value
from nncdbg.text.torch_names import installed

# -- conversion ------------------------------------------------------------------------------------


class ExportedConversion:
    """Converts one `torch.export.ExportedProgram`."""

    def __init__(self, exported: Any) -> None:
        self._exported = exported
        self._arrays: dict[str, Array] = {}
        self._inputs: list[Value] = []
        signature = exported.graph_signature
        new_buffers = {
            specification.arg.name: f"{specification.target}.1"
            for specification in signature.output_specs
            if specification.target is not None and hasattr(specification.arg, "name")
        }
        nodes = exported.graph.nodes
        reserved = {node.name for node in nodes} | {
            each.target for each in signature.input_specs if each.target
        }
        self._block = ExportedBlock(
            exported.graph_module,
            ExportedNames({*reserved, *new_buffers.values()}, new_buffers),
            self._arrays,
        )

    def program(self, *, flat: bool) -> Program:
        """Return the program; with `flat`, as one graph.  Raises GraphError for what it cannot hold."""
        block = self._block
        self._placeholders()
        block.convert()
        outputs = tuple(self._outputs())
        graph = Graph("main", tuple(self._inputs), outputs, tuple(block.nodes), tuple(block.constants))
        claim = partial(claimed_name, used={"main"}, first=2)
        graphs = [graph] if flat else group_layers(graph, block.scopes, claim, block.classes)
        return Program(
            {each.name: each for each in graphs},
            "main",
            stores=("weights",),
            readers=(ArrayStore(self._arrays),),
            notes=tuple(self._ranges()),
            saved=SavedRun(backend="torch", inputs=self._examples()),
        )

    def _placeholders(self) -> None:
        from nncdbg.engine.ops.aten.arrays import host_array

        kept = {**self._exported.state_dict, **self._exported.constants}
        nodes = [node for node in self._exported.graph.nodes if node.op == "placeholder"]
        for node, specification in zip(nodes, self._exported.graph_signature.input_specs, strict=True):
            name = specification.target or node.name
            type_ = type_of(node.meta.get("val"))
            if type_ is None or getattr(specification.arg, "value", None) is not None:
                continue
            self._block.bind(node, name)
            if specification.target is None:
                self._inputs.append(Value(name, type_))
            else:
                self._arrays[name] = host_array(kept[name])
                self._block.constants.append(Constant(Value(name, type_), Reference(name)))

    def _outputs(self) -> Iterator[Value]:
        (output,) = (node for node in self._exported.graph.nodes if node.op == "output")
        for node in dict.fromkeys(each for each in output.args[0] if hasattr(each, "meta")):
            name = self._block.known(node)
            if name is not None:
                yield Value(name, type_of(node.meta.get("val")))

    def _ranges(self) -> Iterator[str]:
        """Yield a note for each symbolic size of an input with a limit."""
        sizes = {size for value in self._inputs for size in getattr(value.type, "shape", ()) or ()}
        for symbol, allowed in self._exported.range_constraints.items():
            if str(symbol) not in sizes:
                continue
            low, high = int(allowed.lower), allowed.upper
            if high < _LARGEST:
                yield f"the program was exported for sizes {symbol} from {low} to {int(high)}"
            elif low > 2:
                yield f"the program was exported for sizes {symbol} of at least {low}"

    def _examples(self) -> dict[str, Array]:
        """Return the inputs with which the program was exported."""
        from nncdbg.engine.ops.aten.arrays import host_array

        if not self._exported.example_inputs:
            return {}
        import numpy as np
        import torch.utils._pytree as pytree

        flat = pytree.tree_leaves(self._exported.example_inputs)
        names = [
            specification.arg.name
            for specification in self._exported.graph_signature.input_specs
            if specification.target is None
        ]
        if len(flat) != len(names):
            return {}
        wanted = {value.name for value in self._inputs}
        return {
            name: host_array(each) if hasattr(each, "dtype") else np.asarray(each)
            for name, each in zip(names, flat, strict=True)
            if name in wanted
        }


_LARGEST = 2**62
"""Sizes from this one on are no limit."""


def needs_decomposition(module: Any) -> bool:
    """Return whether a node of a graph module, or of one inside, writes to an operand or runs under autocast.

    Decomposed programs have neither: casts are operators there.
    """
    return any(
        _writes(node.target) or getattr(node.target, "__name__", "") == "wrap_with_autocast"
        for each in module.modules()
        if hasattr(each, "graph")
        for node in each.graph.nodes
    )


def _writes(target: Any) -> bool:
    from nncdbg.engine.ops.aten.internals import OpOverload
    from nncdbg.engine.ops.aten.signatures import signature_of

    return isinstance(target, OpOverload) and bool(signature_of(target).writes)


# -- loading ---------------------------------------------------------------------------------------


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
            reason = str(error).strip().partition("\n")[0]
            raise LoadError(
                f"torch cannot read {path}: {type(error).__name__}: {reason}",
                hint="save the program again with torch.export.save, with this version of torch",
            ) from error
    return replace(program, source=str(path), notes=(*program.notes, *notes))


def from_exported(exported: Any, *, flat: bool = False) -> Program:
    """Return the program of a `torch.export.ExportedProgram`.

    Raises GraphError for an operation that a program cannot hold.
    """

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
