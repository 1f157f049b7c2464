"""Launch: from a launch configuration to a program stopped at its first statement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.dap_server.debuggee import Debuggee
from nncdbg.dap_server.launch_arguments import LaunchArguments, path_in
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.sources.shown import sources_of
from nncdbg.engine.errors import LoadError
from nncdbg.engine.inputs.data_specs import data_file
from nncdbg.engine.process.collector import collector_paused
from nncdbg.opening.configuration import RunConfiguration

if TYPE_CHECKING:
    from nncdbg.engine.inputs.binding import Note


@collector_paused()
def launch(arguments: LaunchArguments, runner: Runner, check: Callable[[], None]) -> Debuggee:
    """Return the program, stopped on entry.  Raises LoadError, GraphError or UsageError.

    `check` is called between the parts of the work; an exception that it raises abandons the launch.
    """
    from nncdbg.engine.frontends.listings import workspace_of
    from nncdbg.opening.bundle import PROGRAM, is_bundle
    from nncdbg.opening.programs import open_program

    configuration = arguments.configuration()
    path, folder = Path(configuration.program), Path(configuration.folder or "")
    if path.is_dir() and not is_bundle(path):
        raise LoadError(
            f"{path} is a folder", hint="set `program` to a file, such as model.onnx or graph.nnc"
        )
    opened = open_program(configuration, check)
    program, bundle = opened.program, opened.bundle
    check()
    debugger = opened.debugger()
    debugger.catch(*arguments.catch)
    check()
    if bundle is not None:
        debugger.go_to(bundle.statements)
        path = bundle.folder / PROGRAM
    # A listing is launched as the model that it shows, and remains the file of the breakpoints.
    workspace = workspace_of(path) if program.listing is None else None
    if workspace is not None and program.source is not None:
        path = Path(program.source)
    debuggee = Debuggee(
        debugger,
        runner,
        sources_of(debugger, path, workspace or folder),
        stop_on_exit=arguments.stop_on_exit,
        no_debug=arguments.no_debug,
        at_finding=bundle is not None,
    )
    debuggee.files = stamps(configuration, [path, *(path.parent / store for store in program.stores)])
    return debuggee


def stamps(configuration: RunConfiguration, files: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """(mtime, size) of these files and of those that a configuration names, if they exist."""
    folder = Path(configuration.folder or "")
    inputs = [data_file(value) for value in configuration.inputs.values() if isinstance(value, str)]
    named = [path_in(str(file.path), folder) for file in inputs if file is not None]
    found = {}
    for path in (*files, *named, *map(Path, configuration.op_libraries)):
        if path.is_file():
            status = path.stat()
            found[path] = status.st_mtime_ns, status.st_size
    return found


def words_of(note: Note) -> str:
    """Return the text of a note, with the launch configuration key that provides what is missing."""
    if note.missing is None:
        return note.fact
    kind, name = note.missing
    value = f"{name}.npy" if kind == "input" else 4
    return f'{note.fact} (set "{kind}s": {json.dumps({name: value}, ensure_ascii=False)})'
