"""The memory of tensors, for the compiled statistics."""

from __future__ import annotations

from typing import Any

import torch

from nncdbg.engine.ops.aten.signatures import DTYPES
from nncdbg.stats.inspection import Inspector, inspector


class TensorInspectors:
    """The compiled inspections by torch's dtype."""

    def __init__(self) -> None:
        self._known: dict[torch.dtype, Inspector] = {}
        self._channels_last = torch.channels_last

    def inspector(self, dtype: torch.dtype) -> Inspector | None:
        """Return the inspection of a dtype; None until it is compiled, or if there is none."""
        found = self._known.get(dtype)
        if found is None and dtype in DTYPES:
            found = inspector(DTYPES[dtype])
            if found is not None:
                self._known[dtype] = found
        return found

    def dense_memory(self, value: Any) -> tuple[int, int]:
        """Return the address and the number of elements, in any order, of a tensor; 0 for one with gaps.

        Statistics do not depend on the order of the elements.
        """
        if value.device.type != "cpu":
            return 0, 0
        dense = (
            value.is_contiguous()
            or (value.dim() == 2 and value.t().is_contiguous())
            or (value.dim() == 4 and value.is_contiguous(memory_format=self._channels_last))
        )
        return (value.data_ptr() if dense else 0), value.numel()
