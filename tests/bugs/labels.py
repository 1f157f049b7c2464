"""Labels in the programs of the corpus: the truth about each bug.

A label consists of lines `## key: value` before the entry graph, and of comments at the ends of statements:
`# origin` where the first finding originates, `# birth` where others originate, `# healed` where a value is
finite again, and `# culprit` at the other statement that is responsible.  README.md lists the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nncdbg
from nncdbg.engine.ops import declaration, library, schema
from nncdbg.engine.ops.causes import NAMES
from nncdbg.nan_watch.measuring.gates import USUAL

ROOT = Path(__file__).parent
SECOND = ROOT / "second"
INNOCENT = "innocent"
NOTHING = "nothing"

_KEYS = (
    *("expect", "cause", "iteration", "within", "evidence", "absent", "reaches", "origin"),
    *("gates", "library", "input", "because"),
)
_EXPECTED = ("nan", "inf", "uninitialized", "integer", "guard", NOTHING)
_REACHES = ("output", NOTHING, "unknown")
_KEY = re.compile(r"## (?P<key>[a-z]+): (?P<value>.*)")
_MARK = re.compile(r"[^#]\s# (?P<mark>\w+)$")
_MARKS = ("origin", "birth", "healed", "culprit")


@dataclass(frozen=True)
class Label:
    """The truth about one program.

    `lines` maps a mark to its lines; `origin` is the name of the responsible input or parameter, or "" if a
    statement is responsible.  `within` lists micro-ops, one of which is right; `evidence` is a text that the
    evidence must contain, and `absent` a text that neither the evidence nor the hint may contain.
    """

    expect: str
    cause: str | None
    iteration: tuple[int, ...]
    within: tuple[str, ...]
    evidence: str
    absent: str
    reaches: str
    origin: str
    gates: tuple[str, ...]
    libraries: tuple[str, ...]
    inputs: tuple[str, ...]
    because: str
    lines: Mapping[str, tuple[int, ...]]

    @property
    def innocent(self) -> bool:
        return self.expect == NOTHING


@dataclass(frozen=True, eq=False)
class Bug:
    """A program of the corpus: its file, and its label."""

    path: Path
    label: Label

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    def __str__(self) -> str:
        return self.name

    @property
    def program(self) -> nncdbg.Program:
        return nncdbg.load(self.path)

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Load its op libraries; unload them at the end, so that no other test has their ops."""
        files = [(self.path.parent / name).resolve() for name in self.label.libraries]
        try:
            for file in files:
                nncdbg.load_op_library(file)
            yield
        finally:
            for file in files:
                for name in library._LOADED.pop(file, ()):
                    del declaration._DECLARED[name]
            schema.schema.cache_clear()

    def inputs(self) -> dict[str, Any]:
        """Return the arrays of its `input` lines by name."""
        lines = self.label.inputs
        if not lines:
            return {}
        names = ", ".join(line.partition(":")[0] for line in lines)
        body = "".join(f"  {line}\n" for line in lines)
        text = f"graph @inputs() -> ({names}) {{\n{body}  return {names}\n}}\n"
        debugger = nncdbg.Debugger(nncdbg.parse(text), allocator="plain", statistics=False)
        debugger.run()
        assert debugger.outputs is not None, f"the inputs of {self} cannot be computed"
        return dict(debugger.outputs)


def corpus(root: Path = ROOT) -> list[Bug]:
    """Return every program of the corpus in this folder, by name."""
    return [Bug(path, label_of(path)) for path in sorted(root.glob("*/*.nnc"))]


def label_of(path: Path) -> Label:
    """Return the label in a program.  Raises ValueError for an unknown key or mark, such as a typo."""
    found: dict[str, list[str]] = {key: [] for key in _KEYS}
    marks: dict[str, list[int]] = {mark: [] for mark in _MARKS}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if key := _KEY.fullmatch(line):
            if key["key"] not in found:
                raise ValueError(f"{path.name}, line {number}: a label has no {key['key']!r}")
            found[key["key"]].append(key["value"])
        elif mark := _MARK.search(line):
            if mark["mark"] not in marks:
                raise ValueError(f"{path.name}, line {number}: there is no mark {mark['mark']!r}")
            marks[mark["mark"]].append(number)
    return _checked(path, found, {mark: tuple(lines) for mark, lines in marks.items()})


def _checked(path: Path, found: Mapping[str, list[str]], lines: Mapping[str, tuple[int, ...]]) -> Label:
    for key, values in found.items():
        if len(values) > 1 and key not in ("input", "library"):
            raise ValueError(f"{path.name}: {key} is given twice")
    one = {key: values[0] if values else "" for key, values in found.items()}
    label = Label(
        one["expect"],
        one["cause"] or None,
        tuple(map(int, one["iteration"].split(", "))) if one["iteration"] else (),
        tuple(one["within"].split(" or ")) if one["within"] else (),
        one["evidence"],
        one["absent"],
        one["reaches"] or "output",
        one["origin"].removeprefix("%"),
        tuple(one["gates"].split(", ")) if one["gates"] else USUAL,
        tuple(found["library"]),
        tuple(found["input"]),
        one["because"],
        lines,
    )
    wrong = _faults(path, label)
    if wrong:
        raise ValueError(f"{path.name}: {wrong}")
    return label


def _faults(path: Path, label: Label) -> str | None:
    if label.expect not in _EXPECTED or label.reaches not in _REACHES:
        return f"it expects {label.expect!r}, and reaches {label.reaches!r}"
    if label.innocent != (path.parent.name == INNOCENT):
        return f"controls, and only controls, are in {INNOCENT}/"
    origins = len(label.lines["origin"]) + bool(label.origin)
    if label.innocent:
        is_bug = bool(label.cause or origins)
        return "a control has a reason, no cause and no origin" if is_bug or not label.because else None
    if origins != 1:
        return f"{origins} origins; mark the first one as the origin, and the others as births"
    if label.cause is None and label.expect != "guard":
        return "it has no cause"
    if label.cause is not None and label.cause not in NAMES:
        return f"there is no cause {label.cause!r}"
    return None
