"""Convert ONNX nodes to statements: operands, attributes, source locations, and the modules around them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias

from nncdbg.engine.frontends.onnx_store import ExternalData, GraphPath, array_of
from nncdbg.engine.ops.onnx_schemas import type_of_proto
from nncdbg.errors import GraphError
from nncdbg.ir.records import Attribute, Inline, Location, Node, Operand, Type, Value
from nncdbg.process.threads import parsed
from nncdbg.text.lexemes import name_text

_STACK_TRACE = "pkg.torch.onnx.stack_trace"
_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASS_HIERARCHY = "pkg.torch.onnx.class_hierarchy"
_NAMESPACE = "namespace"
_DEEPEST = 32
"""The deepest nesting of modules that is kept apart."""
_TORCH_ITSELF = re.compile(r"[\\/](site|dist)-packages[\\/]torch[\\/]")
"""The installation of torch: its own modules are not source positions in the user's model."""
_LIBRARIES = re.compile(r"[\\/](site|dist)-packages[\\/]")
"""Installed packages, whose lines are not those of the user."""
_TRACEBACK_LINE = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)'
    r'(?:, in (?P<function>[^\n]+)\n(?![^\S\n]*File ")[^\S\n]*(?P<text>[^\n]+))?',
    re.MULTILINE,
)
_TORCHSCRIPT_LINE = re.compile(r"^\s*(?P<file>[^\n]+?)\((?P<line>\d+)\): ", re.MULTILINE)

Modules: TypeAlias = "tuple[tuple[str, str], ...]"
"""(full name, class) of nested modules, outermost first; the class is empty if unknown."""


@dataclass(frozen=True)
class GraphScope:
    """The names and facts visible inside one graph during conversion.

    `outer` are the visible names of surrounding graphs; `true` the values known to be constant true;
    `attributes` (AttributeProtos by name) and `absent` (inputs that are not given) come from the call
    of the surrounding function.
    """

    path: GraphPath = ()
    outer: frozenset[str] = frozenset()
    true: frozenset[str] = frozenset()
    types: Mapping[str, Type] = field(default_factory=dict)
    known: Mapping[str, Type | None] = field(default_factory=dict)
    """The types of values of this graph and of surrounding ones, as far as the model states them."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()


def domain_of(domain: str) -> str:
    """Return the domain's name in programs: ``ai.onnx`` is an alias of the default domain."""
    return "" if domain == "ai.onnx" else domain


def op_name(node: Any) -> str:
    """Return the op with its domain: ``Relu``, ``com.microsoft.Gelu``."""
    domain = domain_of(node.domain)
    return f"{domain}.{node.op_type}" if domain else str(node.op_type)


def node_title(node: Any) -> str:
    """Return the name of a NodeProto in messages: its own name if any, its op, its first output."""
    if node.name:
        return f'node "{node.name}" ({node.op_type})'
    first = next((output for output in node.output if output), None)
    return f"the {node.op_type} node" + (f" that returns %{name_text(first)}" if first else "")


def plain_node(node: Any, scope: GraphScope, external: ExternalData) -> Node:
    """Convert a NodeProto that is neither control flow nor a call."""
    values = attribute_values(node, scope, external) if node.attribute else {}
    location, comment = location_of(node), comment_of(node)
    op, inputs, outputs = op_name(node), inputs_of(node, scope), outputs_of(node, scope)
    return Node(op, inputs, outputs, values, location=location, comment=comment)


def inputs_of(node: Any, scope: GraphScope) -> tuple[Operand, ...]:
    """Return the operands of a NodeProto, without trailing omitted ones."""
    operands = [name if name and name not in scope.absent else None for name in node.input]
    while operands and operands[-1] is None:
        operands.pop()
    return tuple(operands)


def outputs_of(node: Any, scope: GraphScope) -> tuple[Value, ...]:
    """Return the output values of a NodeProto with the types stated in the model."""
    return tuple(Value(name, scope.types.get(name)) for name in node.output)


def attributes_of(node: Any, scope: GraphScope) -> dict[str, Any]:
    """Return AttributeProtos by name, with references to the function's attributes resolved.

    A reference to an attribute that the call omits is left out, as ONNX specifies.
    """
    found = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute
        elif attribute.ref_attr_name in scope.attributes:
            given = type(attribute)()
            given.CopyFrom(scope.attributes[attribute.ref_attr_name])
            given.name = attribute.name
            found[attribute.name] = given
    return found


def attribute_values(node: Any, scope: GraphScope, external: ExternalData) -> dict[str, Attribute]:
    """Return the attributes of a NodeProto by name, as in program text, without the body of a Scan."""
    title = node_title(node)
    return {
        name: attribute_value(attribute, title, external)
        for name, attribute in attributes_of(node, scope).items()
        if node.op_type != "Scan" or name != "body"
    }


def attribute_value(attribute: Any, where: str, external: ExternalData) -> Attribute:
    """Convert an AttributeProto to its form in program text.

    Strings that are not UTF-8 become bytes.  A graph (of an op that is not control flow here) becomes
    its ONNX text, which can be read but not run.  Raises GraphError for an attribute without data, and
    for a type other than a tensor, a sequence or an optional.
    """
    from onnx import AttributeProto

    kind = AttributeProto.AttributeType.Name(attribute.type)
    key = f"{where}.{attribute.name}"
    element = kind.removesuffix("S")
    if element not in _FIELDS:
        raise GraphError(
            f'attribute "{attribute.name}" of {where} has no type',
            hint="export the model again: it is damaged",
        )
    single, several, convert = _FIELDS[element]
    if convert is None:
        typed, of_tensor = partial(_type_attribute, where=key), partial(_inline, key=key, external=external)
        convert = typed if element == "TYPE_PROTO" else of_tensor
    if kind == element:
        return convert(getattr(attribute, single))
    return tuple(map(convert, getattr(attribute, several)))


def _inline(tensor: Any, key: str, external: ExternalData) -> Inline:
    return Inline(array_of(tensor, key, external))


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return bytes(data)


def _graph_text(graph: Any) -> str:
    from onnx.printer import to_text
    from onnx.shape_inference import InferenceError

    try:
        return str(to_text(graph))
    except InferenceError as error:  # The printer reads the data of initializers.
        reason = str(error).rpartition("Error] ")[2]
        raise GraphError(
            f'the graph "{graph.name}" of an attribute is damaged: {reason}', hint="export the model again"
        ) from None


def _type_attribute(proto: Any, where: str) -> Type:
    found = type_of_proto(proto)
    if found is None:
        raise GraphError(f"{where} specifies an unsupported type: {proto.WhichOneof('value')}")
    return found


_FIELDS: Mapping[str, tuple[str, str, Callable[[Any], Attribute] | None]] = {
    "FLOAT": ("f", "floats", float),
    "INT": ("i", "ints", int),
    "STRING": ("s", "strings", _text),
    "TENSOR": ("t", "tensors", None),
    "SPARSE_TENSOR": ("sparse_tensor", "sparse_tensors", None),
    "GRAPH": ("g", "graphs", _graph_text),
    "TYPE_PROTO": ("tp", "type_protos", None),
}
"""Type of an attribute to its field, that of a list, and what converts an element (None: see above)."""


def location_of(node: Any) -> Location | None:
    """Return the location of a NodeProto: its name, and the source lines written by torch's exporters.

    The innermost line outside of torch itself is used, with its callers.
    """
    trace, doc = metadata_of(node).get(_STACK_TRACE, ""), node.doc_string
    frames = _frames(trace, doc) if trace or doc else []
    if not frames:
        return Location(name=node.name) if node.name else None
    own = [place for place, (file, _) in enumerate(frames) if not _TORCH_ITSELF.search(file)]
    (file, line), *callers = frames[own[0] if own else 0 :]
    return Location(file, line, node.name or None, tuple(callers))


def traced_texts(node: Any) -> dict[tuple[str, int], tuple[str, str]]:
    """Return file and line of the user's lines in the stack trace of a NodeProto to function and text."""
    return {
        (found["file"], int(found["line"])): (found["function"], found["text"])
        for found in _TRACEBACK_LINE.finditer(metadata_of(node).get(_STACK_TRACE, ""))
        if found["text"] and not _LIBRARIES.search(found["file"])
    }


def _frames(trace: str, doc: str) -> list[tuple[str, int]]:
    """Return (file, line) of each frame, innermost first."""
    # A traceback has its innermost call last, the older exporter's doc_string has it first.
    frames = [(found["file"], int(found["line"])) for found in _TRACEBACK_LINE.finditer(trace)][::-1]
    return frames or [(found["file"], int(found["line"])) for found in _TORCHSCRIPT_LINE.finditer(doc)]


def comment_of(node: Any) -> str:
    """Return the doc_string as a comment, unless it is a stack trace, which `location_of` reads."""
    doc = node.doc_string
    return "" if not doc or _TORCHSCRIPT_LINE.search(doc) else comment_text(doc)


def comment_text(doc: str) -> str:
    """Format text for ``##`` lines: no trailing blanks, no empty lines around, one kind of line end."""
    return "\n".join(line.rstrip() for line in doc.strip().splitlines())


def metadata_of(node: Any) -> dict[str, str]:
    """Return the metadata_props of a NodeProto; empty before ONNX 1.16."""
    entries = getattr(node, "metadata_props", ())
    return {entry.key: entry.value for entry in entries} if entries else {}


def modules_of(node: Any) -> Modules | None:
    """Return the modules around a NodeProto, outermost first; None if they are unknown.

    Sources, in order: torch's name scopes (``['', 'encoder', 'encoder.layer', 'addmm']``, with a list of
    as many classes), slashes in the node's name, slashes in the name of its first output.
    """
    metadata = metadata_of(node)
    if metadata and (scopes := _listed(metadata.get(_NAME_SCOPES, ""))):
        classes = _listed(metadata.get(_CLASS_HIERARCHY, ""))
        return _inside(scopes, classes if len(classes) == len(scopes) else [""] * len(scopes))
    if metadata and metadata.get(_NAMESPACE):
        parts = [part.partition(":") for part in metadata[_NAMESPACE].split("/")]
        return _inside([name.strip() for name, _, _ in parts], [kind.strip() for _, _, kind in parts])
    name = node.name or next((output for output in node.output if output), "")
    if "/" not in name:
        return None
    return _modules_in(name.rpartition("/")[0])


@lru_cache(maxsize=4096)
def _modules_in(folder: str) -> Modules:
    """Return the modules in a path of names."""
    words = [word for word in folder.split("/") if word]
    return tuple(("/".join(words[: depth + 1]), "") for depth in range(min(len(words), _DEEPEST)))


def _inside(names: Sequence[str], classes: Sequence[str]) -> Modules:
    """Return the modules that have a name; the last entry is the op itself."""
    pairs = zip(names[:-1], classes[:-1], strict=True)
    return tuple((name, kind) for name, kind in pairs if name)[:_DEEPEST]


def _listed(text: str) -> list[str]:
    """Parse a Python list as torch writes it; empty for anything else."""
    try:
        names = parsed(lambda: ast.literal_eval(text)) if text else []
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        # Written by another tool under the same key; the node's name may still contain the modules.
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def source_line(node: Any) -> str | None:
    """Return the source line of a NodeProto for errors; None if it is unknown."""
    location = location_of(node)
    return str(location) if location else None
