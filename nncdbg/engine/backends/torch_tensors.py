"""Tensors that the engine makes: copies, new memory, views, numbers, and the states of random generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nncdbg.engine.ops.aten.arrays import as_tensor, number_function
from nncdbg.engine.ops.aten.internals import without_elements
from nncdbg.engine.ops.aten.signatures import Argument, ArgumentKind, decode
from nncdbg.errors import RunError
from nncdbg.text.torch_names import NUMBER, READ, RECORDED, VIEW

if TYPE_CHECKING:
    from nncdbg.engine.backends import Call, Execute


def fresh_like(tensor: Any) -> Any:
    """Return new memory with the same sizes, strides and dtype; its content is undefined."""
    if tensor.is_contiguous():
        return torch.empty_like(tensor)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def strided_copy(tensor: Any) -> Any:
    """Return a copy with the same strides, also of elements that share memory."""
    if tensor.is_contiguous():
        # `clone` keeps the strides of other layouts too, but only if the elements have no gaps.
        return tensor.clone()
    span = _span(tensor)
    if 0 in tensor.stride() or span < tensor.numel():
        return tensor.as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride())
    return fresh_like(tensor).copy_(tensor)


def _span(tensor: Any) -> int:
    """Return the number of elements of memory from the first element of a tensor to its last one."""
    if not tensor.numel():
        return 0
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last) + 1


def tensor_of_number(value: Any) -> Any:
    """Return a number that Python reads as a tensor of no axes; other values are unchanged."""
    if isinstance(value, bool):
        return torch.tensor(value)
    if isinstance(value, (int, float, complex)):
        wide = {int: torch.int64, float: torch.float64, complex: torch.complex128}
        return torch.tensor(value, dtype=wide[type(value)])
    return value


def own_operator(call: Call) -> Execute:
    """Return the function of one of nncdbg's own operators on tensors."""
    several = call.several
    if call.node.op == NUMBER:
        function = number_function(call.attributes["function"])
        return lambda *operands: tensor_of_number(function(*[each.item() for each in operands]))
    if call.node.op in (RECORDED, READ):
        return (lambda result, *_: [result]) if several else (lambda result, *_: result)
    layout = _layout(call.attributes)
    run = layout.view if call.node.op == VIEW else layout.written
    return (lambda *operands: [run(*operands)]) if several else run


@dataclass(frozen=True, slots=True)
class _Layout:
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: Any

    def view(self, base: Any) -> Any:
        try:
            return self._view(base)
        except RuntimeError as error:
            explained = self._refusal(base)
            if explained is None:
                raise
            raise explained from error

    def _refusal(self, base: Any) -> RunError | None:
        """Return why torch refused a view, with the sizes; None if it is not too long."""
        places = f"size {[*self.size]}, stride {[*self.stride]}, offset {self.offset}"
        if len(self.size) != len(self.stride) or min((*self.stride, self.offset), default=0) < 0:
            return RunError(
                f"the view is not valid: {places}", hint="use a stride per size, and no negative numbers"
            )
        needed = self.offset + 1 + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        itemsize = base.element_size() if self.dtype is None else self.dtype.itemsize
        there = base.untyped_storage().nbytes() // itemsize - base.storage_offset()
        if needed <= there:
            return None
        return RunError(
            f"the view needs {needed} elements, but the memory of its operand has {there}: {places}",
            hint="reduce the sizes or the offset",
        )

    def _view(self, base: Any) -> Any:
        if self.dtype is not None and base.dtype != self.dtype:
            base = base.as_strided((_span(base),), (1,)).view(self.dtype)
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.offset)

    def written(self, base: Any, part: Any) -> Any:
        whole = strided_copy(base)
        target = self.view(whole)
        for axis, step in enumerate(self.stride):
            if step == 0 and target.shape[axis]:  # these elements share memory
                target, part = target.narrow(axis, 0, 1), part.narrow(axis, 0, 1)
        target.copy_(part)
        return whole


def _layout(attributes: Mapping[str, Any]) -> _Layout:
    dtype = attributes.get("dtype")
    argument = Argument("dtype", "ScalarType", ArgumentKind.OTHER, False, None, True, False)
    return _Layout(
        tuple(attributes["size"]),
        tuple(attributes["stride"]),
        int(attributes["offset"]),
        None if dtype is None else decode(dtype, argument),
    )


def accepts_devices(kernel: Callable[..., Any], operands: Sequence[Any]) -> bool:
    """Return whether torch accepts the devices of the operands of a call, as it does for indices and numbers.

    The kernel runs on tensors without elements.  One that needs elements counts as one that accepts them.
    """
    arrays = (np.ndarray, np.generic)
    tensors = [as_tensor(np.asarray(each)) if isinstance(each, arrays) else each for each in operands]
    with without_elements():
        given = [
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device)
            if isinstance(each, torch.Tensor)
            else each
            for each in tensors
        ]
        try:
            kernel(*given)
        except Exception as error:  # noqa: BLE001  the call on the real operands reports other errors
            return "device" not in str(error)
    return True


def generator_state(device: torch.device) -> Any:
    """Return the state of a device's generator, a tensor of bytes."""
    return (
        torch.get_rng_state()
        if device.type == "cpu"
        else torch.get_device_module(device).get_rng_state(device)
    )


def set_generator_state(state: Any, device: torch.device) -> None:
    """Set the state of a device's generator."""
    if device.type == "cpu":
        torch.set_rng_state(state.contiguous())
    else:
        torch.get_device_module(device).set_rng_state(state, device)
