"""The states of the random generators as JSON and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nncdbg.torch.journal.state_trees import as_json
from nncdbg.torch.step_state import RandomState, restore_generators


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
