"""Contracts of PyTorch's operators: updates that write one element more than once.

PyTorch calls the result of such updates nondeterministic.  Equal updates, as in ``x[i] = 0``, are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.ops.contracts import BrokenContract, FindBrokenContract, overwritten, unpooled


def _numbers(x: Any) -> Any:
    """Return a tensor of the shape of `x` with the number of each element."""
    return np.arange(x.size).reshape(x.shape)


def _index_put(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    x, *indices, values = inputs
    if attributes.get("accumulate"):
        return None
    places = _numbers(x)[tuple(slice(None) if each is None else each for each in indices)]
    given = next(number for number, each in enumerate(indices, 1) if each is not None)
    return overwritten(given, places, values, x.shape)


def _scatter(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    if attributes.get("reduce") is not None or len(inputs) < 3:
        return None
    x, index, source = inputs
    axis = attributes["dim"] % max(x.ndim, 1)
    where = [*np.indices(index.shape, sparse=True)]
    where[axis] = index
    part = tuple(slice(size) for size in index.shape)
    return overwritten(1, np.asarray(_numbers(x)[tuple(where)]), source[part], x.shape)


def _index_copy(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    x, index, source = inputs
    places = np.take(_numbers(x), index.reshape(-1), axis=attributes["dim"])
    return overwritten(1, places, source, x.shape)


def _put(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    x, index, source = inputs
    if attributes.get("accumulate"):
        return None
    return overwritten(1, _numbers(x).reshape(-1)[index], source.reshape(index.shape), x.shape)


CONTRACTS: Mapping[str, FindBrokenContract] = {
    "index_put": _index_put,
    "_index_put_impl": _index_put,
    "_unsafe_index_put": _index_put,
    "scatter": _scatter,
    "index_copy": _index_copy,
    "put": _put,
    "max_unpool2d": unpooled,
    "max_unpool3d": unpooled,
}
"""The checks, by the name without overload."""
