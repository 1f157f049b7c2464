"""Nested states of objects of torch as JSON and named tensors.

Optimizers, schedulers, gradient scalers and random generators have states of nested dictionaries, lists,
tuples and tensors.  JSON has none of tuples, Inf and keys that are numbers, so those are objects with one key
that begins with ``$``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

from nncdbg.engine.ops.aten.arrays import as_tensor
from nncdbg.errors import UsageError
from nncdbg.torch.step_state import RandomState, restore_generators


def as_json(value: Any, name: str, tensors: MutableMapping[str, Any]) -> Any:
    """Return a nested state as JSON; its tensors and arrays are added to `tensors`, named after `name`.

    Raises UsageError for an object of another kind.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, np.generic):
        return as_json(value.item(), name, tensors)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        tensors[name] = value
        return {"$tensor" if isinstance(value, torch.Tensor) else "$array": name}
    if isinstance(value, Mapping):
        counts = isinstance(value, Counter)
        if not counts and all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: as_json(each, f"{name}.{key}", tensors) for key, each in value.items()}
        pairs = [
            [as_json(key, f"{name}.key", tensors), as_json(each, f"{name}.{key}", tensors)]
            for key, each in value.items()
        ]
        return {"$counter" if counts else "$items": pairs}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [as_json(each, f"{name}.{index}", tensors) for index, each in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple" if isinstance(value, tuple) else "$set": items}
    raise UsageError(
        f"{name} cannot be kept in a journal: it is of type {type(value).__name__}",
        hint="states of numbers, text, tensors, lists and dictionaries can",
    )


def from_json(value: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the state that `as_json` was called with; `tensors` has the tensors and arrays by name."""
    if isinstance(value, list):
        return [from_json(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, content),) = value.items()
        if kind.startswith("$"):
            return _special(kind, content, tensors)
    return {key: from_json(each, tensors) for key, each in value.items()}


def _special(kind: str, content: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the value of an object with one key that begins with ``$``."""
    if kind == "$float":
        return float(content)
    if kind == "$tensor":
        return as_tensor(np.asarray(tensors[content]))
    if kind == "$array":
        return np.asarray(tensors[content])
    items = [from_json(each, tensors) for each in content]
    if kind in ("$items", "$counter"):
        pairs = dict(items)
        return Counter(pairs) if kind == "$counter" else pairs
    return tuple(items) if kind == "$tuple" else set(items)


# -- states of random generators -----------------------------------------------------------


def random_as_json(random: RandomState, prefix: str, tensors: dict[str, Any]) -> Any:
    """Return the states as JSON; tensors are added to `tensors`, with names that begin with `prefix`."""
    version, words, gauss = random.python
    state = {
        "torch": random.torch,
        "devices": list(random.devices),
        "python": (version, np.array(words, np.uint32), gauss),
        "numpy": random.numpy,
    }
    return {key: as_json(value, f"{prefix}{key}", tensors) for key, value in state.items()}


def python_state(kept: tuple[int, Any, float | None]) -> tuple[int, tuple[int, ...], float | None]:
    """Return the state of Python's generator of which `random_as_json` keeps the words as an array."""
    version, words, gauss = kept
    return version, tuple(int(word) for word in words), gauss


def restore_random(state: Mapping[str, Any]) -> None:
    """Restore the states that `from_json` has read."""
    python = python_state(state["python"])
    restore_generators(state["torch"], state["devices"], python, state["numpy"])
