"""The records of a program: plain, frozen dataclasses without behavior beyond equality.

SSA: a value is defined once per frame, and names never change.  Data is either `Inline` or a
`Reference` into a store, so the records of a model of gigabytes take a few kilobytes.

Control flow is three ops and a statement:

* ``"@name"`` calls the graph of that name: inputs and outputs are its parameters and results.
* ``"if"``: `inputs` is the condition, `subgraphs` the two branches (no inputs; they see the
  values around them), `outputs` the branches' outputs in order.
* ``"while"``: `inputs` is ``(times or None, *initial)``; `subgraphs` is the body, whose `inputs`
  are ``(counter, *carried)`` (an unused counter is ``Value("")``) and whose `outputs` are
  ``(*next, *collected)``; the node's `outputs` are the final carried values, then the
  collected ones stacked on a new first axis; an unused output is ``Value("")``.
* ``"break"`` inside a body leaves the loop unless its one input is true.  The results are the
  carried values of that moment; `next` is not reached, so nothing is collected.
* ``"update"`` gives states (its `outputs`, by name) the values of its `inputs`: every later statement of
  the run reads the new values.  It is the only statement that defines a name again.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg.dtypes import COMPLEX, FLOATS, NUMPY
from nncdbg.ir.kinds import Kind, called_graph, kind_of
from nncdbg.ir.source_trace import SourceTrace
from nncdbg.representation import RichOutput, represent

if TYPE_CHECKING:
    from nncdbg.text.listing import Listing

Path: TypeAlias = "tuple[str | int, ...]"
"""The place of a block: ``("main",)`` is a graph, ``("main", 5, 0)`` block 0 of its node 5, and so on."""

Dim: TypeAlias = "int | str | None"
"""A size, a symbol such as ``"N"``, or None for an unknown size (printed ``?``)."""

Array: TypeAlias = npt.NDArray[Any]

DEFAULT_DOMAIN = ""
"""ONNX's own operator domain; its ops carry no prefix in the text."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """`dtype` is a short name of `engine.dtypes`; `shape` None means unknown rank (``f32[...]``)."""

    dtype: str
    shape: tuple[Dim, ...] | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"

    @property
    def concrete(self) -> bool:
        """True if every size is a number."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type, such as ``seq(f32[...])``; a slot holds it as a Python list."""

    element: Type

    def __str__(self) -> str:
        return f"seq({self.element})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value that may be absent, such as ``opt(f32[2])``; a slot holds the value itself, or None."""

    element: Type

    def __str__(self) -> str:
        return f"opt({self.element})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A map such as ``map(str,f32)``; a slot holds it as a `Map`.  `key` and `value` are element types."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"map({self.key},{self.value})"


class Map(list[Any]):
    """The content of a map: the list of two tensors, its keys and its values, in the order of the map."""

    @property
    def type(self) -> MapType:
        """The element types of keys and values."""
        from nncdbg.dtypes import name_of

        return MapType(*(name_of(tensor.dtype) for tensor in self))

    @property
    def items(self) -> list[tuple[Any, Any]]:
        """The keys with their values, as Python objects."""
        keys, values = self
        return list(zip(keys.tolist(), values.tolist(), strict=True))


Type: TypeAlias = "TensorType | SequenceType | OptionalType | MapType"


def type_of(content: Any) -> TensorType | None:
    """Return the type of a tensor in a slot."""
    from nncdbg.dtypes import name_of

    if hasattr(content, "dtype") and hasattr(content, "shape"):
        return TensorType(name_of(content.dtype), tuple(content.shape))
    return None


def holds_maps(content: Any) -> bool:
    """Return whether the content of a slot is a sequence of maps."""
    return isinstance(content, list) and bool(content) and all(isinstance(each, Map) for each in content)


def tensor_only(type: Type | None) -> TensorType | None:
    """Return the type if it is a known tensor type, else None."""
    return type if isinstance(type, TensorType) else None


def has_cotangent(type: Type | None) -> bool:
    """Return False for the type of a value without a derivative: integers, bools, text."""
    while isinstance(type, (SequenceType, OptionalType)):
        type = type.element
    return type is None or (isinstance(type, TensorType) and type.dtype in FLOATS | COMPLEX)


def without_sizes(type: Type) -> Type:
    """Return the type with its sizes unknown, for a value whose sizes may change."""
    if isinstance(type, TensorType):
        return TensorType(type.dtype)
    return type if isinstance(type, MapType) else type.__class__(without_sizes(type.element))


@dataclass(frozen=True, slots=True)
class Location:
    """A position in the user's model: the source line, and the node's own name there.

    `stack` holds the callers, innermost first, as (file, line).
    """

    file: str | None = None
    line: int | None = None
    name: str | None = None
    stack: tuple[tuple[str, int], ...] = ()

    @property
    def place(self) -> str:
        """The source line, as ``train.py:9``; empty without one."""
        return f"{self.file}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        name = f'node "{self.name}"' if self.name else ""
        return ", ".join(part for part in (self.place, name) if part)


@dataclass(frozen=True, slots=True)
class Value:
    """A name and, if known, its type.  The empty name is an unused output."""

    name: str
    type: Type | None = None


def same_data(a: object, b: object) -> bool:
    """Return whether both are equal: -0.0 differs from 0.0, NaN equals itself, and 1 differs from True."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_data, a, b))
    return a == b


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """An operand written in place: a bool, int, float, str, or nested tuples of one of them.

    Its type follows from its position: the type of the other operands under the same type variable
    of the op's schema, else i64, f32, bool or str.
    """

    data: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and same_data(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class Inline:
    """Data in the program text.  Compared by dtype, shape and bytes."""

    array: Array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Inline):
            return False
        a, b = self.array, other.array
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.tolist() == b.tolist() if a.dtype.kind == "O" else a.tobytes() == b.tobytes()

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Reference:
    """Data in the program's store number `store`, under `key`."""

    key: str
    store: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    """A value known before the graph runs: a weight, or a number."""

    value: Value
    data: Inline | Reference


@dataclass(frozen=True, slots=True)
class StateLine:
    """A value that is kept from step to step: a parameter, a moment, a counter.

    `first` is its first value: data, or a statement that computes it, which may read the states before it.
    `of` is the state that it belongs to, such as the parameter of a moment.
    """

    value: Value
    first: Node | Inline | Reference
    of: str | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A ``group`` line: states under one name, such as all parameters.

    `members` are states and earlier groups.  With `prefix`, the group has all states whose names start with
    it, without those that belong to another state.
    """

    name: str
    members: tuple[str, ...] = ()
    prefix: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class TrackLine:
    """A ``track`` line: a number that each step computes, as an expression over values of the step.

    It belongs to the ``run`` or ``evaluate`` line before it.  `expression` is in the language of
    `engine.expression`; its names that no graph of the line defines are data given as inputs.
    """

    name: str
    expression: str
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A ``run`` line: a call of `graph` for each batch of its data.

    Input `values[i]` of the graph is a batch of `sources[i]`, or without sources of the program's input of
    that name; the first axis counts the samples.  `batch` is the number of samples per step (None: one
    sample, without that axis).  Each epoch uses all samples once, in the order of `shuffle`, a seed (None:
    as they are); the last batch may be smaller, or is left out with `drop_last`.  `steps` ends the run
    earlier, and is the number of steps of a run without data.  `evaluations` are the ``evaluate`` lines after
    the run: calls of a graph for all batches of their data after each epoch.  `tracks` are the ``track``
    lines after this line.
    """

    graph: str
    values: tuple[str, ...] = ()
    sources: tuple[Reference, ...] = ()
    batch: int | None = None
    epochs: int = 1
    shuffle: int | None = None
    drop_last: bool = False
    steps: int | None = None
    comment: str = ""
    evaluations: tuple[RunLine, ...] = ()
    tracks: tuple[TrackLine, ...] = ()


@dataclass(frozen=True, slots=True)
class BackwardLine:
    """A ``backward`` line: graph `name` is the gradient of graph `of` by the states and inputs `by`.

    `checkpoints` is how many iterations of a loop keep the values that they carry; None: all of them.
    """

    name: str
    of: str
    by: tuple[str, ...]
    comment: str = ""
    checkpoints: int | None = None

    def signature(self, of: Graph, states: Mapping[str, Type | None]) -> Graph:
        """Return the graph without its statements, for the graph that it differentiates.

        Its inputs are the cotangents of the float results, then what the call of `of` has saved.
        """
        floats = [value for value in of.outputs if has_cotangent(value.type)]
        types = {**states, **{value.name: value.type for value in of.inputs}}
        inputs = (*(Value(f"d_{value.name}", value.type) for value in floats), Value("saved"))
        return Graph(self.name, inputs, tuple(Value(f"d_{name}", types.get(name)) for name in self.by))


def zeros(value: Value) -> Node | None:
    """Return the statement written ``zeros``; None for a type without sizes or without zero.

    The element of ``ConstantOfShape`` is an f32, unless its attribute says otherwise.
    """
    known = tensor_only(value.type)
    if known is None or not known.concrete or known.dtype == "str" or known.dtype in COMPLEX:
        return None
    data = Inline(np.zeros(1, NUMPY[known.dtype]))
    attributes: dict[str, Attribute] = {} if known.dtype == "f32" else {"value": data}
    return Node("ConstantOfShape", (Literal(known.shape),), (value,), attributes)


def zeros_like(value: Value, of: str) -> Node:
    """Return the statement written ``zeros for %of``."""
    return Node("nncdbg.FullLike", (of,), (value,), {"value": 0.0})


Operand: TypeAlias = "str | Literal | None"
"""A value's name, inline data, or None for an omitted optional input (``_``)."""

Attribute: TypeAlias = "int | float | str | bytes | bool | Type | Inline | tuple[Any, ...]"
"""Floats are ONNX attribute floats, that is f32, unless f32 cannot represent them exactly."""


class StreamBinding(NamedTuple):
    """The stream that runs a logical stream; whether a margin has both numbers, and after `begin`."""

    logical: int
    stream: int
    written: bool
    begun: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a statement of a schedule runs, and what orders it: the margin ``| s2 wait e5 record e9``.

    `stream` is the number of a stream; None is the host, which waits and reads the operands itself.  The
    stream first waits for the latest record of each event of `waits`, then lets the streams `begins` wait for
    it, runs the statement, records the events `records`, and frees the memory of the values `frees`.
    `workspace` is the scratch memory that the kernel uses, by name: kernels with the same name share it.

    `logical` are the numbers that `stream` and then each of `begins` had in a plan that was bound to these
    streams, as in ``s3->4``; None for one without, and empty if none has one.
    """

    stream: int | None = None
    waits: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    workspace: str | None = None
    records: tuple[int, ...] = ()
    frees: tuple[str, ...] = ()
    logical: tuple[int | None, ...] = ()

    def bindings(self) -> list[StreamBinding]:
        """Return the bindings of `stream` and each of `begins`: without a logical number, to itself."""
        written = self.logical or (None,) * (1 + len(self.begins))
        return [
            StreamBinding(stream if logical is None else logical, stream, logical is not None, at > 0)
            for at, (logical, stream) in enumerate(zip(written, (self.stream, *self.begins), strict=True))
            if stream is not None
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One statement: `outputs = op(inputs, attributes)`.  `comment` holds its ``##`` lines.

    `placement` is its part of a schedule; without one, it runs while all streams are idle.  `inline` means
    that the text has the statement in the place of the operand that reads its result; it is no part of the
    identity.
    """

    op: str
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Value, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    subgraphs: tuple[Graph, ...] = ()
    location: Location | None = None
    comment: str = ""
    placement: Placement | None = None
    inline: bool = False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Node)
            and _same_line(self, other)
            and _same_graphs(self.subgraphs, other.subgraphs)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def kind(self) -> Kind:
        """Whether this is an op, a call or control flow."""
        return kind_of(self.op)

    @property
    def called(self) -> str | None:
        """The graph that the statement calls; None for other kinds."""
        return called_graph(self.op)

    def text(self) -> str:
        """Return the line of the statement, without its location; for `if` and `while` the opening line."""
        return str(represent("statement", self, locations=False))


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Statements in execution order.  The outputs of a nested graph have no type of their own.

    `begin` and `end` are the margins of its first and last line, in a schedule.
    """

    name: str
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    nodes: tuple[Node, ...] = ()
    constants: tuple[Constant, ...] = ()
    comment: str = ""
    begin: Placement | None = None
    end: Placement | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and _same_graphs((self,), (other,))

    __hash__ = None  # type: ignore[assignment]

    @property
    def module(self) -> str:
        """The path of the module that a graph is a call of: its name without numbers of calls."""
        return _CALL.sub("", self.name)


_CALL = re.compile(r"\$\d+")


def module_call(module: str, number: int) -> str:
    """Return the name for the graph of a call of a module: ``encoder``, then ``encoder$2``.

    No path of a module has a ``$``, while ``encoder.2`` may be the path of another module.
    """
    return module if number == 1 else f"{module}${number}"


def _same_graphs(these: Sequence[Graph], those: Sequence[Graph]) -> bool:
    """Return whether the graphs are equal, without recursion: nesting may exceed Python's stack."""
    if len(these) != len(those):
        return False
    stack = list(zip(these, those, strict=True))
    while stack:
        a, b = stack.pop()
        if (a.name, a.inputs, a.outputs, a.constants, a.comment, a.begin, a.end, len(a.nodes)) != (
            b.name,
            b.inputs,
            b.outputs,
            b.constants,
            b.comment,
            b.begin,
            b.end,
            len(b.nodes),
        ):
            return False
        for mine, other in zip(a.nodes, b.nodes, strict=True):
            if not _same_line(mine, other) or len(mine.subgraphs) != len(other.subgraphs):
                return False
            stack.extend(zip(mine.subgraphs, other.subgraphs, strict=True))
    return True


def _same_line(a: Node, b: Node) -> bool:
    """Return whether two statements are equal, apart from their blocks."""
    return (
        (a.op, a.inputs, a.outputs, a.location, a.comment, a.placement)
        == (b.op, b.inputs, b.outputs, b.location, b.comment, b.placement)
        and a.attributes.keys() == b.attributes.keys()
        and all(same_data(value, b.attributes[key]) for key, value in a.attributes.items())
    )


@dataclass(frozen=True, slots=True)
class SourceLines:
    """The lines of a source file that statements come from, by number, and the digest of the whole file.

    Steps that older versions recorded have only the lines of statements; without the source, there are none.
    """

    digest: str
    lines: Mapping[str, str]


def digest_of(text: str) -> str:
    """Return the SHA-256 of the lines of a text, which does not depend on the ends of the lines."""
    lines = "\n".join(text.splitlines())
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """How a program folder says that its program is run: arguments for callers that omit them.

    `inputs` are by name.  `op_libraries` are Python files that the program needs; they are never run unless
    a caller names them.  `origin` is the program folder, "" for a program from another source.  `checksums`
    are those of outputs of a recorded step by name, as the training computed them.  `sources` are by the file
    names of locations, and `trace` is how their lines ran.
    """

    origin: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "numpy"
    fallback: bool = False
    allocator: str | None = None
    seed: int = 0
    max_ops: int | None = None
    op_libraries: tuple[str, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, SourceLines] = field(default_factory=dict)
    trace: SourceTrace | None = None

    def completed(self, **given: Any) -> dict[str, Any]:
        """Return these arguments of a run; those that are None are the saved ones."""
        return {name: getattr(self, name) if value is None else value for name, value in given.items()}

    def completed_inputs(self, given: Mapping[str, Any] | None, graph: Graph) -> Mapping[str, Any] | None:
        """Return the given inputs, and the saved ones for other inputs of the graph; names may begin with %.

        What is no mapping is returned unchanged.
        """
        if not self.inputs or not isinstance(given, (Mapping, type(None))):
            return given
        given = given or {}
        named = {*given, *(str(name).removeprefix("%") for name in given)}
        wanted = {value.name for value in graph.inputs} - named
        return {**{name: data for name, data in self.inputs.items() if name in wanted}, **given}


@dataclass(frozen=True, slots=True)
class Program(RichOutput):
    """All graphs of a source; the run begins with `entry`.

    `states` are in the order in which they get their first values; `groups` name several of them.  With
    `runs`, these are executed in order instead of one run of `entry`.  `backwards` are gradients, made as
    graphs when the program is opened.  `streams` are the devices of the streams of a schedule by number; a
    stream that is not named has none.

    `stores` are the paths for `Reference.store`, as in the text; `opsets` maps an op domain to its
    version (empty: the newest supported).  These fields are not part of the identity: `groups`, `source` (the
    program's file), `readers` (opened stores), `listing` (the lines of that file, if it is graph text),
    `notes` (corrections made while reading the file), `prefixes` (label to the prefix that the text
    abbreviates in names; None: chosen by the printer), `saved` (how its folder says that it is run) and
    `places` (of a permuted program: for each block, the block before and the numbers of its statements).
    """

    graphs: Mapping[str, Graph]
    entry: str
    stores: tuple[str, ...] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)
    states: tuple[StateLine, ...] = ()
    runs: tuple[RunLine, ...] = ()
    backwards: tuple[BackwardLine, ...] = ()
    streams: Mapping[int, str] = field(default_factory=dict)
    groups: tuple[GroupLine, ...] = field(default=(), compare=False)
    source: str | None = field(default=None, compare=False)
    readers: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    listing: Listing | None = field(default=None, compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    prefixes: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    saved: SavedRun = field(default=SavedRun(), compare=False, repr=False)
    places: Mapping[Path, tuple[Path, tuple[int, ...]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    kept: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Cached derivations of the program by kind; a program derived from it starts with an empty cache."""

    def __getstate__(self) -> list[Any]:
        """Return the fields for a copy, without the cache."""
        return [{} if each.name == "kept" else getattr(self, each.name) for each in fields(self)]

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Program {self.summary()}>"

    @staticmethod
    def parse(text: str, *, file: str | None = None) -> Program:
        """Parse `text` into a program; `file` is its path, for errors.  Raises ParseError."""
        program: Program = represent("parse", text, file=file)
        return program

    def text(self, *, locations: bool = True) -> str:
        """Return the program as text with a final newline; without `loc` clauses if not `locations`."""
        return str(represent("program", self, locations=locations))

    def summary(self) -> str:
        """Return one line: file, signature, and the numbers of statements and graphs."""
        return str(represent("summary", self))

    def as_listing(self) -> Listing:
        """Return the lines that the program was read from, else those of its text without locations."""
        listing: Listing = represent("listing", self)
        return listing

    @property
    def graph(self) -> Graph:
        """The entry graph."""
        return self.graphs[self.entry]

    def executed(self, graph: Graph) -> Iterator[Node]:
        """Yield the statements of a graph and of the graphs that it calls, in order, without the calls.

        Blocks of control flow are not entered.
        """
        for node in graph.nodes:
            if (called := node.called) is not None:
                yield from self.executed(self.graphs[called])
            else:
                yield node
