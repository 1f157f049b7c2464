"""Executors by name: Dask, Ray and MPI.

A local cluster has no dashboard and ends with the watch.  That of Dask listens on localhost only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from nncdbg.errors import RunError, UsageError

PROCESSES = "processes"


@dataclass(frozen=True, slots=True)
class CaseExecution:
    """How many cases run at a time, where, and for how long."""

    jobs: int | None = None
    """The number of processes or workers; None for the number of cores."""
    executor: str | Executor = PROCESSES
    """`processes` (of nncdbg), `dask`, `ray` or `mpi` with `jobs` workers of its own, an address such as
    `dask=tcp://host:8786`, or an executor with `jobs` workers, which stays open."""
    budget: float | None = None
    """The seconds after which no case is started or waited for; None for no limit."""

    def check(self) -> None:
        """Raise UsageError for a number that is too small, or an unknown executor."""
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"invalid number of jobs: {self.jobs}", hint="use 1 or more, such as --jobs 1")
        if self.budget is not None and not self.budget > 0:
            raise UsageError(
                f"invalid budget: {self.budget} seconds", hint="use a number above 0, such as --budget 60"
            )
        if isinstance(self.executor, str):
            checked_name(self.executor)


_CONNECT = 10
"""Seconds until a connection to a cluster fails."""


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Engine(NamedTuple):
    """An executor that is open, and its number of workers."""

    executor: Executor
    workers: int


@contextmanager
def open_engine(chosen: str | Executor, count: int) -> Iterator[Engine]:
    """Yield the executor of a name, such as `dask` or `dask=tcp://host:8786`, with `count` local workers.

    An executor is yielded as it is, and stays open.  Raises UsageError for an unknown name or a missing
    library, RunError for a cluster that does not answer.
    """
    if isinstance(chosen, Executor):
        yield Engine(chosen, count)
        return
    name, _, address = chosen.partition("=")
    opener = _ENGINES[checked_name(name)]
    with opener(address, count) as engine:
        yield engine


def checked_name(chosen: str) -> str:
    """Return the name of an executor, without its address; raises UsageError for an unknown one."""
    name, equals, address = chosen.partition("=")
    if name not in (PROCESSES, *_ENGINES):
        raise UsageError(f'unknown executor "{name}"', hint=f"use one of {', '.join((PROCESSES, *_ENGINES))}")
    if equals and (name in (PROCESSES, "mpi") or not address):
        raise UsageError(
            f'invalid executor "{chosen}"', hint="use an address as in --executor dask=tcp://host:8786"
        )
    return name


def _missing(library: str, extra: str) -> UsageError:
    return UsageError(
        f"the executor {extra} needs the library {library}, which is not installed",
        hint=f'install it: pip install "nncdbg[{extra}]"',
    )


def stdout_to_stderr() -> None:
    """Send the output of kernels to standard error, as standard output has the report."""
    os.dup2(2, 1)


@contextmanager
def _dask(address: str, count: int) -> Iterator[Engine]:
    try:
        import distributed
    except ImportError:
        raise _missing("distributed", "dask") from None
    if address:
        with _dask_client(distributed, address) as client:
            threads = client.nthreads()
            if not threads:
                raise RunError(f"the Dask cluster {address} has no workers", hint="start a `dask worker`")
            yield Engine(client.get_executor(pure=False), len(threads))
        return
    import dask

    # The watch repeats a case of a lost worker itself: the count of losses is then exact.
    quiet = {"distributed.scheduler.allowed-failures": 0}
    with (
        tempfile.TemporaryDirectory(prefix="nncdbg-dask-") as folder,
        dask.config.set(quiet),
        _local_cluster(
            distributed,
            n_workers=count,
            threads_per_worker=1,
            memory_limit=0,
            host="127.0.0.1",
            # The scheduler always opens an HTTP port; by default it is 8787, with a warning if in use.
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            worker_dashboard_address=None,
            local_directory=folder,
            env=thread_shares(count),
            silence_logs="CRITICAL",
        ) as cluster,
        _dask_client(distributed, cluster) as client,
    ):
        client.register_plugin(_dask_output(distributed))
        yield Engine(client.get_executor(pure=False), count)


def _local_cluster(distributed: Any, **fields: Any) -> Any:
    """Return a local Dask cluster.  Raises RunError if its workers do not start."""
    try:
        return distributed.LocalCluster(**fields)
    except RuntimeError as error:
        raise RunError(
            f"the local Dask cluster did not start: {error}",
            hint='call nncdbg below `if __name__ == "__main__":`, because Dask workers import the script',
        ) from error


@contextmanager
def _dask_client(distributed: Any, place: Any) -> Iterator[Any]:
    try:
        client = distributed.Client(place, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"cannot connect to the Dask cluster {place}: {error}",
            hint="use the address that `dask scheduler` prints, such as dask=tcp://host:8786",
        ) from error
    with client:
        yield client


def _dask_output(distributed: Any) -> Any:
    """Return the plugin that redirects the output of each worker, also of one that replaces another."""

    def setup(self: Any, worker: Any) -> None:
        stdout_to_stderr()

    return type("OutputOfWorkers", (distributed.WorkerPlugin,), {"setup": setup})()


class _RayExecutor(Executor):
    """Tasks of Ray as futures; Ray itself repeats none."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        task = self._ray.remote(function).options(max_retries=0, num_cpus=1)
        return task.remote(*arguments, **named).future()  # type: ignore[no-any-return]


@contextmanager
def _ray(address: str, count: int) -> Iterator[Engine]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise _missing("ray", "ray") from None
    variables = {"env_vars": thread_shares(count)}
    local: dict[str, Any] = {
        "num_cpus": count,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "runtime_env": variables,
    }
    try:
        ray.init(**({"address": address} if address else local), log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError) as error:
        raise RunError(
            f"cannot connect to the Ray cluster {address}: {error}", hint="see `ray status`"
        ) from error
    try:
        yield Engine(_RayExecutor(ray), int(ray.cluster_resources().get("CPU", count)))
    finally:
        ray.shutdown()


@contextmanager
def _mpi(address: str, count: int) -> Iterator[Engine]:
    try:
        from mpi4py.futures import MPIPoolExecutor
    except ImportError:
        raise _missing("mpi4py", "mpi") from None
    with MPIPoolExecutor(count, initializer=stdout_to_stderr) as executor:
        yield Engine(executor, executor.num_workers)


_ENGINES: dict[str, Callable[[str, int], Any]] = {"dask": _dask, "ray": _ray, "mpi": _mpi}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_shares(others: int) -> dict[str, str]:
    """Return variables that divide the cores among the workers; the variables that the user set win."""
    shares = dict.fromkeys(_THREADS, str(max(1, cores() // others))) if others > 1 else {}
    return {**shares, **{name: os.environ[name] for name in _THREADS if name in os.environ}}
