"""A second corpus for the watch: training scripts with one planted fault and its truth, and clean ones."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.torch.faults.cases import CleanScript, Fault

GROUPS = (
    "buffers",
    "queues",
    "averages",
    "between",
    "exceptions",
    "compiled",
    "higher_order",
    "manual",
    "updates",
    "precision",
    "data",
    "accumulation",
    "several",
    "custom",
)

CLEAN_FILES = ("clean_masks", "clean_states", "clean_control", "clean_structure")


def _cases_of(kind: type, files: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the cases of this kind in the order of the files."""
    modules = [import_module(f"{__name__}.{name}") for name in files]
    return tuple(case for module in modules for case in vars(module).values() if isinstance(case, kind))


FAULTS: tuple[Fault, ...] = _cases_of(Fault, GROUPS)
CLEAN: tuple[CleanScript, ...] = _cases_of(CleanScript, CLEAN_FILES)

__all__ = ["CLEAN", "FAULTS", "GROUPS", "CleanScript", "Fault"]
