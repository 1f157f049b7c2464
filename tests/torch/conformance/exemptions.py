"""The samples of torch that do not replay to the same bits on the CPU, with the reasons."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SPARSE = "a sparse tensor is an opaque result, with no array to compare"

EXEMPT: dict[str, tuple[range, str]] = {
    "chalf": (range(5), "complex32 has no NumPy dtype: an opaque result, with no array to compare"),
    "sparse.mm_reduce": (range(16), _SPARSE),
    "sparse.sampled_addmm": (range(8), _SPARSE),
    "to_sparse": (range(2), _SPARSE),
}
"""Name of an operator to the samples that do not replay, and the reason."""

EXEMPT_MODULES: dict[tuple[str, bool], tuple[range, str]] = {}
"""Name of a module, and whether it trains, to the samples that do not replay, and the reason."""

ONLY_ON_DEVICES = {
    "jiterator_2inputs_2outputs",
    "jiterator_4inputs_with_extra_args",
    "jiterator_binary",
    "jiterator_binary_return_by_ref",
    "jiterator_unary",
}
"""Operators that torch compiles for GPUs; they raise on the CPU."""

UNINITIALIZED = {
    **dict.fromkeys(
        ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
        "the result is memory that was not written",
    ),
    **dict.fromkeys(
        ("linalg.lstsq", "linalg.lstsq_grad_oriented"),
        "does not write the solution of an empty matrix, and reads pivots that it did not write",
    ),
}
"""Name of an operator to the reason why its results differ from call to call in torch too.

Its samples replay to the same bits if torch fills new memory.
"""


@contextmanager
def filled_memory(enabled: bool) -> Iterator[None]:
    """Let torch fill new memory, with NaN as the engine does, or with the largest integer."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(enabled or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
