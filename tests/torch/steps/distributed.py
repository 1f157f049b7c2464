"""Data-parallel training with gloo: one rank in this process, or several in their own."""

from __future__ import annotations

import atexit
import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.torch.steps.training import Training, step, steps_of

Result = TypeVar("Result")
TIME_LIMIT = timedelta(seconds=60)
"""After this time a rank stops waiting for another that failed."""

RANKS = multiprocessing.get_context("forkserver")
"""Ranks are forks of a process that has imported torch, which takes seconds."""
RANKS.set_forkserver_preload([__name__, "nncdbg.torch"])


def data_parallel(rank: int) -> Training:
    """Return a step of a model in two buckets, on the rows of this rank.

    The process group must exist.  The step also reduces the loss over the ranks, for a log.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 3)
    )
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(parallel.parameters())
    torch.manual_seed(rank + 1)
    x, target = torch.randn(4, 6), torch.randint(0, 3, (4,))
    kept = {"mean_loss": torch.zeros(())}

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(parallel(x), target)
        loss.backward()
        optimizer.step()
        kept["mean_loss"] = loss.detach() / dist.get_world_size()
        dist.all_reduce(kept["mean_loss"])
        return loss

    return Training([parallel], [optimizer], run, kept)


@step()
def ddp_one_rank() -> Training:
    """The process group remains until the end of the process."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        atexit.register(dist.destroy_process_group)
    return data_parallel(0)


def with_training(visit: Callable[[int, Training], Result], rank: int) -> Result:
    """Return `visit(rank, training)` for a data-parallel training that is not run yet."""
    return visit(rank, data_parallel(rank))


def worker(rank: int, world: int, file: str, visit: Callable[[int], Result]) -> Result:
    """Join the group of `world` ranks that meets at `file`, and return `visit(rank)`.

    Runs in a process of its own, on one thread.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{file}", TIME_LIMIT, world_size=world, rank=rank)
    try:
        return visit(rank)
    finally:
        dist.destroy_process_group()


def in_ranks(visit: Callable[[int, Training], Result]) -> list[Result]:
    """Return what `visit(rank, training)` returns in each of two ranks of a data-parallel training."""
    return in_processes(partial(with_training, visit))


def in_processes(visit: Callable[[int], Result], world: int = 2) -> list[Result]:
    """Return what `visit(rank)` returns in each rank, each a process of its own.

    `visit` is a function of a module; its result is pickled, so it should hold NumPy arrays, not tensors.
    """
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(world, mp_context=RANKS) as pool:
        file = str(Path(folder) / "meeting")
        ranks = [pool.submit(worker, rank, world, file, visit) for rank in range(world)]
        return [rank.result() for rank in ranks]


STEPS = steps_of(globals())
