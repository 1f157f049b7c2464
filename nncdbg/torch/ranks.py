"""The ranks of a data-parallel training: waiting, notes on collectives, digests of tensors."""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.internals import (
    default_store,
    gradient_buckets,
    on_collective,
    ranks_of_group,
    without_dispatch,
)
from nncdbg.engine.ops.aten.signatures import DTYPES
from nncdbg.process.rank_notes import Collective, DigestFile, RankNotes, StepDigests, is_digested, type_texts
from nncdbg.process.ranks import rank_in_environment
from nncdbg.torch.named_models import parameters_of
from nncdbg.torch.sharded_tensors import PLAIN, local_part, meshes_of, shard_of
from nncdbg.torch.source_lines import place_of, user_lines
from nncdbg.torch.step_call import tensors_in

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


def _is_set(store: Any, key: str) -> bool:
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
        return [rank for rank, key in enumerate(keys) if _is_set(store, key)]
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
    begun = time.monotonic()
    while not store.check(keys) and (waited := time.monotonic() - begun) < _LONGEST_SEARCH:
        if waited >= seconds and not any(
            _is_set(store, _SEARCHING.format(rank)) and not store.check([key])
            for rank, key in enumerate(keys)
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


def _ranks() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 1


# -- notes on collectives ------------------------------------------------------------------

_OPERATIONS: Mapping[str, tuple[str, str]] = {
    "allreduce_": ("all_reduce", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors"),
    "broadcast_": ("broadcast", "tensors"),
    "reduce_": ("reduce", "tensors"),
    "allgather_": ("all_gather", "input_tensors"),
    "_allgather_base_": ("all_gather", "input_tensor"),
    "allgather_coalesced_": ("all_gather", "input_list"),
    "allgather_into_tensor_coalesced_": ("all_gather", "inputs"),
    "reduce_scatter_": ("reduce_scatter", "output_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "outputs"),
    "gather_": ("gather", "input_tensors"),
    "scatter_": ("scatter", "output_tensors"),
    "alltoall_": ("all_to_all", ""),
    "alltoall_base_": ("all_to_all", ""),
    "barrier": ("barrier", ""),
    "monitored_barrier_": ("barrier", ""),
    "send": ("send/recv", "tensors"),
    "recv_": ("send/recv", "tensors"),
}
"""The name of each operation in `torch.distributed`, and the argument whose types agree between the ranks."""

_DEFAULT_GROUP = "0"
"""The name that torch gives the group of all ranks."""


class CollectiveNotes:
    """Notes each collective that this process starts, until `end`."""

    def __init__(self, notes: RankNotes, rank: int) -> None:
        self._notes = notes
        self._rank = rank
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._ranks: dict[str, list[int]] = {}
        self.end: Callable[[], None] = on_collective(self._started)

    def _started(self, name: str, arguments: Mapping[str, Any], group: Any) -> None:
        """Note a collective; its line is the innermost one of the user."""
        if name not in _OPERATIONS:
            return  # `recv` from any rank: the other rank is unknown.
        op, agreeing = _OPERATIONS[name]
        group_name, ranks = self._group(group)
        peer = arguments.get("dst", arguments.get("src")) if op == "send/recv" else None
        if peer is not None:
            pair = (self._rank, ranks[peer]) if name == "send" else (ranks[peer], self._rank)
            group_name, ranks = f"{pair[0]} to {pair[1]}", [*pair]
        self._numbers[group_name] += 1
        lines = user_lines(sys._getframe(2), most=1)
        types = [
            f"{DTYPES.get(each.dtype, str(each.dtype))}[{','.join(map(str, each.shape))}]"
            for each in tensors_in(arguments.get(agreeing))
        ]
        self._notes.note_collective(
            Collective(
                group=group_name,
                ranks=ranks,
                number=self._numbers[group_name],
                op=op,
                types=type_texts(types),
                place=place_of(lines),
                at=time.time(),
            )
        )

    def _group(self, group: Any) -> tuple[str, list[int]]:
        name = str(group.group_name)
        if name not in self._ranks:
            self._ranks[name] = ranks_of_group(group)
        return ("" if name == _DEFAULT_GROUP else name), self._ranks[name]


# -- digests of gradients and parameters ---------------------------------------------------


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
        named, found = self._named(), enumerate(parameters_of(optimizer))
        return [(named.get(id(each), f"parameter {index}"), each) for index, each in found]


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
