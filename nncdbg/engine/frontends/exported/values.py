"""Types of the values of an exported graph, and errors that name a node."""

from __future__ import annotations

from typing import Any, NoReturn

from nncdbg.engine.errors import GraphError
from nncdbg.engine.frontends.exported.places import place_of
from nncdbg.ir.records import TensorType


def type_of_node(node: Any) -> TensorType | None:
    """Return the type of a node's result as `type_of` does; an error has the node's source line."""
    try:
        return type_of(node.meta.get("val"))
    except GraphError as error:
        location, _ = place_of(node)
        error.source = str(location) if location is not None else None
        raise


def type_of(value: Any) -> TensorType | None:
    """Return the type of a tensor without data, or of a symbolic number; None for other values.

    Raises GraphError for a dtype that a program cannot hold.
    """
    import torch

    from nncdbg.engine.ops.aten.signatures import DTYPES

    if isinstance(value, torch.Tensor):
        if value.dtype not in DTYPES:
            raise GraphError(
                f"a program cannot hold a tensor of {str(value.dtype).removeprefix('torch.')}",
                hint="record a run instead: nncdbg.torch.record keeps such results",
            )
        return TensorType(DTYPES[value.dtype], tuple(map(_size, value.shape)))
    for kinds, dtype in (
        ((bool, torch.SymBool), "bool"),
        ((int, torch.SymInt), "i64"),
        ((float, torch.SymFloat), "f64"),
    ):
        if isinstance(value, kinds):
            return TensorType(dtype, ())
    return None


def _size(size: Any) -> int | str:
    text = str(size)
    return int(text) if text.isdigit() else text


def refuse(node: Any, reason: str = "this operation is not supported in an exported program") -> NoReturn:
    """Raise GraphError for a node, with its source line."""
    location, _ = place_of(node)
    raise GraphError(
        f"{node.name} = {node.target}: {reason}",
        source=str(location) if location is not None else None,
        hint="record a run instead: nncdbg.torch.record",
    )
