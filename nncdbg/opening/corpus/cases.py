"""Cases of a corpus: list a folder, read one case's inputs, and the records of runs and results.

A case is a file (`.npz` or `.safetensors` with an array per input, `.npy` for a model of one input) or a
folder: with a file NAME.npy per input (NAME.npz for a sequence), or an ONNX test data set (`input_0.pb`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nncdbg.engine.inputs.npy import archive_names, choice
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.records import Graph, OptionalType
from nncdbg.text.lexemes import name_text

# -- files of cases --------------------------------------------------------------------------------

_SUFFIXES = (".npz", ".npy", ".safetensors")
_MESSAGE = re.compile(r"input_(\d+)\.pb")
_UNNAMED = re.compile(r"arr_(\d+)")

_FORMS = "files .npz, .npy, .safetensors, or folders of NAME.npy or input_0.pb"


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A case by its name in the corpus; `path` is a file or a folder."""

    name: str
    path: str


def case_files(folder: str | Path) -> tuple[list[CaseFile], list[str]]:
    """Return the cases in a folder, sorted by name, and the names of files that are no cases.

    A folder that is a test data set itself is a single case.  Hidden files are skipped.  Raises
    LoadError for an unreadable folder, UsageError for one without a case.
    """
    base = Path(folder)
    try:
        entries = sorted(entry for entry in base.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise LoadError(f"cannot read the folder {base}: {error.strerror or error}") from error
    if any(_MESSAGE.fullmatch(entry.name) for entry in entries):
        return [CaseFile(base.resolve().name, str(base))], []
    cases = [entry for entry in entries if entry.is_dir() or entry.suffix.lower() in _SUFFIXES]
    skipped = [entry.name for entry in entries if entry not in set(cases)]
    if not cases:
        raise UsageError(f"no cases in {base}", hint=f"cases are {_FORMS}")
    return [CaseFile(entry.name, str(entry)) for entry in cases], skipped


def case_inputs(case: CaseFile, graph: Graph) -> dict[str, Any]:
    """Return the inputs of a case as `Debugger` takes them; most arrays are read there.

    Raises LoadError for an unreadable file, UsageError for data that does not fit the inputs.
    """
    path = Path(case.path)
    if path.is_dir():
        return _folder(path, graph)
    match path.suffix.lower():
        case ".npz":
            names = archive_names(path)
            return {_named(name, graph): f"{path}:{name}" for name in names}
        case ".npy":
            return {_only_input(path, graph): str(path)}
        case _:
            from nncdbg.engine.frontends.tensor_file import open_store

            store = open_store(path)
            keys = store.keys()
            return {_named(key, graph): store.read(key) for key in keys}


def _named(name: str, graph: Graph) -> str:
    """Return the input for an array; `arr_0` is the first input unless one has that name."""
    known = [value.name for value in graph.inputs]
    unnamed = _UNNAMED.fullmatch(name)
    if unnamed and name not in known and int(unnamed[1]) < len(known):
        return known[int(unnamed[1])]
    return name


def _only_input(path: Path, graph: Graph) -> str:
    needed = [value.name for value in graph.inputs if not isinstance(value.type, OptionalType)]
    if len(needed) != 1:
        raise UsageError(
            f"{path.name} is one array, but the model has {len(needed)} inputs: {', '.join(needed)}",
            hint="use one .npz file, or a folder with one .npy file per input",
        )
    return needed[0]


def _folder(path: Path, graph: Graph) -> dict[str, Any]:
    try:
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise LoadError(f"cannot read the folder {path}: {error.strerror or error}") from error
    matches = [(_MESSAGE.fullmatch(entry.name), entry) for entry in entries]
    messages = [(int(match[1]), entry) for match, entry in matches if match]
    if messages:
        return _messages(messages, graph)
    arrays = [entry for entry in entries if entry.suffix.lower() in (".npy", ".npz")]
    if not arrays:
        raise UsageError(
            f"the folder {path.name} contains no inputs",
            hint="add one file per input: NAME.npy or input_0.pb",
        )
    spelled = _spelled(value.name for value in graph.inputs)
    found: dict[str, Any] = {}
    for entry in arrays:
        name = spelled.get(entry.stem)
        if name is None:
            raise UsageError(
                f'{path.name}/{entry.name}: @{graph.name} has no input "{entry.stem}"',
                hint=choice(entry.stem, spelled),
            )
        if name in found:
            raise UsageError(f"{path.name} contains %{name_text(name)} twice")
        found[name] = str(entry)
    return found


def _spelled(names: Iterable[str]) -> Mapping[str, str]:
    """Map names as files spell them to names: characters other than letters, digits and `_.-` become `_`."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault("".join(char if char.isalnum() or char in "_.-" else "_" for char in name), name)
        found[name] = name
    return found


def _messages(messages: Iterable[tuple[int, Path]], graph: Graph) -> dict[str, Any]:
    from nncdbg.engine.frontends.onnx_store import load_data

    found = {}
    for number, entry in messages:
        if number >= len(graph.inputs):
            raise UsageError(f"{entry.name} has no matching input in @{graph.name}")
        value = graph.inputs[number]
        found[value.name] = load_data(entry, value.type)
    return found


# -- runs and results ------------------------------------------------------------------------------

FAILED, CRASHED, NOT_RUN = "failed", "crashed", "not run"

UNSUPPORTED = "unsupported"
"""The status of a case that stopped at an op without a kernel."""

CODES = {"unfit": 2, "unreadable": 3, UNSUPPORTED: 3, FAILED: 4, CRASHED: 4}
"""Exit codes of cases that did not finish, by status."""

_MOST_WORDS = 20
"""Most distinct sentences of one kind in a report."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One run: a seed, and a case of a folder or None for inputs that are the same each time."""

    index: int
    name: str
    case: CaseFile | None
    seed: int


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a corpus: its name, its status, and its error if it could not be run."""

    name: str
    status: str
    ops: int = 0
    seconds: float = 0.0
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        facts = {name: getattr(self, name) for name in ("name", "status", "ops", "seconds")}
        return {**facts, "error": self.error or None}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The verdict on a run; `found` is what the task returns besides, None for a run that did not finish."""

    index: int
    case: Case
    found: Any = None


def sentences(words: Counter[str], runs: int) -> list[str]:
    """Return each sentence once, bounded, with its number of runs if it does not apply to all."""
    sentences = [
        text if count == runs else f"{text} (in {count} of {runs} runs)" for text, count in words.items()
    ]
    more = len(sentences) - _MOST_WORDS
    return sentences if more <= 0 else [*sentences[:_MOST_WORDS], f"and {more} more"]
