"""Extension points: front-ends, backends, ops and commands, built in or from installed packages.

An extension is a name and a target ``module:attribute``, imported on first use.  Installed packages
register theirs as entry points in these groups; their metadata is read only for names that are not
built in.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nncdbg.errors import LoadError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FRONTENDS = "nncdbg.frontends"
"""File suffix without its dot to a function `(path, *, flat, stores) -> Program`."""

BACKENDS = "nncdbg.backends"
"""Name to a class of backends (`nncdbg.engine.backends.Backend`)."""

OPS = "nncdbg.ops"
"""Operator domain to a module that declares the domain's ops on import."""

COMMANDS = "nncdbg.commands"
"""Name of a prompt command to a module that declares it on import."""

ONE_SHOT = "nncdbg.one_shot"
"""Name of a command of the shell to what runs it: `(arguments) -> exit code`."""

SCRIPTS = "nncdbg.scripts"
"""What a running script opens, by name: a prompt, or the user interface that listens for an editor."""

BUILT_IN: dict[str, dict[str, str]] = {
    FRONTENDS: {
        "onnx": "nncdbg.engine.frontends.onnx:load",
        "nnc": "nncdbg.engine.frontends.text:load",
        "pt2": "nncdbg.engine.frontends.exported:load",
    },
    BACKENDS: {
        "numpy": "nncdbg.engine.backends.numpy:NumPy",
        "onnxruntime": "nncdbg.engine.backends.onnxruntime:OnnxRuntime",
        "cupy": "nncdbg.engine.backends.cupy:CuPy",
        "torch": "nncdbg.engine.backends.torch:Torch",
    },
    OPS: {},
    COMMANDS: {},
    ONE_SHOT: {
        "watch": "nncdbg.nan_watch.commands.watch:main",
        "run": "nncdbg.terminal.one_shot.run:main",
        "profile": "nncdbg.terminal.one_shot.profile:main",
        "diff": "nncdbg.terminal.one_shot.diff:main",
        "autotune": "nncdbg.terminal.one_shot.autotune:main",
        "races": "nncdbg.nan_watch.commands.races:main",
        "record": "nncdbg.terminal.one_shot.record:main",
        "replay": "nncdbg.terminal.one_shot.replay:main",
        "debug": "nncdbg.terminal.one_shot.debug:main",
        "attach": "nncdbg.terminal.one_shot.debug:attach_main",
        "runs": "nncdbg.terminal.journal.log:runs_main",
        "log": "nncdbg.terminal.journal.log:main",
        "sql": "nncdbg.terminal.journal.sql:main",
        "export": "nncdbg.terminal.journal.sql:export_main",
        "reduce": "nncdbg.nan_watch.commands.reduce:main",
        "bisect": "nncdbg.nan_watch.commands.bisect:main",
        "print": "nncdbg.terminal.one_shot.text:main",
        "listing": "nncdbg.dap_server.sources.listing_file:main",
        "dap": "nncdbg.dap_server.command:main",
        "lsp": "nncdbg.textual_repr.language_server.command:main",
        "repl": "nncdbg.terminal.connected:main",
        "ops": "nncdbg.terminal.one_shot.ops:main",
    },
    SCRIPTS: {
        "prompt": "nncdbg.terminal.script_prompt:break_here",
        "listen": "nncdbg.dap_server.attach.live:listening_training",
        "rank": "nncdbg.dap_server.attach.ranks:debugged_rank",
        "exit": "nncdbg.dap_server.attach.calls:exit_with",
        "end": "nncdbg.dap_server.attach.calls:end_process",
    },
}


def names(group: str) -> tuple[str, ...]:
    """Return the names of all extensions of a group, those of installed packages last."""
    return tuple(dict.fromkeys((*BUILT_IN[group], *_installed(group))))


def find(group: str, name: str) -> Any | None:
    """Import an extension and return it; None for an unknown name.

    Raises LoadError, with the name of the distribution, if the code of an installed package fails.
    """
    target = BUILT_IN[group].get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return getattr(import_module(module), attribute)
    entry = _installed(group).get(name)
    return None if entry is None else _loaded(entry)


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=group)}


@cache
def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        distribution = entry.dist.name if entry.dist is not None else entry.module
        raise LoadError(
            f'the extension "{entry.name}" of {distribution} failed: {type(error).__name__}: {error}',
            hint=f"upgrade or uninstall it: pip uninstall {distribution}",
        ) from error
