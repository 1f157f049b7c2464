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

SHELL: dict[str, tuple[str, str]] = {
    "watch": (
        "nncdbg.nan_watch.commands.watch:main",
        "find where the first NaN of a model or training script originates",
    ),
    "run": ("nncdbg.terminal.one_shot.run:main", "run to the end; print outputs with statistics"),
    "profile": ("nncdbg.terminal.one_shot.profile:main", "measure the times of statements, ops and layers"),
    "diff": (
        "nncdbg.terminal.one_shot.diff:main",
        "compare two models, backends, dtypes, or runs of a journal",
    ),
    "autotune": (
        "nncdbg.terminal.one_shot.autotune:main",
        "choose the fastest correct kernel of each statement",
    ),
    "races": ("nncdbg.nan_watch.commands.races:main", "check a schedule of streams and events without a run"),
    "record": (
        "nncdbg.terminal.one_shot.record:main",
        "save a training step of a PyTorch script as a program",
    ),
    "replay": ("nncdbg.terminal.one_shot.replay:main", "replay a recorded session, and compare its stops"),
    "debug": ("nncdbg.terminal.one_shot.debug:main", "run a PyTorch script, and stop it at operators"),
    "attach": ("nncdbg.terminal.one_shot.debug:attach_main", "attach to the ranks of a distributed job"),
    "runs": ("nncdbg.terminal.journal.log:runs_main", "list the runs of a journal"),
    "log": ("nncdbg.terminal.journal.log:main", "show a run of a journal: curves, checkpoints, events"),
    "sql": ("nncdbg.terminal.journal.sql:main", "query the tables of a journal"),
    "export": ("nncdbg.terminal.journal.sql:export_main", "write runs for TensorBoard or MLflow"),
    "reduce": ("nncdbg.nan_watch.commands.reduce:main", "find the smallest program with the same finding"),
    "bisect": ("nncdbg.nan_watch.commands.bisect:main", "find the ops that must stay f32 in half precision"),
    "print": ("nncdbg.terminal.one_shot.text:main", "print the program text"),
    "listing": (
        "nncdbg.dap_server.sources.listing_file:main",
        "write the listing of a model, as editors show it",
    ),
    "dap": ("nncdbg.dap_server.command:main", "serve the Debug Adapter Protocol, for editors"),
    "lsp": (
        "nncdbg.textual_repr.language_server.command:main",
        "serve the Language Server Protocol, for editors",
    ),
    "repl": ("nncdbg.terminal.connected:main", "open a prompt for an editor's debug session"),
    "ops": ("nncdbg.terminal.one_shot.ops:main", "list all ops, or describe one"),
}
"""Commands of the shell: what runs each, and its line of help."""

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
    ONE_SHOT: {name: target for name, (target, _) in SHELL.items()},
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
