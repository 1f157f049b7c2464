"""Sources of programs by file suffix, and the stores behind their weights."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias

from nncdbg import extensions
from nncdbg.engine.frontends.stores import Store, path_inside
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.ir.records import Program
from nncdbg.text.file_names import PROGRAM, is_program_folder

_STORES = {
    ".onnx": "nncdbg.engine.frontends.onnx:open_store",
    ".safetensors": "nncdbg.engine.frontends.tensor_file:open_store",
}
"""Suffix to ``module:function`` of `(path) -> Store`."""

_JOURNAL = "nncdbg.opening.journal.reopening:journal_frontend"
"""``module:function`` of `(path) -> front-end | None` for addresses in a journal."""

_EXPORT = 'export it first: torch.onnx.export(module, arguments, "model.onnx", dynamo=True)'

_SCRIPT = (
    "for a PyTorch training, use `nncdbg watch {0}`, `nncdbg record {0}` or `nncdbg debug {0}`; "
    "MODULE:FUNCTION opens the program that a function returns"
)

_OF_TORCH = frozenset({".bin", ".ckpt", ".pt", ".pth", ".safetensors"})
"""Suffixes of PyTorch programs and weights, which cannot be opened directly."""


class ModelProto(Protocol):
    """An `onnx.ModelProto`, described without importing onnx."""

    def SerializeToString(self) -> bytes: ...


class ProgramOwner(Protocol):
    """A record with a program, such as a recorded training step."""

    @property
    def program(self) -> Program: ...


ProgramSource: TypeAlias = "Program | ProgramOwner | str | os.PathLike[str] | ModelProto | tuple[Any, Any]"
"""A program, or a source that `load` accepts: a path, a recorded step, an `onnx.ModelProto`, or a PyTorch
module with its arguments."""


def load(
    source: ProgramSource,
    *,
    flat: bool = False,
    stores: Iterable[str | os.PathLike[str]] = (),
    steps: int | None = None,
    training: bool = False,
    tracks: Mapping[str, str] | None = None,
) -> Program:
    """Load a program from a file (`.onnx`, `.nnc`, `.pt2`), a program folder or an object.

    ``run.db@nan`` and other addresses in a journal load a step of a PyTorch training that was recorded.
    Objects are an `onnx.ModelProto`, a `torch.export.ExportedProgram`, a Builder, and a pair of a PyTorch
    module and its arguments (a tuple or a tensor), which `torch.export.export` exports.

    A Program is returned unchanged; for a record with a program, such as a recorded step, its program.  With
    `flat`, an ONNX model becomes one graph; without it, module scopes become layers that are called.
    Graph text may read weights only below its own folder and the folders in `stores`.  With `training`, the
    program is the training that an ONNX model contains (its `training_info`).  `steps` ends each ``run`` of a
    training after this many steps.  `tracks` are expressions by name, as after `track NAME =` in the text:
    each is added to the first ``run`` line and to the first ``evaluate`` line whose steps compute its values.

    Raises LoadError if the file cannot be read, GraphError if the graph is wrong,
    ParseError if the text does not parse, UsageError for any other `source`, for `steps` or `tracks`
    without a run, and for `training` of a source that is no ONNX model; ExpressionError for a track that does
    not parse.
    """
    program = _training(source, flat) if training else _load(source, flat, stores)
    if steps is not None:
        from nncdbg.engine.frontends.run_steps import with_steps

        program = with_steps(program, steps)
    if tracks:
        from nncdbg.engine.frontends.run_steps import with_tracks

        program = with_tracks(program, tracks)
    return program


def _load(source: ProgramSource, flat: bool, stores: Iterable[str | os.PathLike[str]]) -> Program:
    if isinstance(source, Program):
        return source
    if isinstance(source, (str, os.PathLike)):
        path = _path_of(source)
        if is_program_folder(path):
            from nncdbg.engine.frontends.program_folder import load as load_folder

            return load_folder(path)
        found: Callable[..., Any] | None = extensions.find(extensions.FRONTENDS, path.suffix.lower()[1:])
        frontend = found or _imported(_JOURNAL)(path) or _unknown(path, "model", _suffixes())
        try:
            program: Program = frontend(path, flat=flat, stores=tuple(map(Path, stores)))
        except Exception as error:
            if isinstance(error, NncdbgError) or frontend.__module__.partition(".")[0] == "nncdbg":
                raise
            suffix = path.suffix.lower()[1:]
            message = f'the extension "{suffix}" cannot read {path}: {type(error).__name__}: {error}'
            raise LoadError(message, hint=f"report this error to {frontend.__module__}") from error
        if path.name != PROGRAM or not is_program_folder(path.parent):
            return program
        ignored = "the inputs and the backend of its folder"
        note = f"{path} is opened without {ignored}; open {path.parent} to use them"
        return replace(program, notes=(*program.notes, note))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.export.ExportedProgram):
        from nncdbg.engine.frontends.exported import from_exported

        return from_exported(source, flat=flat)
    pair = isinstance(source, tuple) and len(source) == 2
    if torch is not None and pair and isinstance(source[0], torch.nn.Module):  # type: ignore[index]
        from nncdbg.engine.frontends.exported import from_module

        return from_module(*source, flat=flat)  # type: ignore[misc]
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(source, onnx.ModelProto):
        from nncdbg.engine.frontends.onnx import from_model

        return from_model(source, flat=flat)
    building = sys.modules.get("nncdbg.engine.building.builder")
    if building is not None and isinstance(source, building.Builder):
        built: Program = source.program()
        return built
    owned = getattr(source, "program", None)
    if isinstance(owned, Program):
        return owned
    raise UsageError(
        f"cannot load a program from an object of type {_type_name(source)}",
        hint="pass the module with its arguments: (module, (x,))"
        if any(each.__module__.startswith("torch.nn.") for each in type(source).__mro__)
        else f"pass a path to a file ({', '.join(_suffixes())}), an onnx.ModelProto or a nncdbg.Program",
    )


def _training(source: ProgramSource, flat: bool) -> Program:
    """Return the program of the training in an ONNX model."""
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(source, onnx.ModelProto):
        from nncdbg.engine.frontends.onnx import from_model

        return from_model(source, flat=flat, training=True)
    if isinstance(source, (str, os.PathLike)) and _path_of(source).suffix.lower() == ".onnx":
        from nncdbg.engine.frontends.onnx import load as load_onnx

        return load_onnx(_path_of(source), flat=flat, training=True)
    shown = os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else _type_name(source)
    raise UsageError(
        f"only an ONNX model contains a training besides its graph, not {shown}",
        hint="open it without --training (Python: `training`)",
    )


def _path_of(source: str | os.PathLike[str]) -> Path:
    text = os.fsdecode(source)
    if "\n" in text:
        raise UsageError("this is program text, not a file path", hint="use nncdbg.parse(text)")
    return Path(text)


def _type_name(source: object) -> str:
    kind = type(source)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def open_stores(names: Sequence[str], folder: Path, allowed: Sequence[Path] = ()) -> tuple[Store, ...]:
    """Open the stores named in a program text, relative to `folder`.

    Raises LoadError if one cannot be opened, or is neither below `folder` nor below a folder in
    `allowed`: a text from another user must not read this user's files.
    """
    return tuple(_open(confined(name, folder, allowed)) for name in names)


def attach_stores(
    program: Program, folder: str | os.PathLike[str] = ".", allowed: Sequence[Path] = ()
) -> Program:
    """Return the program with its stores opened; options and errors are those of `open_stores`."""
    return replace(program, readers=open_stores(program.stores, Path(folder), allowed))


def confined(name: str, folder: Path, allowed: Sequence[Path], kind: str = "store") -> Path:
    """Return the path of a file that a text in `folder` names.

    Raises LoadError unless it is below `folder` or below a folder in `allowed`.
    """
    try:
        path = (folder / name).resolve()
        inside = path_inside(name, folder) or path.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise LoadError(f"the {kind} {name!r} has an invalid file name: {error}") from error
    if not inside and not any(path.is_relative_to(each.resolve()) for each in allowed):
        flag = f"--allow-store {shlex.quote(str(path.parent))}"
        raise LoadError(
            f'the {kind} "{name}" is outside the folder of the text: {folder.resolve()}',
            hint=f"if you trust the text, use {flag} (DAP: `allowStores`; Python: `stores`)",
        )
    # Return the path as the user wrote it, for errors.
    return folder / name


def _suffixes() -> list[str]:
    return [f".{name}" for name in extensions.names(extensions.FRONTENDS)]


def _imported(target: str) -> Callable[[Path], Any]:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def _open(path: Path) -> Store:
    target = _STORES.get(path.suffix.lower())
    if target is None:
        _unknown(path, "store", list(_STORES))
    store: Store = _imported(target)(path)
    return store


def _unknown(path: Path, kind: str, suffixes: Sequence[str]) -> NoReturn:
    known = ", ".join(suffixes)
    suffix = path.suffix.lower()
    if os.path.isdir(path):
        raise LoadError(
            f"{path} is a directory",
            hint=f"use a file with one of these suffixes: {known}",
        )
    missing = "" if os.path.exists(path) else f" (there is no file {path})"
    if kind == "model" and suffix == ".py":
        raise LoadError(f"{path} is a Python file, not a model", hint=_SCRIPT.format(path) + missing)
    raise LoadError(
        f'{path} has the suffix "{path.suffix}", which is not a known {kind}',
        hint=(_EXPORT if kind == "model" and suffix in _OF_TORCH else f"use one of: {known}") + missing,
    )
