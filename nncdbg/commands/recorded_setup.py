"""Setup of a recorded session: model, inputs, options and versions, stored as one line of its file.

The line is a comment with a JSON document, so a recording remains a file of commands. Arrays are stored as
given (a file, `normal`, a short list) with a digest of their content.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import numpy as np

from nncdbg.commands.recording import HEAD, SETUP, Confirm, write_line
from nncdbg.engine.divergence.observers import digest
from nncdbg.engine.errors import UsageError
from nncdbg.engine.extensions import BACKENDS, BUILT_IN
from nncdbg.version import __version__

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger

_LONGEST = 64
"""Maximum number of elements of an array stored as a list."""

_LARGEST = 1 << 28
"""Maximum size in bytes of a file that is digested; for larger files only the size is stored."""

_LIBRARIES = ("onnx", *BUILT_IN[BACKENDS])


class RecordedInput(msgspec.Struct, frozen=True):
    """A recorded input.

    `given` is the command-line form of the input; None if it was random or cannot be stored.
    """

    digest: str
    given: str | None = None
    drawn: bool = False


class Setup(msgspec.Struct, frozen=True):
    """The recorded setup: `program` is a digest of the text, `files` are digests of its files, by path."""

    model: str
    program: str
    files: dict[str, str]
    inputs: dict[str, RecordedInput]
    dims: dict[str, int]
    seed: int
    backend: str
    allocator: str
    versions: dict[str, str]

    @property
    def supplied(self) -> dict[str, Any]:
        """Return the fields of the run configuration that the recording supplies as defaults."""
        settings = {name: getattr(self, name) for name in ("seed", "backend", "allocator", "dims")}
        given = {name: each.given for name, each in self.inputs.items() if each.given is not None}
        return {**settings, "inputs": given}


def start_recording(
    path: str, debugger: Debugger, title: str, *, force: bool = False, confirm: Confirm | None = None
) -> TextIO:
    """Open `path` for a session on the model `title`, and write its setup.

    An existing recording is overwritten with `force`, or if `confirm` returns True. Raises UsageError if
    neither is the case, if the file is not a recording, or if it cannot be written.
    """
    try:
        _check_free(Path(path), force, confirm)
        setup = msgspec.json.encode(setup_of(debugger, title)).decode()
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115  it stays open for the session
    except OSError as error:
        raise UsageError(f"cannot record to {path}: {error.strerror}") from None
    write_line(file, f"{HEAD}: {' '.join(title.split())}\n{SETUP}{setup}")
    return file


def _check_free(path: Path, force: bool, confirm: Confirm | None) -> None:
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        ours = file.read(len(HEAD)) == HEAD.encode()
    if not ours:
        raise UsageError(f"{path} is not a recorded session, and was not changed", hint="choose another name")
    if not force and (confirm is None or not confirm(f"overwrite the recording {path}?")):
        raise UsageError(
            f"the recording {path} already exists, and was not changed",
            hint="choose another name, or overwrite the recording with --force",
        )


def setup_of(debugger: Debugger, model: str) -> Setup:
    """Return the setup of a session; `model` is the name as the user typed it."""
    folder = Path(debugger.program.source or model).parent
    files = [Path(model), *(folder / store for store in debugger.program.stores)]
    return Setup(
        model,
        hashlib.blake2b("\n".join(debugger.loaded.listing.lines).encode(), digest_size=16).hexdigest(),
        {str(path): _file_digest(path) for path in dict.fromkeys(files) if path.is_file()},
        {name: _recorded(debugger, name, content) for name, content in debugger.inputs.items()},
        dict(debugger.inputs.dims),
        debugger.inputs.seed,
        debugger.backend.name,
        debugger.loaded.allocation.name,
        dict(_versions()),
    )


def _file_digest(path: Path) -> str:
    size = path.stat().st_size
    if size > _LARGEST:
        return f"{size} bytes"
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _recorded(debugger: Debugger, name: str, content: Any) -> RecordedInput:
    if name not in debugger.inputs.given:
        return RecordedInput(digest(content), drawn=True)
    data = debugger.inputs.given[name]
    return RecordedInput(digest(content), str(data) if isinstance(data, (str, Path)) else _as_list(content))


def _as_list(content: Any) -> str | None:
    """Return a short array of finite numbers as text that parses to the same array; None for others."""
    if not isinstance(content, np.ndarray) or content.size > _LONGEST or content.dtype.kind not in "fiub":
        return None
    text = msgspec.json.encode(content.tolist()).decode()
    return text if np.isfinite(content).all() else None


def _versions() -> Iterator[tuple[str, str]]:
    yield "nncdbg", __version__
    yield "python", platform.python_version()
    for name in _LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


# -- reading ---------------------------------------------------------------------------------------------


def read_setup(path: str) -> Setup | None:
    """Return the setup in a recording; None if there is none, as in a plain command file.

    Raises UsageError if it is damaged or the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            line = next((line for line in file if line.startswith(SETUP)), None)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read the recording {path}: {reason}") from None
    if line is None:
        return None
    try:
        return msgspec.json.decode(line.removeprefix(SETUP), type=Setup)
    except msgspec.DecodeError as error:
        raise UsageError(f"the setup in {path} is damaged: {error}") from None


def changes(setup: Setup, debugger: Debugger, model: str) -> Iterator[str]:
    """Yield the differences between the recorded and the current setup, one sentence each."""
    now = setup_of(debugger, model)
    if now.program != setup.program:
        yield f"the model has changed since the recording of {setup.model}"
    else:
        yield from _changed_files(setup, now)
    for name, recorded in setup.inputs.items():
        found = now.inputs.get(name)
        if found is None:
            yield f"the recorded input %{name} is not in the model"
        elif found.digest != recorded.digest:
            yield f"input %{name} differs from the recorded input{_way(recorded)}"
    for name in ("seed", "backend", "allocator"):
        if getattr(now, name) != getattr(setup, name):
            yield f"recorded with {name} {getattr(setup, name)}, replayed with {getattr(now, name)}"
    yield from _changed_versions(setup.versions, now.versions)


def _changed_files(setup: Setup, now: Setup) -> Iterator[str]:
    for path, recorded in setup.files.items():
        if now.files.get(path, recorded) != recorded:
            yield f"the file {path} has changed since the recording"


def _way(recorded: RecordedInput) -> str:
    if recorded.given is not None:
        return f" ({recorded.given})"
    return "" if recorded.drawn else ", which was an array: pass it with --input"


def _changed_versions(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name, recorded in before.items():
        found = now.get(name, "none")
        if found != recorded:
            yield f"recorded with {name} {recorded}, replayed with {found}"
