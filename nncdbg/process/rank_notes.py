"""What each rank of a distributed job does now: a file per rank, which others read also if its process hangs.

A rank maps its file into memory and writes notes into it.  A note is a record of fixed size with a checksum,
so that a reader recognizes a note that is being written.

The notes show which ranks wait for which.  For each step that it digests, a rank also appends a line of JSON
to another file: digests of its gradients and parameters, which show the first step at which a rank differs.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nncdbg.errors import UsageError
from nncdbg.process.files import state_folder

_RECORD = 1024
"""Bytes of a record: checksum (4), length (4), JSON."""
_KEPT = 256
"""Collectives that a rank keeps."""
_PROCESS, _STATUS, _COLLECTIVES = 0, 1, 2
"""The records of a file: the process, its status, then the latest collectives."""
_ATTEMPTS = 20
"""How often a reader reads a record that is being written."""
_MOST_TYPES = 3
"""The tensors of a collective that a note lists."""

Note = TypeVar("Note", bound=msgspec.Struct)


class RankProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a rank.  `port` is that of its debug adapter, 0 without one."""

    rank: int
    ranks: int
    pid: int
    agent: int
    """The parent of the process, which has started all ranks."""
    script: str
    port: int = 0
    token: str = ""
    """The file with the token that clients must present, if they must."""


class RankActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank was at the time `seen`, in seconds since the epoch."""

    seen: float
    state: str = "running"
    """``waiting`` for a client before the start, ``running``, ``stopped`` in the debugger, or ``ended``."""
    place: str = ""
    """The line of the user, as ``train.py:42``."""
    step: int = 1
    """The training step."""


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that a rank has started at the time `at`."""

    group: str
    """The process group; for messages between two ranks, both ranks."""
    ranks: list[int]
    """The ranks that take part."""
    number: int
    """Its number among the collectives of the group, from 1."""
    op: str
    types: list[str]
    """The types of the tensors that must agree between the ranks."""
    place: str
    at: float

    @property
    def text(self) -> str:
        """The operation with its types: ``all_reduce (f32[1024])``."""
        return f"{self.op} ({', '.join(self.types)})" if self.types else self.op


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """The notes of one rank."""

    process: RankProcess
    status: RankActivity
    collectives: list[Collective]
    """The latest ones, in the order in which they started."""
    exists: bool
    """Whether the process exists."""


class RankNotes:
    """The notes that this process writes.  Threads may write different notes at the same time."""

    def __init__(self, folder: Path, process: RankProcess, state: str = "running") -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"rank{process.rank}.notes"
        size = _RECORD * (_COLLECTIVES + _KEPT)
        # A restarted rank replaces its file: a reader may have the old one open.
        made = folder / f"rank{process.rank}.{process.pid}"
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._started = 0
        """The number of collectives of all groups."""
        self._encoder = msgspec.json.Encoder()
        self._write(_PROCESS, process)
        self.note_status(RankActivity(seen=time.time(), state=state))
        os.replace(made, self.path)

    def note_status(self, status: RankActivity) -> None:
        """Replace the status."""
        self._write(_STATUS, status)

    def note_collective(self, collective: Collective) -> None:
        """Add a collective."""
        self._write(_COLLECTIVES + self._started % _KEPT, collective)
        self._started += 1

    def _write(self, record: int, note: msgspec.Struct) -> None:
        text = self._encoder.encode(note)
        if len(text) > _RECORD - 8:
            return  # The names are absurdly long; the previous note stays.
        start = record * _RECORD
        content = zlib.crc32(text).to_bytes(4, "little") + len(text).to_bytes(4, "little") + text
        self._memory[start : start + len(content)] = content


def type_texts(types: list[str]) -> list[str]:
    """Return the types that a note lists: the first ones, and the number of the others."""
    more = len(types) - _MOST_TYPES
    return types if more <= 0 else [*types[:_MOST_TYPES], f"{more} more"]


# -- reading ---------------------------------------------------------------------------------


def read_notes(path: Path) -> RankReport | None:
    """Return the notes of a rank; None if the file does not exist or is no such file."""
    process = _read(path, _PROCESS, RankProcess)
    status = _read(path, _STATUS, RankActivity)
    if process is None or status is None:
        return None
    found = [_read(path, _COLLECTIVES + index, Collective) for index in range(_KEPT)]
    collectives = sorted((each for each in found if each is not None), key=lambda each: each.at)
    return RankReport(
        process=process, status=status, collectives=collectives, exists=_is_running(process.pid)
    )


def _read(path: Path, record: int, kind: type[Note]) -> Note | None:
    """Return a note; None if it was never written."""
    try:
        with open(path, "rb") as file:
            for _ in range(_ATTEMPTS):
                file.seek(record * _RECORD)
                content = file.read(_RECORD)
                length = int.from_bytes(content[4:8], "little")
                text = content[8 : 8 + length]
                if length and zlib.crc32(text) == int.from_bytes(content[:4], "little"):
                    return msgspec.json.decode(text, type=kind)
                if not length:
                    return None
                time.sleep(0.001)
    except (OSError, msgspec.DecodeError, RecursionError):
        pass  # as for a file that does not exist
    return None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # Another user's process has this PID now.
    return True


# -- jobs ------------------------------------------------------------------------------------


def jobs_folder() -> Path:
    """Return the folder with a folder per job, named by the port at which its ranks meet."""
    return state_folder() / "ranks"


def folder_of_job(environment: dict[str, str] | Any = os.environ) -> Path:
    """Return the folder of the job of this process.  Raises UsageError outside of torchrun."""
    port, rank = environment.get("MASTER_PORT", ""), environment.get("RANK", "")
    if not (port.isdecimal() and rank.isdecimal()):
        raise UsageError(
            "this process is not a rank of a job: RANK and MASTER_PORT are not set",
            hint="torchrun --nproc-per-node 2 -m nncdbg debug --ranks train.py",
        )
    return jobs_folder() / port


def reports_of_job(folder: Path) -> list[RankReport]:
    """Return the notes of the ranks of a job, by rank.

    Of several jobs that used the port one after the other, the last one counts.
    """
    found = [each for path in folder.glob("rank*.notes") if (each := read_notes(path)) is not None]
    if not found:
        return []
    last = max(found, key=lambda each: each.status.seen).process.agent
    of_job = [each for each in found if each.process.agent == last]
    return sorted(of_job, key=lambda each: each.process.rank)


def find_job(name: str | None) -> Path:
    """Return the folder of a running job; without `name`, of the only one.  Raises UsageError."""
    running = {path.name: path for path in sorted(jobs_folder().glob("*")) if _is_job_running(path)}
    known = ", ".join(sorted(running)) or "none"
    if name is not None:
        if name not in running:
            raise UsageError(f"there is no job {name} with ranks to attach to", hint=f"jobs: {known}")
        return running[name]
    if not running:
        raise UsageError(
            "there is no job with ranks to attach to",
            hint="torchrun --nproc-per-node 2 -m nncdbg debug --ranks train.py",
        )
    if len(running) > 1:
        raise UsageError(f"there are several jobs: {known}", hint="name one: nncdbg attach --ranks JOB")
    return next(iter(running.values()))


def remove_ended_jobs(own: Path) -> None:
    """Remove the folders of jobs without a process, except that of this job, whose ranks begin now."""
    for folder in jobs_folder().glob("*"):
        if folder != own and not _is_job_running(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_job_running(folder: Path) -> bool:
    return any(report.exists for report in reports_of_job(folder))


# -- waits -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wait:
    """A collective that some ranks have started, and others not."""

    collective: Collective
    """The collective, as the first of the waiting ranks has noted it."""
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    since: float
    """When the last of the waiting ranks started it, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Collectives with the same number that differ between ranks."""

    group: str
    number: int
    calls: tuple[tuple[tuple[int, ...], Collective], ...]
    """The ranks of each call, and the call; the one of most ranks first."""


def find_waits(reports: Sequence[RankReport]) -> list[Wait]:
    """Return for each group the first collective that a rank has not started, in the order of time."""
    waits = [wait for group in _by_group(reports).values() if (wait := _wait(group)) is not None]
    return sorted(waits, key=lambda each: each.since)


def find_mismatches(reports: Sequence[RankReport]) -> list[Mismatch]:
    """Return for each group the first number at which the ranks started different collectives."""
    found = (_mismatch(name, group) for name, group in _by_group(reports).items())
    return [each for each in found if each is not None]


_Group = dict[int, dict[int, Collective]]
"""The collectives of a group, by rank and number."""


def _by_group(reports: Sequence[RankReport]) -> dict[str, _Group]:
    """Return the collectives of each group; a rank that has started none has an empty entry."""
    groups: dict[str, _Group] = defaultdict(dict)
    known = {each.process.rank for each in reports}
    for report in reports:
        for each in report.collectives:
            group = groups[each.group]
            for rank in each.ranks:
                if rank in known:
                    group.setdefault(rank, {})
            group.setdefault(report.process.rank, {})[each.number] = each
    return groups


def _wait(group: _Group) -> Wait | None:
    """Return the first collective that one of the ranks of a group has not started."""
    reached = {rank: max(calls, default=0) for rank, calls in group.items()}
    least = min(reached.values())
    if max(reached.values()) == least:
        return None
    number = least + 1
    calls = [(rank, group[rank][number]) for rank in sorted(group) if number in group[rank]]
    if not calls:
        return None  # A rank is ahead by more than it keeps: the collective is one that does not wait.
    return Wait(
        calls[0][1],
        tuple(rank for rank, _ in calls),
        tuple(rank for rank in sorted(group) if reached[rank] == least),
        max(each.at for _, each in calls),
    )


def _mismatch(name: str, group: _Group) -> Mismatch | None:
    for number in sorted({number for calls in group.values() for number in calls}):
        kinds: dict[str, list[tuple[int, Collective]]] = defaultdict(list)
        for rank, each in sorted(_calls_at(group, number)):
            kinds[each.text].append((rank, each))
        if len(kinds) > 1:
            largest_first = sorted(kinds.values(), key=lambda calls: -len(calls))
            return Mismatch(
                name,
                number,
                tuple((tuple(rank for rank, _ in calls), calls[0][1]) for calls in largest_first),
            )
    return None


def _calls_at(group: _Group, number: int) -> Iterator[tuple[int, Collective]]:
    return ((rank, calls[number]) for rank, calls in group.items() if number in calls)


# -- digests ---------------------------------------------------------------------------------

FIRST, EVERY = 10, 10
"""The steps that are digested: the first ones, then each one that is a multiple of `EVERY`."""


SHARD = "[shard "
"""In the name of a part of a tensor, such as ``fc.weight[shard 1]``: other ranks have other parts."""


class StepDigests(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a rank after the backward pass of a step, and after its update."""

    step: int
    tensors: dict[str, tuple[int, float | None]]
    """Maps a name, such as ``fc.weight.grad``, to the digest of its bytes and its Euclidean norm.

    The norm is None if it is NaN or Inf.
    """


@dataclass(frozen=True, slots=True)
class Divergence:
    """A tensor that differs between ranks."""

    step: int
    name: str
    norms: Mapping[int, float | None]
    """By rank."""
    different: tuple[int, ...]
    """The ranks that differ from most others."""
    others: tuple[int, ...]


class DigestFile:
    """The file to which this rank appends."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._descriptor = os.open(
            path_of_digests(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )

    def append(self, found: StepDigests) -> None:
        """Append a step."""
        os.write(self._descriptor, msgspec.json.encode(found) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def path_of_digests(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank{rank}.digests"


def is_digested(step: int) -> bool:
    """Return whether the tensors of a step are digested."""
    return step <= FIRST or step % EVERY == 0


def read_digests(folder: Path, ranks: Sequence[int]) -> dict[int, list[StepDigests]]:
    """Return the digests of each rank; a line that is being written is left out."""
    found: dict[int, list[StepDigests]] = {}
    for rank in ranks:
        try:
            content = path_of_digests(folder, rank).read_bytes()
        except OSError:
            content = b""
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        found[rank] = [msgspec.json.decode(line, type=StepDigests) for line in lines]
    return found


def digested_steps(found: Mapping[int, Sequence[StepDigests]]) -> list[int]:
    """Return the steps that all ranks have digested."""
    steps = [{each.step for each in digests} for digests in found.values()]
    return sorted(set.intersection(*steps)) if steps else []


def find_divergences(found: Mapping[int, Sequence[StepDigests]]) -> list[Divergence]:
    """Return the tensors that differ at the first step at which one does, gradients first."""
    for step in digested_steps(found):
        at = {rank: each.tensors for rank, digests in found.items() for each in digests if each.step == step}
        different = [*_different(step, at)]
        if different:
            return different
    return []


def _different(step: int, at: Mapping[int, Mapping[str, tuple[int, float | None]]]) -> Iterator[Divergence]:
    names = dict.fromkeys(name for tensors in at.values() for name in tensors)
    for name in sorted(names, key=lambda name: not name.endswith(".grad")):
        ranks_by_digest: dict[int | None, list[int]] = defaultdict(list)
        ranks = [rank for rank, tensors in at.items() if name in tensors or SHARD not in name]
        for rank in ranks:
            tensors = at[rank]
            ranks_by_digest[tensors[name][0] if name in tensors else None].append(rank)
        if len(ranks_by_digest) > 1:
            most = max(ranks_by_digest.values(), key=len)
            yield Divergence(
                step,
                name,
                {rank: tensors[name][1] for rank, tensors in at.items() if name in tensors},
                tuple(rank for rank in sorted(ranks) if rank not in most),
                tuple(sorted(most)),
            )
