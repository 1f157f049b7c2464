"""Ops with a buggy kernel, declared for one test and removed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from nncdbg.engine.memory.buffers import address_of
from nncdbg.engine.ops import declaration, schema
from nncdbg.engine.ops.types import same_as

Writes = Callable[..., None]
_numbers = count()


@pytest.fixture
def declare_op() -> Iterator[Callable[..., str]]:
    """A function that declares a kernel as an op of this test and returns the op's name."""
    names = []

    def declare(kernel: Callable[..., Any], **fields: Any) -> str:
        name = f"nncdbg.Test{next(_numbers)}"
        declaration.declare(declaration.Op(name, kernel, **fields))
        names.append(name)
        return name

    yield declare
    for name in names:
        del declaration._DECLARED[name]
    schema.schema.cache_clear()


@pytest.fixture
def bad_op(declare_op: Callable[..., str]) -> Callable[..., str]:
    """A function that declares `writes(out, x)` or `writes(out, x, rng)` as the kernel of a one-input op."""

    def declare(writes: Writes, *, random: bool = False) -> str:
        def kernel(xp: Any, x: Any, *, out: Any = None) -> Any:
            out = np.empty_like(x) if out is None else out
            writes(out, x)
            return out

        def drawing(xp: Any, x: Any, *, rng: Any, out: Any = None) -> Any:
            out = np.empty_like(x) if out is None else out
            writes(out, x, rng)
            return out

        return declare_op(drawing if random else kernel, infer=same_as(0), accepts_out=True, random=random)

    return declare


def write_beside(out: Any, element: int) -> None:
    """Write one element at index `element` of a buffer, even outside it."""
    memory = np.asarray(out.base)
    start = address_of(out) - address_of(memory) + element * out.itemsize
    memory[start : start + out.itemsize].view(out.dtype)[0] = 1
