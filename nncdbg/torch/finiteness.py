"""Find tensors with NaN or Inf among many, in one pass over their memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from nncdbg.engine.ops.aten.inspection import is_dense
from nncdbg.engine.ops.aten.internals import norms_of
from nncdbg.stats.preparation import kernel_of


def suspicious(tensors: Iterable[Any]) -> bool:
    """Return False if every element and its square are finite.

    True means that an element is NaN or Inf, or that its square or a sum of squares overflows.
    `not_finite` decides.  Costs one pass, and one synchronization per device.
    """
    groups: dict[tuple[Any, Any], list[Any]] = {}
    for tensor in tensors:
        small = _small_in_memory(tensor)
        if small is False:
            return True
        values = _values(tensor) if small is None else None
        if values is not None:
            groups.setdefault((values.device, values.dtype), []).append(values)
    totals = [
        torch.stack(norms_of(group, 2, dtype=_WIDER.get(dtype))).sum() for (_, dtype), group in groups.items()
    ]
    return any(not math.isfinite(abs(total.item())) for total in totals)


def is_finite(tensor: Any) -> bool:
    """Return whether no element is NaN or Inf; True for a tensor of integers.

    Costs one pass over the memory of a tensor on the CPU, after `nncdbg.stats.prepare`.
    """
    check = _finite_checks.get(tensor.dtype) or _compiled_finite_check(tensor.dtype)
    in_memory = tensor.is_cpu and tensor.layout is torch.strided
    if check is not None and in_memory and (tensor.is_contiguous() or is_dense(tensor)):
        return not tensor.numel() or bool(check(tensor.data_ptr(), tensor.numel()))
    if tensor.dtype not in _COMPILED:
        return _values(tensor) is None or not not_finite(tensor)
    return tensor.is_meta or not suspicious((tensor,)) or not not_finite(tensor)


_finite_checks: dict[torch.dtype, Callable[[int, int], bool]] = {}
"""The compiled `is_finite` of each dtype, once it is compiled."""


def _compiled_finite_check(dtype: torch.dtype) -> Callable[[int, int], bool] | None:
    kernel = kernel_of(_COMPILED.get(dtype, ""))
    if kernel is None or kernel.all_finite is None:
        return None
    return _finite_checks.setdefault(dtype, kernel.all_finite)


_COMPILED = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
"""The dtypes with a compiled pass."""


def not_finite(tensor: Any) -> str:
    """Return ``"2 NaN, 1 Inf of 12"`` for a tensor with NaN or Inf, otherwise an empty string."""
    values = _values(tensor)
    if values is None:
        return ""
    return counted(int(torch.isnan(values).sum()), int(torch.isinf(values).sum()), values.numel())


def counted(nans: int, infinities: int, elements: int) -> str:
    """Return ``"2 NaN, 1 Inf of 12"``; an empty string without NaN and Inf."""
    counts = [f"{count} {kind}" for count, kind in ((nans, "NaN"), (infinities, "Inf")) if count]
    return f"{', '.join(counts)} of {elements}" if counts else ""


_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""A norm of half precision is computed in float32, or it overflows."""


_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that have memory of their own."""

_checks: dict[torch.dtype, Callable[[int, int], bool]] = {}
"""The compiled check of each dtype, once it is compiled."""


def _small_in_memory(tensor: Any) -> bool | None:
    """Return whether all squares are finite, by a compiled pass over host memory; None if there is none."""
    if tensor.__class__ not in _PLAIN or tensor.layout is not torch.strided or not tensor.is_cpu:
        return None
    check = _checks.get(tensor.dtype) or _compiled_check(tensor.dtype)
    if check is None or not (tensor.is_contiguous() or is_dense(tensor)):
        return None
    return bool(check(tensor.data_ptr(), tensor.numel()))


def _compiled_check(dtype: torch.dtype) -> Callable[[int, int], bool] | None:
    kernel = kernel_of(_COMPILED.get(dtype, ""))
    if kernel is None or kernel.squares_finite is None:
        return None
    return _checks.setdefault(dtype, kernel.squares_finite)


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
