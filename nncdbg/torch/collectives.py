"""Notes on the collectives that this rank starts: number, operation, types and line."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import on_collective, ranks_of_group
from nncdbg.engine.ops.aten.signatures import DTYPES
from nncdbg.engine.process.rank_notes import Collective, RankNotes, type_texts
from nncdbg.presentation.source_files import short_path
from nncdbg.torch.source_lines import user_lines

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
        self._notes.note_collective(
            Collective(
                group=group_name,
                ranks=ranks,
                number=self._numbers[group_name],
                op=op,
                types=type_texts([_type(each) for each in _tensors(arguments.get(agreeing))]),
                place=place_of(lines),
                at=time.time(),
            )
        )

    def _group(self, group: Any) -> tuple[str, list[int]]:
        name = str(group.group_name)
        if name not in self._ranks:
            self._ranks[name] = ranks_of_group(group)
        return ("" if name == _DEFAULT_GROUP else name), self._ranks[name]


def place_of(lines: tuple[tuple[str, int], ...]) -> str:
    """Return the innermost of some lines as ``train.py:42``; empty without a line."""
    return f"{short_path(lines[0][0])}:{lines[0][1]}" if lines else ""


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument: a tensor, or a list of tensors."""
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, list):
        for each in found:
            yield from _tensors(each)


def _type(tensor: torch.Tensor) -> str:
    dtype = DTYPES.get(tensor.dtype, str(tensor.dtype))
    return f"{dtype}[{','.join(map(str, tensor.shape))}]"
