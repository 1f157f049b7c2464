"""A corpus for the NaN watch: training programs with a planted NaN or Inf and its truth, and clean ones."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.torch.planted.cases import CAUSES, PHASES, Clean, Planted, Training

_FILES = (
    "forward_losses",
    "forward_layers",
    "forward_attention",
    "forward_geometry",
    "backward_formulas",
    "backward_overflow",
    "backward_code",
    "optimizer",
    "half",
    "data",
    "clean_infinities",
    "clean_missing",
    "clean_gradients",
    "clean_training",
)


def _cases_of(kind: type) -> tuple[Any, ...]:
    """Return the cases of this kind in the order of the files."""
    modules = [import_module(f"{__name__}.{name}") for name in _FILES]
    return tuple(case for module in modules for case in vars(module).values() if isinstance(case, kind))


PLANTED: tuple[Planted, ...] = _cases_of(Planted)
CLEAN: tuple[Clean, ...] = _cases_of(Clean)

__all__ = ["CAUSES", "CLEAN", "PHASES", "PLANTED", "Clean", "Planted", "Training"]
