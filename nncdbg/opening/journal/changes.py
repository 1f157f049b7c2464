"""`--set NAME=VALUE`: what a fork has other than its parent.

A name is one of these, and it is an error if it is several:

* `NAME`: the attribute NAME that statements of optimizers write, such as `lr`.  If they have different
  values, `LINE:NAME` is that of one statement.
* `%NAME`, or `NAME` if there is no such attribute: a state, from the first step of the fork on; or an input
  of the program, in the whole fork.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import NUMPY
from nncdbg.engine.errors import ParseError, UsageError
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.values.new_values import from_text
from nncdbg.ir.records import Array, Node, Program, TensorType
from nncdbg.ir.walk import walk, walk_nodes

_LINE = re.compile(r"([1-9][0-9]*):(.+)")


@dataclass(slots=True)
class ForkChanges:
    """The text of a program with other attributes, the new values of states, and the texts of inputs."""

    text: str
    states: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)


def changed(
    program: Program, text: str, changes: Mapping[str, Any], states: Mapping[str, Any], folder: Path | None
) -> ForkChanges:
    """Return what a fork has other than its parent, whose program has this text.

    `states` are the values of the states at the fork, and `folder` is that of files.  Raises UsageError for a
    name that is unknown or ambiguous, and for a value that does not fit.
    """
    found = ForkChanges(text)
    for name, value in changes.items():
        _change(found, program, name, str(value), states, folder)
    return found


def _change(
    found: ForkChanges,
    program: Program,
    name: str,
    value: str,
    states: Mapping[str, Any],
    folder: Path | None,
) -> None:
    plain = name.removeprefix("%")
    attributes = [] if name.startswith("%") else _attributes(program, name)
    kinds = [
        *(["an attribute of an optimizer"] if attributes else []),
        *(["a state"] if plain in states else []),
        *(["an input"] if plain in {each.name for each in program.graph.inputs} | _data(program) else []),
    ]
    if not kinds:
        raise _unknown(program, name, value, states)
    if len(kinds) > 1:
        raise UsageError(
            f"--set {name}={value} is ambiguous: {name} is {' and '.join(kinds)}",
            hint=f"write %{name_text(plain)} for the value, or LINE:{plain} for the attribute of a statement",
        )
    if attributes:
        found.text = _with_attribute(found.text, program, attributes, plain.rpartition(":")[2], value)
    elif plain in states:
        found.states[plain] = _state(plain, np.asarray(states[plain]), value, folder)
    else:
        found.inputs[plain] = value


def _unknown(program: Program, name: str, value: str, states: Mapping[str, Any]) -> UsageError:
    """Return the error for a name that nothing has."""
    plain = name.removeprefix("%")
    if wanted := _LINE.fullmatch(plain):
        lines = [str(line) for line, node in _optimizers(program) if wanted[2] in node.attributes]
        return UsageError(
            f"--set {name}={value}: no optimizer in line {wanted[1]} writes {wanted[2]}",
            hint=f"lines that write it: {', '.join(lines[:8]) or 'none'}",
        )
    return UsageError(
        f"--set {name}={value}: no optimizer writes {plain}, and no state or input has this name",
        hint=f"states: {', '.join(f'%{name_text(each)}' for each in [*states][:8]) or 'none'}",
    )


def _data(program: Program) -> set[str]:
    """Return the names of the inputs that the runs of a program read."""
    lines = [line for run in program.runs for line in (run, *run.evaluations)]
    return {name for line in lines if not line.sources for name in line.values}


# -- attributes --------------------------------------------------------------------------------------


def _attributes(program: Program, name: str) -> list[tuple[int, Node]]:
    """Return (line, statement) of each optimizer that writes the attribute, in `LINE:NAME` that of the line.

    Raises UsageError if they have different values.
    """
    wanted = _LINE.fullmatch(name)
    attribute = wanted[2] if wanted else name
    found = [
        (line, node)
        for line, node in _optimizers(program)
        if attribute in node.attributes and (wanted is None or line == int(wanted[1]))
    ]
    if len({repr(node.attributes[attribute]) for _, node in found}) > 1:
        listed = ", ".join(f"{_spelled(node.attributes[attribute])} in line {line}" for line, node in found)
        raise UsageError(
            f"--set {name} is ambiguous: the optimizers have different values of {name}: {listed}",
            hint=f"write --set {found[0][0]}:{name}=VALUE for one of them",
        )
    return found


def _spelled(content: Any) -> str:
    """Return an attribute as the program writes it: floats of ONNX are f32."""
    return str(np.float32(content)) if isinstance(content, float) else repr(content)


def _optimizers(program: Program) -> list[tuple[int, Node]]:
    """Return the statements of optimizers, with their lines in the text of the program."""
    listing, found = program.as_listing(), []
    for path, _, pc, node in walk(program.graphs):
        op = lookup(node.op, version_of(node.op, program.opsets))
        if op is not None and op.optimizes:
            found.append((listing.line(path, pc), node))
    return found


def _with_attribute(
    text: str, program: Program, places: list[tuple[int, Node]], attribute: str, value: str
) -> str:
    """Return the text with another value of an attribute; comments and lines stay.

    Raises UsageError for a value that the program does not accept there.
    """
    from nncdbg.textual_repr.parser import parse

    lines = text.split("\n")
    spelled = re.compile(rf"(?<![\w.%]){re.escape(attribute)}\s*=\s*[^,()\[\]]+(?=[,)])")
    for line, _ in places:
        lines[line - 1], count = spelled.subn(f"{attribute}={value}", lines[line - 1])
        if count != 1:
            raise UsageError(
                f"--set {attribute}={value}: line {line} does not write {attribute} once",
                hint="change the program, and start the training again",
            )
    changed = "\n".join(lines)
    try:
        made = parse(changed)
    except ParseError as error:
        raise UsageError(
            f'--set {attribute}={value}: "{value}" is not a value of an attribute', hint=error.hint
        ) from None
    before = [*walk_nodes(parse(text))]
    after = [*walk_nodes(made)]
    pairs = [*zip(before, after, strict=True)] if len(before) == len(after) else []
    different = [(a, b) for a, b in pairs if a != b]
    same_kind = all(
        _kind(a.attributes.get(attribute)) is _kind(b.attributes.get(attribute)) for a, b in different
    )
    if not pairs or len(different) > len(places) or not same_kind:
        raise UsageError(f"--set {attribute}={value}: the value does not fit", hint="write a value as before")
    return changed


def _kind(content: object) -> type:
    """Return the type of an attribute; integers are floats too."""
    return float if isinstance(content, int) and not isinstance(content, bool) else type(content)


# -- states ------------------------------------------------------------------------------------------


def _state(name: str, now: Array, text: str, folder: Path | None) -> Array:
    """Return the new value of a state; a single number is the value of each element."""
    dtype = next(key for key, known in NUMPY.items() if known == now.dtype)
    data = from_text(name, TensorType(dtype, now.shape), text, folder, _ignore)
    try:
        array = np.asarray(data).astype(
            now.dtype, casting="same_kind" if hasattr(data, "dtype") else "unsafe"
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"--set %{name_text(name)}: {error}", hint=f"give values of {dtype}") from None
    if array.shape not in ((), now.shape):
        raise UsageError(
            f"--set %{name_text(name)} has the shape {list(now.shape)}, not {list(array.shape)}",
            hint="give a value of the same shape, or one number for all elements",
        )
    return np.broadcast_to(array, now.shape).copy()


def _ignore(sentence: str) -> None:
    """Ignore the sentence about the conversion of an image: the value of a state is a tensor."""
