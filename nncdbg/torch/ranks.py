"""What the ranks of a data-parallel training have to do with a NaN."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import default_store, gradient_buckets
from nncdbg.engine.process.ranks import journal_of_rank, rank_in_environment
from nncdbg.torch.sharded_tensors import meshes_of

_MOST = 2
"""Gradients that a note lists."""

_SEARCHING = "nncdbg/searching/{}"
"""The key of a rank, which is 1 while it searches an origin."""

_LONGEST_SEARCH = 120.0
"""The most seconds that ranks wait for the report of another one."""


def rank_notes(parameters: Iterable[Any]) -> list[str]:
    """Return which rank this process is, if there are several, and what it has of the parameters."""
    ranks = _ranks()
    if ranks == 1:
        return []
    has = (
        "counts are those of its shards" if meshes_of(parameters) else "gradients are averages over all ranks"
    )
    return [f"found on rank {torch.distributed.get_rank()} of {ranks}; {has}"]


@contextmanager
def searching() -> Iterator[None]:
    """Tell the other ranks that this one searches an origin, so that they wait longer for its report."""
    _set_searching("1")
    try:
        yield
    finally:
        _set_searching("0")


def _set_searching(value: str) -> None:
    if _ranks() > 1:
        with suppress(RuntimeError, ValueError):  # See `origin_ranks`.
            default_store().set(_SEARCHING.format(torch.distributed.get_rank()), value)


def _searches(store: Any, rank: int) -> bool:
    key = _SEARCHING.format(rank)
    return bool(store.check([key]) and store.get(key) == b"1")


def origin_ranks(step: int, *, own: bool, seconds: float = 5) -> list[int]:
    """Return the ranks whose report of a step names an operator; `own`: that of this rank does.

    Only a rank without an own operator waits for the others: so many seconds, or `_LONGEST_SEARCH` for those
    that search.
    """
    if _ranks() == 1:
        return []
    keys = [f"nncdbg/origin/{step}/{rank}" for rank in range(_ranks())]
    this = torch.distributed.get_rank()
    try:
        store = default_store()
        store.set(keys[this], str(int(own)))
        if own:
            return [this]
        _await_keys(store, keys, seconds)
        return [rank for rank, key in enumerate(keys) if store.check([key]) and store.get(key) == b"1"]
    except (RuntimeError, ValueError):  # The process that holds the store has ended, or it can tell nothing.
        return []


def received_note(ranks: Sequence[int]) -> str:
    """Return from which ranks a NaN or Inf comes; those of `origin_ranks`."""
    several = "s" if len(ranks) > 1 else ""
    named = f"rank{several} {', '.join(map(str, ranks))}" if ranks else "another rank"
    return f"they come from {named}, whose report{several} name{'' if several else 's'} the operator"


def no_origin_note(
    *, compiled: bool, repeated: bool, received: bool, communicates: bool, ranks: Sequence[int]
) -> str:
    """Return why no operator of the second run of a step made NaN or Inf.

    `compiled`: the step ran compiled code before; `repeated`: the second run ends with the NaN or Inf, too;
    `received`: this run received them; `communicates`: it is one of all ranks.  `ranks` are those of
    `origin_ranks`.
    """
    if received:
        return f"no operator of this rank makes NaN or Inf from finite numbers: {received_note(ranks)}"
    if repeated:
        return (
            "no operator of the step makes it from finite numbers: the step reads an Inf, such as a number "
            "in the state of the optimizer"
        )
    if _ranks() > 1 and not communicates:
        return (
            "the second run of the step, which does not communicate, has no NaN or Inf: "
            f"{received_note(ranks)}"
        )
    if compiled:
        return (
            "only the compiled step has it: run eagerly, the step has no NaN or Inf (try another backend of "
            "torch.compile, or a smaller part of the model)"
        )
    return (
        "the second run of the step has no NaN or Inf: the step depends on more than its batch, "
        "parameters, buffers and random state"
    )


def levels_of_ranks(parameters: Iterable[Any], level: int) -> dict[int, int]:
    """Return the levels above 0 that ranks with shards of the same parameters have passed to this.

    All of these ranks must call this at the same place of the training: it communicates.  Empty without
    shards.
    """
    meshes = meshes_of(parameters)
    if not meshes:
        return {}
    levels = torch.zeros(_ranks(), dtype=torch.int32, device=meshes[0].device_type)
    levels[torch.distributed.get_rank()] = level
    for mesh in meshes:
        for group in mesh.get_all_groups():
            torch.distributed.all_reduce(levels, torch.distributed.ReduceOp.MAX, group)
    return {rank: found for rank, found in enumerate(levels.tolist()) if found}


def await_ranks(seconds: float = 10) -> str | None:
    """Wait until all ranks have called this, but not longer: torchrun ends all ranks when one has ended.

    Those that search an origin are waited for up to `_LONGEST_SEARCH` seconds, others up to `seconds`.
    Return why this rank cannot wait; None if it has waited, or if the process with the store has ended.
    """
    if _ranks() == 1:
        return None
    ranks = [f"nncdbg/reported/{rank}" for rank in range(_ranks())]
    try:
        store = default_store()
        store.set(ranks[torch.distributed.get_rank()], "1")
        _await_keys(store, ranks, seconds)
    except torch.distributed.DistNetworkError:
        return None  # The process that holds the store has ended.
    except (RuntimeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        return f"other ranks may end without a report: this rank cannot wait for them: {first}"
    return None


def _await_keys(store: Any, keys: Sequence[str], seconds: float) -> None:
    """Wait for the keys of all ranks."""
    begun = time.monotonic()
    while not store.check(keys) and (waited := time.monotonic() - begun) < _LONGEST_SEARCH:
        if waited >= seconds and not any(
            _searches(store, rank) and not store.check([key]) for rank, key in enumerate(keys)
        ):
            break
        time.sleep(0.05)


def bucket_notes(modules: Iterable[torch.nn.Module], bad: Sequence[tuple[str, Any]]) -> list[str]:
    """Return for each `DistributedDataParallel` the first of its buckets, as ranks reduce them, that is bad.

    `bad` are the names and parameters of the bad gradients.
    """
    names = {id(each): f"{name}.grad" for name, each in bad}
    notes: list[str] = []
    for module in modules:
        if _ranks() > 1 and isinstance(module, torch.nn.parallel.DistributedDataParallel):
            buckets = gradient_buckets(module)
            for number, bucket in enumerate(buckets, 1):
                found = [names[id(each)] for each in bucket if id(each) in names]
                if found:
                    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
                    place = f"bucket {number} of {len(buckets)}"
                    notes.append(f"{place} is the first with NaN or Inf: {', '.join(found[:_MOST])}{more}")
                    break
    return notes


def rank_of_process() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; (0, 1) for a training on one rank."""
    ranks = _ranks()
    return rank_in_environment() if ranks == 1 else (torch.distributed.get_rank(), ranks)


def journal_of_process(path: str) -> str:
    """Return the journal that this process writes: ``run.db``, or ``run.db-rank1`` on rank 1 of several."""
    rank, ranks = rank_of_process()
    return path if ranks == 1 else journal_of_rank(path, rank)


def _ranks() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 1
