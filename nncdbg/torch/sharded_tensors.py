"""Tensors that consist of others: the shards of a `DTensor` on the ranks of a training."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from nncdbg.engine.ops.aten.signatures import DTYPES
from nncdbg.process.rank_notes import SHARD

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes of tensors that have memory of their own."""


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is a `DTensor`, whose parts are on the ranks of a mesh."""
    if tensor.__class__ in PLAIN:
        return False
    module: Any = sys.modules.get("torch.distributed.tensor")  # It takes a second to import.
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Any) -> Any:
    """Return the shard of a `DTensor` on this rank, without communication; others are unchanged."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        local = tensor.to_local()
    return local.wait() if hasattr(local, "wait") else local


def wrapping(classes: Iterable[type]) -> bool:
    """Return whether tensors of one of these classes consist of others; nested tensors do not count."""
    return any(
        hasattr(each, "__tensor_flatten__") and not each.__module__.startswith("torch.nested")
        for each in classes
    )


def inner_tensors(tensor: Any) -> list[tuple[str, Any]]:
    """Return the tensors of which one consists, each with the end of its name; a tensor with memory alone.

    The result of a collective is waited for.
    """
    if tensor.__class__ in PLAIN or not wrapping((tensor.__class__,)):
        return [("", tensor)]
    if hasattr(tensor, "wait"):
        return [("", tensor.wait())]
    attributes, _ = tensor.__tensor_flatten__()
    found = [(each, getattr(tensor, each)) for each in attributes]
    parts = [(name, each) for name, each in found if isinstance(each, torch.Tensor)]
    return [
        (f".{name}{suffix}" if len(parts) > 1 else suffix, inside)
        for name, each in parts
        for suffix, inside in inner_tensors(each)
    ]


def placement(tensor: Any) -> str:
    """Return how a `DTensor` is placed: ``Shard(0) of f32[16,4] on mesh (2,)``; "" for other tensors."""
    if not is_sharded(tensor):
        return ""
    mesh, dtype = tensor.device_mesh, DTYPES.get(tensor.dtype, str(tensor.dtype))
    placed = ", ".join(map(repr, tensor.placements))
    sizes = ", ".join(map(str, mesh.shape))
    names = f" ({', '.join(mesh.mesh_dim_names)})" if mesh.mesh_dim_names else ""
    return f"{placed} of {dtype}[{','.join(map(str, tensor.shape))}] on mesh [{sizes}]{names}"


def shard_of(tensor: Any) -> str | None:
    """Return which shard of a `DTensor` this rank has, as ``[shard 1]``; ranks with the same one agree.

    Empty for a tensor that each rank has as a whole, None for a part of a sum.
    """
    if not is_sharded(tensor):
        return ""
    if any(each.is_partial() for each in tensor.placements):
        return None
    at = zip(tensor.placements, tensor.device_mesh.get_coordinate(), strict=True)
    shards = [str(coordinate) for placed, coordinate in at if not placed.is_replicate()]
    return f"{SHARD}{', '.join(shards)}]" if shards else ""


def meshes_of(tensors: Iterable[Any]) -> list[Any]:
    """Return the meshes of ranks that hold parts of these tensors, in the order of the tensors."""
    return [*dict.fromkeys(each.device_mesh for each in tensors if is_sharded(each))]
