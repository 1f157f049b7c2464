"""Setup of a recorded session: program, inputs, options and versions.

Inputs are recorded as given (a file, `normal`, a short list) with a digest of their content.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nncdbg.commands.recording.script import RecordedScript
from nncdbg.errors import UsageError
from nncdbg.extensions import BACKENDS, BUILT_IN
from nncdbg.opening.configuration import RunConfiguration, settings
from nncdbg.opening.journal_address import read_address
from nncdbg.opening.python_programs import is_python_name
from nncdbg.stats.digests import digest
from nncdbg.text.lexemes import name_text
from nncdbg.version import __version__

if TYPE_CHECKING:
    from nncdbg.target.records import Setup as OpenedSetup
    from nncdbg.target.target import Target

Confirm = Callable[[str], bool]
"""Asks the user a yes-or-no question; returns True for yes."""

_LONGEST = 64
"""Maximum number of elements of an array stored as a list."""

_LARGEST = 1 << 28
"""Maximum number of bytes of a file that are digested."""

_PART = 1 << 20
"""Size in bytes of a part of a larger file that is digested."""

_LIBRARIES = ("onnx", *BUILT_IN[BACKENDS])

_VARIABLES = (
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "NNCDBG_RANK"),
    *("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED"),
)


class RecordedInput(msgspec.Struct, frozen=True):
    """A recorded input.

    `given` is the command-line form of the input; None if it was random or cannot be stored.
    """

    digest: str
    given: str | None = None
    drawn: bool = False


class Setup(msgspec.Struct, frozen=True):
    """The recorded setup.

    `program` is as the user wrote it, relative to `folder`.  `text` is a digest of the program's text,
    `files` has digests of its files.  `options` are the other fields of the run configuration that were
    given; None if the session was not opened from a run configuration, so that it cannot be opened again.
    `environment` has the machine and the variables that change results.  `script` has opened the prompt, if
    there is one: the program is then the script.
    """

    program: str
    folder: str
    text: str
    files: dict[str, str]
    inputs: dict[str, RecordedInput]
    dims: dict[str, int]
    seed: int
    backend: str
    allocator: str
    options: dict[str, Any] | None
    versions: dict[str, str]
    environment: dict[str, str] = {}
    script: RecordedScript | None = None

    def supplied(self, program: str) -> dict[str, Any]:
        """Return the fields of the run configuration that the recording supplies to open `program`.

        A run of a journal has inputs and settings of its own.
        """
        if self.options is not None and read_address(program) is not None:
            return self.options
        fields = {name: getattr(self, name) for name in ("seed", "backend", "allocator", "dims")}
        given = {name: each.given for name, each in self.inputs.items() if each.given is not None}
        return {**fields, **(self.options or {}), "inputs": given}

    def check_python(self, *, allowed: bool) -> None:
        """Raise UsageError for a recording that loads Python code to open its program, unless `allowed`."""
        files = [*(self.options or {}).get("op_libraries", ())]
        if self.script is not None:
            files.append(self.script.file)
        elif is_python_name(self.program, Path(self.folder)):
            files.append(self.program)
        if files and not allowed:
            raise UsageError(
                f"the recording loads the Python code of {', '.join(files)}",
                hint="review the code, then load it with --allow-python",
            )


_OTHERWISE = frozenset(("program", "folder", "record", "inputs", "dims", "seed"))
"""Fields of the run configuration that are not among the options of a setup."""

_JOURNAL = frozenset(
    (
        *("journal", "checkpoint_every", "checkpoint_budget", "on_journal_error", "note"),
        *("journal_statistics", "journal_values", "journal_values_every", "journal_codec"),
    )
)
"""Fields of the journal that a session writes; a replay writes none."""


def setup_of(target: Target, program: str, configuration: RunConfiguration | None = None) -> Setup:
    """Return the setup of a session on a program, as the user wrote it, opened from `configuration`."""
    base = Path((configuration.folder if configuration is not None else None) or os.getcwd())
    libraries = configuration.op_libraries if configuration is not None else ()
    opened = target.setup
    files = [program, *opened.files, *map(str, libraries)]
    files = [_within(path, base) for path in files]
    return Setup(
        _within(program, base),
        str(base),
        hashlib.blake2b("\n".join(target.listing.lines).encode(), digest_size=16).hexdigest(),
        {name: file_digest(base / name) for name in dict.fromkeys(files) if (base / name).is_file()},
        {name: _recorded(opened, name, content) for name, content in opened.inputs.items()},
        dict(opened.dims),
        opened.seed,
        opened.backend,
        opened.allocator,
        None if configuration is None else dict(_options(configuration)),
        dict(_versions()),
        dict(_environment()),
    )


def setup_of_script(script: RecordedScript) -> Setup:
    """Return the setup of a session at the prompts of a script, in the current folder."""
    base = Path.cwd()
    files = {name: file_digest(base / name) for name in script.files() if (base / name).is_file()}
    versions, environment = dict(_versions()), dict(_environment())
    return Setup(script.file, str(base), "", files, {}, {}, 0, "", "", None, versions, environment, script)


def _within(path: str, folder: Path) -> str:
    """Return a path relative to `folder` if it is inside."""
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path


def _options(configuration: RunConfiguration) -> Iterator[tuple[str, Any]]:
    for name in settings():
        if name in configuration.given and name not in _OTHERWISE | _JOURNAL:
            yield name, getattr(configuration, name)


def file_digest(path: Path) -> str:
    """Return a digest of a file; of a large one, of its size and of parts spread over it."""
    size, parts = path.stat().st_size, _LARGEST // _PART
    made = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        if size <= _LARGEST:
            while content := file.read(_PART):
                made.update(content)
        else:
            made.update(b"%d bytes" % size)
            for number in range(parts):
                file.seek(number * (size - _PART) // (parts - 1))
                made.update(file.read(_PART))
    return made.hexdigest()


def _recorded(setup: OpenedSetup, name: str, content: Any) -> RecordedInput:
    if name not in setup.given:
        return RecordedInput(digest(content), drawn=True)
    data = setup.given[name]
    return RecordedInput(digest(content), str(data) if isinstance(data, (str, Path)) else _as_list(content))


def _as_list(content: Any) -> str | None:
    """Return a short array of finite numbers as text that parses to the same array; None for others."""
    if not isinstance(content, np.ndarray) or content.size > _LONGEST or content.dtype.kind not in "fiub":
        return None
    text = msgspec.json.encode(content.tolist()).decode()
    return text if np.isfinite(content).all() else None


def _environment() -> Iterator[tuple[str, str]]:
    """Yield the machine and the set variables that change the order of sums, the device or a hash."""
    yield "machine", f"{platform.system()} {platform.machine()}"
    yield "processors", str(os.cpu_count())
    for name in _VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]


def _versions() -> Iterator[tuple[str, str]]:
    yield "nncdbg", __version__
    yield "python", platform.python_version()
    for name in _LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


# -- comparing -------------------------------------------------------------------------------------------


def changes(setup: Setup, target: Target, program: str) -> Iterator[str]:
    """Yield the differences between the recorded and the current setup, one sentence each."""
    if setup.script is not None:
        yield from script_changes(setup)
        return
    now = setup_of(target, program)
    if now.text != setup.text:
        yield f"the program has changed since the recording of {setup.program}"
        # The text of a program says more than its file.
        yield from _changed_files(setup, [path for path in setup.files if path != setup.program])
    else:
        yield from _changed_files(setup, setup.files)
    for name, recorded in setup.inputs.items():
        given = now.inputs.get(name)
        if given is None:
            yield f"the recorded input %{name_text(name)} is not in the program"
        elif given.digest != recorded.digest:
            yield f"input %{name_text(name)} differs from the recorded input{_way(recorded)}"
    for name in ("seed", "backend", "allocator"):
        if getattr(now, name) != getattr(setup, name):
            yield f"recorded with {name} {getattr(setup, name)}, replayed with {getattr(now, name)}"
    yield from _changed_words(setup)


def script_changes(setup: Setup) -> Iterator[str]:
    """Yield the differences between the recorded and the current setup of a script, one sentence each."""
    yield from _changed_files(setup, setup.files)
    yield from _changed_words(setup)


def _changed_files(setup: Setup, paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        places = [Path(path), Path(setup.folder, path)]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            yield f"the file {path} of the recording is not there"
        elif file_digest(found) != setup.files[path]:
            yield f"the file {path} has changed since the recording"


def _way(recorded: RecordedInput) -> str:
    if recorded.given is not None:
        return f" ({recorded.given})"
    return "" if recorded.drawn else ", which was an array: pass it with --input"


def _changed_words(setup: Setup) -> Iterator[str]:
    """Yield the differences of the versions and the environment, which a recording may lack."""
    versions, environment = dict(_versions()), dict(_environment())
    yield from _changed(setup.versions, versions, setup.versions)
    if setup.environment:
        yield from _changed(setup.environment, environment, {**setup.environment, **environment})


def _changed(before: Mapping[str, str], now: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    for name in names:
        recorded, found = before.get(name, "none"), now.get(name, "none")
        if found != recorded:
            yield f"recorded with {name} {recorded}, replayed with {found}"
