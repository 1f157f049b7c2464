"""Random programs for Hypothesis: well-formed, SSA, with nested blocks, calls, unusual names and data.

Use `programs()`; the other strategies draw its parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from nncdbg.dtypes import COMPLEX, FLOATS, NUMPY
from nncdbg.ir.records import (
    Array,
    Constant,
    Graph,
    Inline,
    Literal,
    Location,
    Node,
    Operand,
    Placement,
    Program,
    Reference,
    TensorType,
    Value,
)

WORDS = [
    "graph",
    "if",
    "else",
    "while",
    "break",
    "next",
    "yield",
    "return",
    "data",
    "nan",
    "inf",
    "true",
    "_",
    "type",
]
SIMPLE = ["x", "y.1", "/conv1/Conv_output_0", "$0", "7", "a/b.c", "T_1"]
UNUSUAL = [
    "conv:0",
    "p::x",
    "a b",
    "%",
    '"',
    "\\",
    "a\nb",
    "\x00",
    "\u2028",
    "\ud800",
    "ü",
    "-",
    "@",
    "#",
    ", %x",
    " = ",
    "{",
    "}",
    "\r",
]

texts = st.text(max_size=6)
names = st.sampled_from(WORDS + SIMPLE + UNUSUAL) | st.text(min_size=1, max_size=5)
"""Nonempty names; drawn names may repeat."""

labels = st.sampled_from(["p", "enc.0", "_", "data", "nan", "a.b.", "X1"])
prefix_texts = st.sampled_from(
    ["/conv1/", "a/", "a", "y.", "/", "\\", '"', "a\n", "p::", "%", "T_1"]
) | st.text(min_size=1, max_size=2)
op_names = st.sampled_from(
    ["Conv", "Add", "Relu", "aten.relu", "jax.dot_general", "a::b", "odd op", "", *WORDS]
).filter(lambda name: name not in ("if", "while", "break"))
comments = st.just("") | st.lists(st.text(max_size=12), min_size=1, max_size=3).map("\n".join)
locations = st.none() | st.builds(
    Location,
    st.none() | texts,
    st.none() | st.integers(0, 99999),
    st.none() | texts,
    st.lists(st.tuples(texts, st.integers(0, 9999)), max_size=2).map(tuple),
)
dims = (
    st.none() | st.integers(0, 9) | st.sampled_from(["N", "batch_size", "N*2", "?", "3", "a]b", 'q"', "..."])
)
types = st.builds(TensorType, st.sampled_from(list(NUMPY)), st.none() | st.lists(dims, max_size=4).map(tuple))
maybe_types = st.none() | types

floats32 = st.floats(width=32)
plain_scalars = st.booleans() | st.integers() | st.floats() | texts


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Draw an array of any element type and rank 0 to 3, possibly empty; floats have random bits."""
    dtype = draw(st.sampled_from(list(NUMPY)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = int(np.prod(shape))
    if dtype == "str":
        array = np.empty(count, np.object_)
        array[:] = draw(st.lists(texts | st.binary(max_size=4), min_size=count, max_size=count))
        return array.reshape(shape)
    if dtype == "bool":
        return np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_).reshape(
            shape
        )
    numpy = NUMPY[dtype]
    if dtype in FLOATS or dtype in COMPLEX:
        raw = draw(st.binary(min_size=count * numpy.itemsize, max_size=count * numpy.itemsize))
        if dtype == "f4e2m1fn":
            raw = bytes(byte & 0xF for byte in raw)
        return np.frombuffer(raw, numpy).reshape(shape)
    bits = int("".join(c for c in dtype if c.isdigit()))
    low, high = (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    return np.array(values, np.uint64 if dtype == "u64" else np.int64).astype(numpy).reshape(shape)


literals = st.recursive(
    plain_scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4
).map(Literal)
attribute_values = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats()
    | floats32
    | texts
    | st.binary(max_size=4)
    | types
    | arrays().map(Inline),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
attribute_keys = st.sampled_from(["pads", "axis", "nan", "true", "data", "a-b", "", "_", "x y"])
attributes = st.dictionaries(attribute_keys, attribute_values, max_size=3)


@dataclass
class _Scope:
    """The names of a graph that are in use."""

    draw: st.DrawFn
    fresh: Iterator[int] = field(default_factory=itertools.count)
    taken: set[str] = field(default_factory=set)

    def name(self) -> str:
        """Draw a name that no value of the graph has."""
        name = self.draw(names)
        while name in self.taken:
            name = f"{name}.{next(self.fresh)}"
        self.taken.add(name)
        return name

    def value(self) -> Value:
        return Value(self.name(), self.draw(maybe_types))

    def output(self) -> Value:
        """Draw a value, or sometimes an unused output."""
        return Value("") if self.draw(st.integers(0, 4)) == 0 else self.value()


def _operand(scope: _Scope, visible: list[str]) -> Operand:
    draw = scope.draw
    if visible and draw(st.integers(0, 3)) > 0:
        return draw(st.sampled_from(visible))
    return draw(st.none() | literals)


def _some(scope: _Scope, make: Callable[[], Any], most: int) -> tuple[Any, ...]:
    return tuple(make() for _ in range(scope.draw(st.integers(0, most))))


def _values_of(scope: _Scope, visible: list[str], count: int) -> tuple[Value, ...]:
    return tuple(Value(scope.draw(st.sampled_from(visible))) for _ in range(count))


def _constants(scope: _Scope) -> tuple[Constant, ...]:
    def constant() -> Constant:
        if scope.draw(st.booleans()):
            return Constant(scope.value(), Reference(scope.draw(texts), scope.draw(st.integers(0, 2))))
        array = scope.draw(arrays())
        dtype = next(name for name, numpy in NUMPY.items() if numpy == array.dtype)
        return Constant(Value(scope.name(), TensorType(dtype, array.shape)), Inline(array))

    return _some(scope, constant, 2)


def _op(scope: _Scope, visible: list[str], callable_graphs: list[Graph]) -> Node:
    draw = scope.draw
    location, comment = draw(locations), draw(comments)
    if callable_graphs and draw(st.integers(0, 3)) == 0:
        graph = draw(st.sampled_from(callable_graphs))
        inputs = tuple(_operand(scope, visible) for _ in graph.inputs)
        outputs = tuple(scope.output() for _ in graph.outputs)
        return Node(f"@{graph.name}", inputs, outputs, {}, (), location, comment, draw(margins))
    inputs = _some(scope, lambda: _operand(scope, visible), 3)
    outputs = _some(scope, scope.output, 2)
    return Node(draw(op_names), inputs, outputs, draw(attributes), (), location, comment, draw(margins))


_numbers = st.lists(st.integers(0, 999_999_999), max_size=2).map(tuple)


def _bound(placement: Placement, logical: tuple[int | None, ...]) -> Placement:
    """Return a margin with these logical numbers for its streams."""
    found = (None if placement.stream is None else logical[0], *logical[1 : 1 + len(placement.begins)])
    return replace(placement, logical=found if any(each is not None for each in found) else ())


_plain_margins = st.builds(
    Placement,
    stream=st.none() | st.integers(0, 99),
    waits=_numbers,
    begins=_numbers,
    workspace=st.none() | st.sampled_from(["w0", "scratch_1"]),
    records=_numbers,
    frees=st.lists(names, max_size=2).map(tuple),
)
_logical = st.tuples(*[st.none() | st.integers(0, 99)] * 3)
margins = st.none() | _plain_margins | st.builds(_bound, _plain_margins, _logical)


def _if(scope: _Scope, visible: list[str], depth: int, graphs: list[Graph]) -> Node:
    draw = scope.draw
    condition = draw(st.sampled_from(visible)) if visible else Literal(True)
    count = draw(st.integers(0, 2)) if visible else 0
    branches = []
    for _ in range(2):
        constants, nodes, inner = _block(scope, visible, depth, graphs, loop=False)
        outputs = _values_of(scope, inner, count)
        label = draw(st.just("") | names)
        end = draw(margins)
        branches.append(Graph(label, (), outputs, nodes, constants, draw(comments), end=end))
    outputs = tuple(scope.output() for _ in range(count))
    last = draw(locations), draw(comments), draw(margins)
    return Node("if", (condition,), outputs, {}, tuple(branches), *last)


def _while(scope: _Scope, visible: list[str], depth: int, graphs: list[Graph]) -> Node:
    draw = scope.draw
    times = _operand(scope, visible)
    carried = _some(scope, scope.value, 2)
    initial = tuple(_operand(scope, visible) for _ in carried)
    counter = (
        draw(st.sampled_from([Value(""), Value("", TensorType("i64", ()))]))
        if draw(st.booleans())
        else scope.value()
    )
    inside = visible + [value.name for value in (counter, *carried) if value.name]
    constants, nodes, inner = _block(scope, inside, depth, graphs, loop=True)
    collected = draw(st.integers(0, 2)) if inner else 0
    after = _values_of(scope, inner, len(carried) + collected)
    label, end = draw(st.just("") | names), draw(margins)
    body = Graph(label, (counter, *carried), after, nodes, constants, draw(comments), end=end)
    outputs = tuple(scope.output() for _ in after)
    last = draw(locations), draw(comments), draw(margins)
    return Node("while", (times, *initial), outputs, {}, (body,), *last)


def _block(
    scope: _Scope, visible: list[str], depth: int, graphs: list[Graph], loop: bool
) -> tuple[tuple[Constant, ...], tuple[Node, ...], list[str]]:
    """Draw constants and nodes; return them with the names that are visible at the end."""
    draw = scope.draw
    constants = _constants(scope)
    visible = visible + [constant.value.name for constant in constants]
    nodes: list[Node] = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.integers(0, 5))
        if kind == 0 and depth:
            node = _if(scope, visible, depth - 1, graphs)
        elif kind == 1 and depth:
            node = _while(scope, visible, depth - 1, graphs)
        elif kind == 2 and loop and visible:
            node = Node(
                "break",
                (draw(st.sampled_from(visible)),),
                location=draw(locations),
                comment=draw(comments),
                placement=draw(margins),
            )
        else:
            node = _op(scope, visible, graphs)
        nodes.append(node)
        visible = visible + [value.name for value in node.outputs if value.name]
    return constants, tuple(nodes), visible


def _graph(draw: st.DrawFn, name: str, depth: int, graphs: list[Graph]) -> Graph:
    scope = _Scope(draw)
    inputs = _some(scope, scope.value, 3)
    constants, nodes, visible = _block(scope, [value.name for value in inputs], depth, graphs, loop=False)
    count = draw(st.integers(0, 2)) if visible else 0
    outputs = tuple(Value(value.name, draw(maybe_types)) for value in _values_of(scope, visible, count))
    return Graph(name, inputs, outputs, nodes, constants, draw(comments), draw(margins), draw(margins))


@st.composite
def programs(draw: st.DrawFn, depth: int = 2) -> Program:
    """Draw a program of one to three graphs that may call earlier ones; blocks nest up to `depth`."""
    graphs: list[Graph] = []
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        graphs.append(_graph(draw, name, depth, graphs))
    return Program(
        graphs={graph.name: graph for graph in graphs},
        entry=graphs[-1].name,
        stores=tuple(draw(st.lists(texts, max_size=2))),
        opsets=draw(
            st.dictionaries(
                st.sampled_from(["", "com.microsoft", "x y", "1"]), st.integers(1, 30), max_size=3
            )
        ),
        prefixes=draw(st.none() | st.dictionaries(labels, prefix_texts, max_size=4)),
    )
