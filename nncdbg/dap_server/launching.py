"""From a launch configuration to a program that is stopped at its first statement."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from nncdbg.dap_server.debuggee import Debuggee
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.sources.shown import sources_of
from nncdbg.engine.errors import LoadError, UsageError
from nncdbg.engine.inputs.data_specs import data_file

if TYPE_CHECKING:
    from nncdbg.engine.graph import Program
    from nncdbg.engine.inputs.binding import Note
    from nncdbg.nan_watch.bundles.bundle import Bundle


class LaunchArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The keys of a `launch` configuration; other keys belong to the client and are ignored.

    Files are relative to `cwd` (default: the folder in which the server was started); the listing of a
    binary model is written below it.  A leading `~` is the home
    folder.  `seed`, `dims`, `inputs`, `backend`, `fallback`, `allocator`, `history`, `check` and
    `max_ops` are as in `Debugger`; `flat`, `op_library` and `allow_stores` as on the command line.
    `catch` names findings that stop the program whatever the client's filters say.
    `console` may request a terminal with a prompt beside the client's windows.  `program` may be a
    repro bundle, which then supplies the options that the configuration does not have.
    """

    program: str
    inputs: dict[str, Any] = {}
    dims: dict[str, int] = {}
    seed: int | None = None
    stop_on_entry: bool = False
    stop_on_exit: bool = False
    no_debug: bool = False
    backend: str | None = None
    fallback: bool | None = None
    allocator: str | None = None
    history: int | str | None = None
    flat: bool = False
    check: str | None = None
    max_ops: int | None = None
    catch: list[str] = []
    op_library: list[str] = []
    allow_stores: list[str] = []
    cwd: str | None = None
    console: Literal["internalConsole", "integratedTerminal", "externalTerminal"] = "internalConsole"


def launch(arguments: LaunchArguments, runner: Runner, check: Callable[[], None]) -> Debuggee:
    """Return the program, stopped on entry.  Raises LoadError, GraphError or UsageError.

    `check` is called between the parts of the work; an exception that it raises abandons the launch.
    """
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.frontends.listings import workspace_of
    from nncdbg.engine.ops.library import load_op_library
    from nncdbg.engine.process.black_box import BlackBox
    from nncdbg.terminal import opening

    folder = _folder(arguments.cwd)
    for library in arguments.op_library:
        load_op_library(_file(library, folder))
        check()
    path = _file(arguments.program, folder)
    bundle = opening.bundle_at(path)
    program = _opened(arguments, path, folder, bundle)
    bundled = bundle.inputs if bundle is not None else {}
    settings = bundle.settings if bundle is not None else None
    check()

    def given(name: str, usual: Any) -> Any:
        """The option of the configuration, else of the bundle, else the default."""
        said = getattr(arguments, name)
        return said if said is not None else getattr(settings, name, usual)

    debugger = Debugger(
        program,
        {**bundled, **{name: _input(value) for name, value in arguments.inputs.items()}},
        backend=given("backend", "numpy"),
        fallback=given("fallback", False),
        allocator=given("allocator", None),
        dims=arguments.dims,
        seed=given("seed", 0),
        history=arguments.history,
        check=arguments.check,
        max_ops=given("max_ops", None),
        folder=folder,
        black_box=BlackBox(path),
    )
    debugger.catch(*arguments.catch)
    check()
    if bundle is not None:
        debugger.go_to(bundle.statements)
        path = bundle.folder / opening.PROGRAM
    # A listing is launched as the model that it shows, and stays the file with the breakpoints.
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
    debuggee.files = stamps(arguments, [path, *(path.parent / store for store in program.stores)])
    return debuggee


def _opened(arguments: LaunchArguments, path: Path, folder: Path, bundle: Bundle | None) -> Program:
    """Return the program of the bundle, else of the file.  Raises LoadError or UsageError."""
    from nncdbg.terminal import opening
    from nncdbg.terminal.options import load_program

    if bundle is not None:
        opening.check_libraries(bundle, arguments.op_library)
        return bundle.program
    if path.is_dir():
        raise LoadError(
            f"{path} is a folder", hint="set `program` to a file, such as model.onnx or graph.nnc"
        )
    allowed = [str(_file(each, folder)) for each in arguments.allow_stores]
    return load_program(str(path), flat=arguments.flat, stores=allowed)


def stamps(arguments: LaunchArguments, files: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """(time of change, size) of these files and of those that a configuration names, as far as they exist."""
    folder = _folder(arguments.cwd)
    inputs = [data_file(value) for value in arguments.inputs.values() if isinstance(value, str)]
    named = [*(str(file.path) for file in inputs if file is not None), *arguments.op_library]
    found = {}
    for path in (*files, *(_file(name, folder) for name in named)):
        if path.is_file():
            status = path.stat()
            found[path] = status.st_mtime_ns, status.st_size
    return found


def words_of(note: Note) -> str:
    """A note on a program, with how to give what is missing in a launch configuration."""
    if note.missing is None:
        return note.fact
    kind, name = note.missing
    value = f"{name}.npy" if kind == "input" else 4
    return f'{note.fact} (set "{kind}s": {json.dumps({name: value}, ensure_ascii=False)})'


def _folder(cwd: str | None) -> Path:
    if cwd is None:
        return Path.cwd()
    folder = _file(cwd, Path.cwd())
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder}", hint="set `cwd` to an existing folder")
    return folder


def _file(name: str, folder: Path) -> Path:
    try:
        return folder / Path(name).expanduser()
    except RuntimeError as error:  # `~nobody`
        raise UsageError(f"{name!r} is not a path: {error}") from None


def _input(value: Any) -> Any:
    """A file below the home folder by its full path; anything else as it is."""
    return str(_file(value, Path())) if isinstance(value, str) and value.startswith("~") else value
