"""Names that torch does not document, all in this file, and the versions of torch that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from nncdbg.engine.errors import UsageError

OLDEST, NEWEST = (2, 10), (2, 14)
"""Versions of torch from `OLDEST` on, before `NEWEST`, have all names of this file."""

DispatchMode: Any = TorchDispatchMode
OpOverload: Any = torch._ops.OpOverload
without_dispatch: Any = torch._C._DisableTorchDispatch
"""Context manager: operators called inside skip all dispatch modes and tensor subclasses."""

dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Returns the number of dispatch modes that operators called now pass through."""

below_autograd: Any = torch._C._AutoDispatchBelowAutograd
"""Context manager: operators called inside record nothing for a backward pass, as those below autograd."""

current_autograd_node: Callable[[], Any] = torch._C._current_autograd_node
"""Returns the autograd node that runs on this thread, None outside a backward pass."""

next_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr
"""Returns the number that the next autograd node of this thread gets."""

innermost_mode: Callable[[], Any] = _get_current_dispatch_mode
"""Returns the dispatch mode that was entered last on this thread, None without one."""

norms_of: Callable[..., list[Any]] = torch._foreach_norm
"""Returns the norm of each tensor of a list; a fused kernel on a GPU."""

keeping_version: Any = torch.autograd._unsafe_preserve_version_counter
"""Context manager: writes to a tensor inside do not count as changes of what autograd saved."""

random_tag: Any = torch.Tag.nondeterministic_seeded


def check_version() -> None:
    """Raise UsageError for a torch outside the supported versions."""
    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    if not OLDEST <= numbers < NEWEST:
        low, high = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise UsageError(
            f"torch {torch.__version__} is not supported: nncdbg works with torch {low} up to, but not "
            f"including, {high}",
            hint="pip install 'torch>=2.10,<2.14'",
        )


is_wrapped: Callable[[Any], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Returns whether a tensor stands for a batch or a level of `torch.func`, and so has no memory of its own."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions, by overload."""
    from torch._decomp import decomposition_table

    table: dict[Any, Callable[..., Any]] = decomposition_table
    return table


def schema_of(overload: Any) -> Any:
    """Return the `FunctionSchema` of an overload."""
    return overload._schema


def fast_call(overload: Any) -> Callable[..., Any]:
    """Return the overload as a function without Python's own dispatch in front of it."""
    called: Callable[..., Any] = overload._op
    return called


def all_operator_names() -> Iterable[str]:
    """Return the names of all registered operators, as ``aten::add.Tensor``."""
    names: Iterable[str] = torch._C._dispatch_get_all_op_names()
    return names


def sequence_number(node: Any) -> int:
    """Return the number of an autograd node: forward operators and their backward nodes share it."""
    number: int = node._sequence_nr()
    return number


def storage_address(tensor: Any) -> int:
    """Return a number that identifies a tensor's storage while that, or a weak reference to it, lives."""
    number: int = tensor.untyped_storage()._cdata
    return number


def weak_storage(tensor: Any) -> int:
    """Return a weak reference to the storage of a tensor; end it with `free_weak_storage`.

    It keeps the number of the storage from being used again, but not the memory.
    """
    reference: int = tensor.untyped_storage()._weak_ref()
    return reference


def free_weak_storage(reference: int) -> None:
    """End a weak reference."""
    torch.UntypedStorage._free_weak_ref(reference)
