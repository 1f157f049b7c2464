"""Digests of the gradients and parameters of this rank at its updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.internals import without_dispatch
from nncdbg.engine.process.rank_digests import DigestFile, StepDigests, is_digested
from nncdbg.torch.sharded_tensors import PLAIN, local_part, shard_of


class RankDigests:
    """Digests gradients before an update and parameters after it, at the steps of `is_digested`.

    `named` maps the identities of parameters to names, and `step` returns the number of the step.  The shards
    of a `DTensor` have its name and their place, so that only ranks with the same shard are compared; parts
    of a sum are left out, as tensors of other classes are.
    """

    def __init__(
        self, folder: Path, rank: int, named: Callable[[], Mapping[int, str]], step: Callable[[], int]
    ) -> None:
        self._file = DigestFile(folder, rank)
        self._named = named
        self._step = step
        self._tensors: dict[str, tuple[int, float | None]] = {}
        self._before = register_optimizer_step_pre_hook(self._before_update)
        self._after = register_optimizer_step_post_hook(self._after_update)

    def end(self) -> None:
        """End the digests."""
        self._before.remove()
        self._after.remove()
        self._file.close()

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if is_digested(self._step()):
            gradients = {
                f"{name}.grad": each.grad
                for name, each in self._parameters(optimizer)
                if each.grad is not None
            }
            self._tensors = _digests(gradients)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._tensors:
            tensors = {**self._tensors, **_digests(dict(self._parameters(optimizer)))}
            self._file.append(StepDigests(step=self._step(), tensors=tensors))
            self._tensors = {}

    def _parameters(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, Any]]:
        named = self._named()
        found = [each for group in optimizer.param_groups for each in group["params"]]
        return [(named.get(id(each), f"parameter {index}"), each) for index, each in enumerate(found)]


def _digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, float | None]]:
    """Return the digest of the bytes and the norm of each dense tensor."""
    with without_dispatch(), torch.no_grad():
        parts = ((name, shard_of(each), local_part(each)) for name, each in tensors.items())
        dense = {
            f"{name}{shard}": each.detach()
            for name, shard, each in parts
            if shard is not None and type(each) in PLAIN and each.layout == torch.strided
        }
        found: dict[str, tuple[int, float | None]] = {}
        for name, each in dense.items():
            content = host_array(each.cpu().contiguous().reshape(-1).view(torch.uint8))
            norm = float(torch.linalg.vector_norm(each)) if each.is_floating_point() else 0.0
            found[name] = (xxhash.xxh3_64_intdigest(content), norm if math.isfinite(norm) else None)
        return found
