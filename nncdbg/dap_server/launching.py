"""From a launch configuration to a program that stands at its first statement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from nncdbg.dap_server.debuggee import Debuggee
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.sources import Sources, listing_file


class LaunchArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a `launch` configuration may say; other keys are the client's own, and ignored."""

    program: str
    inputs: dict[str, Any] = {}
    dims: dict[str, int] = {}
    seed: int = 0
    stop_on_entry: bool = False
    stop_on_exit: bool = False
    no_debug: bool = False
    backend: str = "numpy"
    fallback: bool = False
    allocator: str | None = None
    history: int | str | None = None
    flat: bool = False
    check: str | None = None
    max_ops: int | None = None
    op_library: list[str] = []
    cwd: str | None = None


def launch(arguments: LaunchArguments, runner: Runner) -> Debuggee:
    """The program, stopped on entry.  Raises LoadError, GraphError or UsageError if it cannot be."""
    from nncdbg.engine.ops.library import load_op_library
    from nncdbg.engine.session import Debugger
    from nncdbg.terminal.options import load_program

    folder = Path(arguments.cwd) if arguments.cwd is not None else Path.cwd()
    for library in arguments.op_library:
        load_op_library(folder / library)
    path = folder / arguments.program
    debugger = Debugger(
        load_program(str(path), flat=arguments.flat),
        arguments.inputs,
        backend=arguments.backend,
        fallback=arguments.fallback,
        allocator=arguments.allocator,
        dims=arguments.dims,
        seed=arguments.seed,
        history=arguments.history,
        check=arguments.check,
        max_ops=arguments.max_ops,
        folder=folder,
    )
    sources = Sources(debugger, listing_file(path, debugger.listing, folder))
    return Debuggee(debugger, runner, sources, stop_on_exit=arguments.stop_on_exit)
