"""The keys of a `launch` configuration, a record derived from the run configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import msgspec

from nncdbg.errors import UsageError
from nncdbg.opening.configuration import RunConfiguration, settings
from nncdbg.opening.python_programs import is_python_name

if TYPE_CHECKING:
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
    `console` may request a terminal with a prompt beside the client's windows.  `view` is what a recorded
    step shows first: its source, or its graph.
    """

    stop_on_entry: bool = False
    stop_on_exit: bool = False
    no_debug: bool = False
    catch: list[str] = []
    view: Literal["source", "graph"] = "source"
    console: Literal["internalConsole", "integratedTerminal", "externalTerminal"] = "internalConsole"

    def configuration(self) -> RunConfiguration:
        """Return the run configuration, with absolute paths.  Raises UsageError for a wrong path."""
        given = {name: value for name in settings() if (value := getattr(self, name)) is not None}
        folder = _folder(given.get("folder"))
        if not is_python_name(given["program"], folder):
            given["program"] = str(path_in(given["program"], folder))
        for name in ("op_libraries", "stores"):
            given[name] = [str(path_in(each, folder)) for each in given.get(name, ())]
        given["inputs"] = {name: _input(value) for name, value in given.get("inputs", {}).items()}
        return RunConfiguration(**{**given, "folder": str(folder)}, given=frozenset(given))


def _folder(cwd: str | None) -> Path:
    if cwd is None:
        return Path.cwd()
    folder = path_in(cwd, Path.cwd())
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder}", hint="set `cwd` to an existing folder")
    return folder


def path_in(name: str, folder: Path) -> Path:
    """Return the path of a file of a configuration whose folder is `folder`.  Raises UsageError."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError as error:  # `~` with an unknown user
        raise UsageError(f"{name!r} is not a path: {error}") from None


def _input(value: Any) -> Any:
    """Expand a file below the home folder to its full path; return anything else unchanged."""
    return str(path_in(value, Path())) if isinstance(value, str) and value.startswith("~") else value
