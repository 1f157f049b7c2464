"""Find tensors with NaN or Inf among many, in one pass over their memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import norms_of


def suspicious(tensors: Iterable[Any]) -> bool:
    """Return False if every element is finite.

    True means that the sum of squares is not finite: an element is NaN or Inf, or finite ones are so large
    that their squares overflow.  `not_finite` decides.  Costs one pass, and one synchronization per device.
    """
    groups: dict[tuple[Any, Any], list[Any]] = {}
    for tensor in tensors:
        values = _values(tensor)
        if values is not None:
            groups.setdefault((values.device, values.dtype), []).append(values)
    totals = [
        torch.stack(norms_of(group, 2, dtype=_WIDER.get(dtype))).sum() for (_, dtype), group in groups.items()
    ]
    return any(not math.isfinite(abs(total.item())) for total in totals)


def not_finite(tensor: Any) -> str:
    """Return ``"2 NaN, 1 Inf of 12"`` for a tensor with NaN or Inf, otherwise an empty string."""
    values = _values(tensor)
    if values is None:
        return ""
    nans, infinities = int(torch.isnan(values).sum()), int(torch.isinf(values).sum())
    counts = [f"{count} {kind}" for count, kind in ((nans, "NaN"), (infinities, "Inf")) if count]
    return f"{', '.join(counts)} of {values.numel()}" if counts else ""


_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""A norm of half precision is computed in float32, or it overflows."""


def _values(tensor: Any) -> Any:
    """Return the elements of a tensor that can be NaN; None if there are none."""
    values = tensor.detach()
    if values.layout != torch.strided:
        values = (
            values.coalesce().values()
            if values.layout == torch.sparse_coo
            else values.values()
            if values.layout in (torch.sparse_csr, torch.sparse_bsr, torch.sparse_csc, torch.sparse_bsc)
            else None
        )
    if values is None or not (values.is_floating_point() or values.is_complex()) or not values.numel():
        return None
    return values if values.dtype.itemsize > 1 else values.float()
