"""A named array at one moment, with its statistics."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nncdbg import dtypes
from nncdbg.escaping import printable_line
from nncdbg.ir.records import Array, TensorType
from nncdbg.representation import RichOutput
from nncdbg.stats import Summary, summarize
from nncdbg.text.lexemes import name_text


class Tensor(RichOutput):
    """An array that prints as a line of statistics, and renders with a picture in a notebook.

    `array` holds the elements, `name` the name of the value ("" for none).  NumPy functions accept a Tensor
    as an array.  ``debugger["%h"]`` returns one; ``nncdbg.Tensor(array)`` makes one.
    """

    def __init__(self, array: npt.ArrayLike, name: str = "") -> None:
        self.array: Array = np.asarray(array)
        self.name = name

    @property
    def type(self) -> TensorType:
        """The element type and the sizes: ``f32[1,64]``."""
        return TensorType(dtypes.name_of(self.array.dtype), tuple(self.array.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(self.array.shape)

    @cached_property
    def stats(self) -> Summary:
        """The statistics over the finite elements, with counts of the others."""
        return summarize(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        name = f"%{name_text(self.name)} " if self.name else ""
        return printable_line(f"<Tensor {name}{self.type} {self.stats}>")
