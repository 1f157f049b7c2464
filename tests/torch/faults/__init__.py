"""A second corpus for the watch: training scripts with one planted fault each, and its truth."""

from __future__ import annotations

from importlib import import_module

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

FAULTS: tuple[Fault, ...] = tuple(
    case
    for group in GROUPS
    for case in vars(import_module(f"{__name__}.{group}")).values()
    if isinstance(case, Fault)
)

__all__ = ["FAULTS", "GROUPS", "CleanScript", "Fault"]
