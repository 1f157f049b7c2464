"""The listing of a program: its text without locations and without attributes that are equal to defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nncdbg.engine.ops.aten.operators import VIEWS
from nncdbg.engine.ops.schema import schema, version_of
from nncdbg.ir.names import reads
from nncdbg.ir.records import Attribute, Node, Path, Program
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import blocks
from nncdbg.text.listing import Listing
from nncdbg.text.torch_names import base_name, is_torch
from nncdbg.textual_repr.printer import listing

_WINDOWED = frozenset(
    ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "MaxPool", "AveragePool", "LpPool", "MaxUnpool")
)
_PER_AXIS = {"dilations": 1, "strides": 1, "pads": 0}
"""Defaults of attributes of the operators above, for all axes (ONNX: "if not present, defaults to ...")."""


def listing_of(program: Program) -> Listing:
    """Return the lines of the text that the program was parsed from, else of its listing."""
    if "listing" not in program.kept:
        made = program.listing or listing(without_defaults(program), locations=False)
        unread = frozenset(unread_views(program, made))
        program.kept["listing"] = replace(made, unread=unread) if unread else made
    return program.kept["listing"]  # type: ignore[no-any-return]


def unread_views(program: Program, shown: Listing) -> Iterator[int]:
    """Yield the lines of statements that only view memory, and whose results nothing reads.

    PyTorch makes many of them: autograd detaches what it saves, and a parameter is transposed twice.
    """
    for path, block in blocks(program.graphs):
        views = [pc for pc, node in enumerate(block.nodes) if _is_view(node)]
        if not views:
            continue
        read = {name for node in block.nodes for name in reads(node)}
        read.update(value.name for value in block.outputs)
        for pc in views:
            if read.isdisjoint(value.name for value in block.nodes[pc].outputs):
                yield shown.line(path, pc)


def _is_view(node: Node) -> bool:
    return is_torch(node.op) and base_name(node.op) in VIEWS


def without_defaults(program: Program) -> Program:
    """Return the program without attributes that are equal to the defaults of their operators.

    It computes the same, since an operator takes the default of an attribute that is absent.
    """

    def statement(path: Path, pc: int, node: Node) -> Node:
        if not node.attributes or node.subgraphs or is_torch(node.op):
            return node  # A recorded statement has the arguments of its call, and its schema needs torch.
        found = schema(node.op, version_of(node.op, program.opsets))
        if found is None:
            return node
        kept = {
            key: value
            for key, value in node.attributes.items()
            if not _is_default(node.op, key, value, found.attributes.get(key))
        }
        return node if len(kept) == len(node.attributes) else replace(node, attributes=kept)

    graphs = {name: rewrite(graph, statement) for name, graph in program.graphs.items()}
    if all(graphs[name] is graph for name, graph in program.graphs.items()):
        return program
    return replace(program, graphs=graphs)


def _is_default(op: str, key: str, value: Attribute, default: object) -> bool:
    if default is None:
        usual = _PER_AXIS.get(key) if op in _WINDOWED else None
        return usual is not None and isinstance(value, tuple) and all(each == usual for each in value)
    return type(value) is type(default) and value == default
