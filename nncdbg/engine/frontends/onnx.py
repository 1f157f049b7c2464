"""ONNX models as programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nncdbg.engine.compilation.code import initial_data
from nncdbg.engine.errors import GraphError
from nncdbg.engine.frontends.declared_types import stale_shape_notes
from nncdbg.engine.frontends.onnx_file import check_model, read_model
from nncdbg.engine.frontends.onnx_graph import Conversion
from nncdbg.engine.frontends.onnx_node import domain_of
from nncdbg.engine.frontends.onnx_store import OnnxStore, subgraphs_of
from nncdbg.engine.frontends.onnx_training import TrainingConversion, bound_tensors, training_note
from nncdbg.engine.process.collector import collector_paused
from nncdbg.ir.records import Array, Program

MEMORY = "<memory>"
"""The store name of a model without a file."""


@collector_paused()
def load(path: Path, *, flat: bool = False, stores: Sequence[Path] = (), training: bool = False) -> Program:
    """Return the program in an .onnx file; its weights are read from the file when needed.

    `stores` applies to graph text only: external data is always below the model's folder.  With `training`,
    the program is the training of the model.

    Raises LoadError for an incomplete or damaged file or missing external data, and GraphError for a
    cycle, or a value that is undefined or defined twice.
    """
    return program_of(read_model(path), path, flat=flat, training=training)


@collector_paused()
def from_model(model: Any, *, flat: bool = False, training: bool = False) -> Program:
    """Return the program in an `onnx.ModelProto`, which must not change while the program is used."""
    check_model(model, "the onnx.ModelProto")
    return program_of(model, None, flat=flat, training=training)


def open_store(path: Path) -> OnnxStore:
    """Return the tensors of an .onnx file.  Raises LoadError as `load` does."""
    return OnnxStore(read_model(path), path.parent, (open_store, (path,)))


def _opened_again(path: Path) -> OnnxStore:
    """Return the store of a program that was read from an .onnx file."""
    return _store_of(with_blocks_inlined(read_model(path)), path)


def _store_of(model: Any, path: Path | None) -> OnnxStore:
    return OnnxStore(model) if path is None else OnnxStore(model, path.parent, (_opened_again, (path,)))


def weights(path: Path) -> dict[str, Array]:
    """Return the constants of the graph in an .onnx file by name, and the tensors that its training binds."""
    model = read_model(path)
    program = program_of(model, path, flat=True)
    found = {each.value.name: initial_data(each, program) for each in program.graph.constants}
    store = OnnxStore(model, path.parent)
    bound = {name: store.read(store.key_of(place, name)) for name, (place, _) in bound_tensors(model).items()}
    return bound | found


def program_of(model: Any, path: Path | None, *, flat: bool, training: bool = False) -> Program:
    """Return the program of a model that was read from `path`, or created in memory; or its training."""
    model = with_blocks_inlined(model)
    store = _store_of(model, path)
    try:
        if training:
            opened = TrainingConversion(model, store, opsets_of(model), flat=flat)
            program = opened.program(path, path.name if path else MEMORY)
            return replace(program, notes=_notes(opened.conversion))
        return _inference_program(model, path, store, flat)
    except RecursionError:
        raise GraphError(
            f"functions and branches in {path or 'the model'} are nested too deeply",
            hint="inline its functions: onnx.inliner.inline_local_functions(model)",
        ) from None


def _inference_program(model: Any, path: Path | None, store: OnnxStore, flat: bool) -> Program:
    opsets = opsets_of(model)
    conversion = Conversion(model.functions, store, flat=flat, opsets=opsets)
    entry = conversion.entry(model.graph)
    refers = conversion.references > 0
    return Program(
        graphs=conversion.graphs,
        entry=entry,
        stores=(path.name if path else MEMORY,) if refers else (),
        opsets=opsets,
        source=str(path) if path else None,
        readers=(store,) if refers else (),
        notes=(*_notes(conversion), *training_note(model)),
    )


def _notes(conversion: Conversion) -> tuple[str, ...]:
    """Return the notes about declared shapes that were replaced, and about nodes that were sorted."""
    notes = [*stale_shape_notes(conversion.stale), *conversion.unknown_attributes]
    if not conversion.reordered:
        return tuple(notes)
    graphs = ", ".join(f"@{name}" for name in dict.fromkeys(conversion.reordered))
    words = f"the file lists nodes of {graphs} before nodes that they read; they run in topological order"
    return (*notes, words)


_BLOCKS = frozenset({("", "SequenceMap"), ("ai.onnx.preview", "FlexAttention")})
"""Ops that ONNX defines by a function around their own subgraphs."""


def with_blocks_inlined(model: Any) -> Any:
    """Replace ops with subgraphs, except control flow, by their function bodies.

    Requires ONNX's inliner, because a subgraph uses names of the surrounding graph.
    """
    if not _has_blocks(model.graph) and not any(map(_has_blocks, model.functions)):
        return model
    from onnx.inliner import inline_selected_functions

    try:
        return inline_selected_functions(model, sorted(_BLOCKS), inline_schema_functions=True)
    except (ValueError, RuntimeError) as error:
        names = " or ".join(sorted(local for _, local in _BLOCKS))
        raise GraphError(f"ONNX cannot expand a {names} in the model: {error}") from error


def _has_blocks(graph: Any) -> bool:
    return any(
        (domain_of(node.domain), node.op_type) in _BLOCKS
        or any(_has_blocks(inner) for _, inner in subgraphs_of(node))
        for node in graph.node
    )


def opsets_of(model: Any) -> dict[str, int]:
    """Return the version of each domain, including the domains that functions import.

    If the model imports a domain twice, the newer version applies, as in onnxruntime.
    """
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = domain_of(entry.domain)
        opsets[domain] = max(opsets.get(domain, int(entry.version)), int(entry.version))
    for entry in (entry for function in model.functions for entry in function.opset_import):
        opsets.setdefault(domain_of(entry.domain), int(entry.version))
    return opsets or {"": 1}
