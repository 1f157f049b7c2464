"""From a launch configuration to a program that is stopped at its first statement."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import msgspec

from nncdbg.dap_server.debuggee import Debuggee
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.sources.shown import sources_of
from nncdbg.engine.errors import LoadError, UsageError
from nncdbg.engine.inputs.data_specs import data_file
from nncdbg.opening.configuration import RunConfiguration, settings

if TYPE_CHECKING:
    from nncdbg.engine.inputs.binding import Note

    ConfigurationKeys = msgspec.Struct
else:
    _HINTS = get_type_hints(RunConfiguration)
    ConfigurationKeys = msgspec.defstruct(
        "ConfigurationKeys",
        [
            (name, _HINTS[name]) if name == "program" else (name, _HINTS[name] | None, None)
            for name in settings()
        ],
        rename={name: setting.key for name, (_, setting) in settings().items() if setting.key},
        frozen=True,
        kw_only=True,
    )


class LaunchArguments(ConfigurationKeys, frozen=True, kw_only=True, rename="camel"):
    """The keys of a `launch` configuration: those of the run configuration, and those below.

    Other keys belong to the client and are ignored.  Files are relative to `cwd` (default: the folder in
    which the server was started); the listing of a binary model is written below it.  A leading `~` is the
    home folder.  `catch` names findings that stop the program whatever the client's filters say.
    `console` may request a terminal with a prompt beside the client's windows.
    """

    stop_on_entry: bool = False
    stop_on_exit: bool = False
    no_debug: bool = False
    catch: list[str] = []
    console: Literal["internalConsole", "integratedTerminal", "externalTerminal"] = "internalConsole"

    def configuration(self) -> RunConfiguration:
        """Return the run configuration, with absolute paths.  Raises UsageError for a wrong path."""
        given = {name: value for name in settings() if (value := getattr(self, name)) is not None}
        folder = _folder(given.get("folder"))
        given["program"] = str(_file(given["program"], folder))
        for name in ("op_libraries", "stores"):
            given[name] = [str(_file(each, folder)) for each in given.get(name, ())]
        given["inputs"] = {name: _input(value) for name, value in given.get("inputs", {}).items()}
        return RunConfiguration(**{**given, "folder": str(folder)}, given=frozenset(given))


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
    debuggee.files = stamps(configuration, [path, *(path.parent / store for store in program.stores)])
    return debuggee


def stamps(configuration: RunConfiguration, files: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """(time of change, size) of these files and of those that a configuration names, as far as they exist."""
    folder = Path(configuration.folder or "")
    inputs = [data_file(value) for value in configuration.inputs.values() if isinstance(value, str)]
    named = [_file(str(file.path), folder) for file in inputs if file is not None]
    found = {}
    for path in (*files, *named, *map(Path, configuration.op_libraries)):
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
