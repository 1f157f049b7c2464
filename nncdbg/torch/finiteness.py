"""Find tensors with NaN or Inf among many, in one pass over their memory."""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch

from nncdbg.engine.ops.aten.arrays import is_dense
from nncdbg.engine.ops.aten.internals import norms_of, with_elements, without_dispatch
from nncdbg.stats.preparation import MODERATE, kernel_of
from nncdbg.torch import guard_kernels
from nncdbg.torch.sharded_tensors import PLAIN, local_part


def suspicious(tensors: Sequence[Any]) -> bool:
    """Return False if every element and its square are finite.

    True means that an element is NaN or Inf, or that its square or a sum of squares overflows.
    `not_finite` decides.  Of a `DTensor`, the shard on this rank counts.  Costs one pass, and one
    synchronization per device.
    """
    library = guard_kernels.used
    if library is not None and (finite := library.squares_finite(tensors)) is not None:
        return not finite
    kinds = {*map(kind_of, tensors)}
    if any(class_ not in PLAIN for class_, *_ in kinds):
        tensors = [*map(local_part, tensors)]
        kinds = {*map(kind_of, tensors)}
    others: Sequence[Any] = ()
    for kind in kinds:
        same = tensors if len(kinds) == 1 else [each for each in tensors if kind_of(each) == kind]
        check = _memory_check("squares_finite", kind)
        if check is not None and not all(map(_is_contiguous, same)):
            others = [*others, *(each for each in same if not is_dense(each))]
            same = [each for each in same if is_dense(each)]
        if check is None:
            others = [*others, *same]
        elif not check(same):
            return True
    if not others:
        return False
    with _beside_modes(others):
        return _has_large_norm(others)


def are_moderate(tensors: Sequence[Any]) -> bool:
    """Return whether the magnitude of every element is below ``2**MODERATE``.

    Costs one pass over the memory of dense tensors of floats on the CPU, after `nncdbg.stats.prepare`; False
    for others.
    """
    library = guard_kernels.used
    if library is not None and (moderate := library.moderate(tensors, MODERATE)) is not None:
        return bool(moderate)
    kinds = {*map(kind_of, tensors)}
    for kind in kinds:
        check = _memory_check("moderate", kind)
        same = tensors if len(kinds) == 1 else [each for each in tensors if kind_of(each) == kind]
        if check is None or not (all(map(_is_contiguous, same)) or all(map(is_dense, same))):
            return False
        if not check(same):
            return False
    return True


def _beside_modes(tensors: Iterable[Any]) -> AbstractContextManager[Any]:
    """Return a block whose operators no dispatch mode sees, so not one of the user either.

    Operators on tensors of other classes than torch's own need their dispatch.
    """
    return without_dispatch() if {*map(type, tensors)} <= PLAIN else nullcontext()


def _has_large_norm(tensors: Iterable[Any]) -> bool:
    """Return whether a sum of squares is not finite, as `suspicious` does, for any kind of tensor."""
    groups: dict[tuple[Any, Any], list[Any]] = {}
    for values in map(_values, tensors):
        if values is not None:
            groups.setdefault((values.device, values.dtype), []).append(values)
    totals = [
        (torch.stack(norms_of(group, 2, dtype=_WIDER.get(dtype))).sum(), _ROOTS.get(dtype, math.inf))
        for (_, dtype), group in groups.items()
    ]
    return any(not abs(total.item()) < limit for total, limit in totals)


_ROOTS = {torch.float32: 2.0**64, torch.float64: 2.0**512}
"""The least numbers whose square overflows.  Their norm may be finite: torch adds up in wider numbers."""


def is_finite(tensor: Any) -> bool:
    """Return whether no element is NaN or Inf; True for a tensor of integers.

    Costs one pass over the memory of a tensor on the CPU, after `nncdbg.stats.prepare`.
    """
    tensor = local_part(tensor)
    check = _finite_checks.get(tensor.dtype)
    if check is None and (kernel := kernel_of(_COMPILED.get(tensor.dtype, ""))) is not None:
        check = kernel.all_finite
        if check is not None:
            _finite_checks[tensor.dtype] = check
    in_memory = tensor.is_cpu and tensor.layout is torch.strided
    if check is not None and in_memory and (tensor.is_contiguous() or is_dense(tensor)):
        return not tensor.numel() or bool(check(tensor.data_ptr(), tensor.numel()))
    if tensor.dtype not in _COMPILED:
        return _values(tensor) is None or not not_finite(tensor)
    return not suspicious((tensor,)) or not not_finite(tensor)


def finite_in_memory(tensor: Any) -> bool | None:
    """Return whether no element is NaN or Inf, without an operator; None if that needs one.

    It needs none for a contiguous tensor on the CPU, after `nncdbg.stats.prepare`.
    """
    tensor = local_part(tensor)
    check = _finite_checks.get(tensor.dtype)
    if check is None or not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.is_contiguous():
        return None
    count = tensor.numel()
    return not count or bool(check(tensor.data_ptr(), count))


_finite_checks: dict[torch.dtype, Callable[[int, int], bool]] = {}
"""The compiled `is_finite` of each dtype, once it is compiled."""


_COMPILED = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
"""The dtypes with a compiled pass."""


def not_finite(tensor: Any) -> str:
    """Return ``"2 NaN, 1 Inf of 12"`` for a tensor with NaN or Inf, otherwise an empty string.

    Of a `DTensor`, the shard on this rank counts.
    """
    tensor = local_part(tensor)
    with _beside_modes((tensor,)):
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


kind_of = operator.attrgetter("__class__", "is_cpu", "layout", "dtype")
_is_contiguous = torch.Tensor.is_contiguous

_MemoryCheck: TypeAlias = "Callable[[Sequence[Any]], bool]"


_checks: dict[tuple[str, Any], _MemoryCheck] = {}
"""The compiled check of each name and kind of tensor, once it is compiled."""


def _memory_check(name: str, kind: Any) -> _MemoryCheck | None:
    """Return a check of a `Kernel`, for dense host memory; None without one."""
    found = _checks.get((name, kind))
    if found is not None:
        return found
    class_, is_cpu, layout, dtype = kind
    if class_ not in PLAIN or not is_cpu or layout is not torch.strided:
        return None
    compiled = getattr(kernel_of(_COMPILED.get(dtype, "")), name, None)
    if compiled is None:
        return None

    def check(tensors: Sequence[Any]) -> bool:
        addresses = array("q", map(torch.Tensor.data_ptr, tensors))
        counts = array("q", map(torch.Tensor.numel, tensors))
        return bool(compiled(addresses.buffer_info()[0], counts.buffer_info()[0], len(tensors)))

    return _checks.setdefault((name, kind), check)


def _values(tensor: Any) -> Any:
    """Return the elements of a tensor that can be NaN; None if there are none."""
    tensor = with_elements(tensor)
    if tensor is None:
        return None
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
