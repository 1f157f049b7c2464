"""Convert ONNX graphs and functions to `Graph` records: constants, nodes, branches, loops, calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.errors import GraphError
from nncdbg.engine.frontends import onnx_node
from nncdbg.engine.frontends.declared_types import StaleShape, with_inferred_types
from nncdbg.engine.frontends.external_data import ExternalData
from nncdbg.engine.frontends.layers import all_known, group_layers
from nncdbg.engine.frontends.onnx_gradient import with_gradients, with_target
from nncdbg.engine.frontends.onnx_loop import loop_node
from nncdbg.engine.frontends.onnx_scan import batched_scan_nodes, scan_nodes
from nncdbg.engine.frontends.onnx_scope import (
    Scope,
    check_hiding,
    check_outputs,
    defined_once,
    graph_inputs,
    inputs_of,
    is_true,
    output_value,
    outputs_of,
    padded,
    stated_types,
)
from nncdbg.engine.frontends.onnx_store import (
    OnnxStore,
    array_of,
    constant_attribute,
    function_name,
    subgraph_path,
    subgraphs_of,
)
from nncdbg.engine.frontends.order import in_order
from nncdbg.engine.graph import (
    Attribute,
    Constant,
    Graph,
    Inline,
    Node,
    Reference,
    TensorType,
    Value,
)

INLINE_ELEMENTS = 16
"""Constants of at most this many elements are inline in the text."""

FunctionKey: TypeAlias = "tuple[str, str, str]"


class Conversion:
    """The conversion of one model to a Program; `graphs` collects called graphs by name.

    `opsets` maps a domain to its version (none: the newest supported); `stale` collects the declared
    shapes that were replaced.
    """

    def __init__(
        self,
        functions: Sequence[Any],
        store: OnnxStore | None,
        *,
        flat: bool,
        opsets: Mapping[str, int] | None = None,
    ) -> None:
        self._opsets = dict(opsets or {})
        self._scan_nodes = batched_scan_nodes if self._opsets.get("", 9) < 9 else scan_nodes
        self.stale: list[StaleShape] = []
        self.functions: dict[FunctionKey, Any] = {_function_key(function): function for function in functions}
        self.graphs: dict[str, Graph] = {}
        self.references = 0
        self._store = store
        self._flat = flat
        self._names: set[str] = set()
        self._copies: dict[Any, str] = {}
        self._open: list[FunctionKey] = []

    def claim(self, name: str) -> str:
        """Return an unused graph name: `name`, or ``name#2`` and so on."""
        free, count = name, 1
        while free in self._names:
            count += 1
            free = f"{name}#{count}"
        self._names.add(free)
        return free

    def entry(self, graph: Any) -> str:
        """Convert the model's own graph, and return its name."""
        name = self.claim(graph.name or "main")
        self._enter(graph, name, Scope(), comment=onnx_node.comment_text(graph.doc_string))
        return name

    def called(self, function: Any, attributes: Mapping[str, Any], absent: Sequence[int]) -> str:
        """Convert a FunctionProto for these attributes and omitted inputs, and return the graph's name."""
        key = _function_key(function)
        given = {name: attributes[name].SerializeToString(deterministic=True) for name in sorted(attributes)}
        copy = (key, tuple(given.items()), tuple(absent))
        title = function_name(function)
        if key in self._open:
            raise GraphError(
                f'the function "{title}" calls itself', hint="remove the recursion: ONNX does not support it"
            )
        if copy in self._copies:
            return self._copies[copy]
        name = self._copies[copy] = self.claim(title)
        names = {function.input[index] for index in absent if index < len(function.input)}
        scope = Scope((f"@{title}",), attributes=attributes, absent=frozenset(names))
        self._open.append(key)
        self._enter(function, name, scope, comment=onnx_node.comment_text(function.doc_string))
        self._open.pop()
        return name

    def _enter(self, proto: Any, name: str, scope: Scope, comment: str) -> None:
        self.graphs[name] = Graph(name)  # Reserve its place: callers come before the graphs they call.
        graph, modules = self._graph(proto, name, scope)
        check_hiding(graph)
        graph, stale = with_inferred_types(replace(graph, comment=comment), self._opsets)
        self.stale += stale
        if self._flat:
            self.graphs[name] = graph
            return
        prefix = "" if not scope.path else f"{name}/"
        scopes = all_known([None if found is None else [name for name, _ in found] for found in modules])
        classes = {name: kind for found in modules for name, kind in found or ()}
        for layer in group_layers(graph, scopes, lambda wanted: self.claim(prefix + wanted), classes):
            self.graphs[layer.name] = layer

    def nested(self, graph: Any, name: str, scope: Scope) -> Graph:
        """Convert a branch or body: it sees `scope.outer`, and its outputs have no types."""
        converted, _ = self._graph(graph, graph.name or name, scope)
        return replace(converted, outputs=tuple(Value(value.name) for value in converted.outputs))

    def _graph(self, proto: Any, name: str, scope: Scope) -> tuple[Graph, list[onnx_node.Modules | None]]:
        """Return the graph and the modules around each of its nodes."""
        constants = [*self._initializers(proto, scope), *self._constant_nodes(proto, scope)]
        given = {constant.value.name for constant in constants}
        inputs = tuple(value for value in graph_inputs(proto, scope) if value.name not in given)
        own = defined_once(
            [value.name for value in inputs] + [constant.value.name for constant in constants], name
        )
        results = {output for node in proto.node for output in node.output if output}
        stated = stated_types(proto)
        types = {value.name: value.type for value in (*inputs, *(c.value for c in constants))}
        inside = replace(
            scope,
            outer=scope.outer | own | results,
            true=(scope.true - own - results) | {c.value.name for c in constants if is_true(c)},
            types=stated,
            known={**scope.known, **stated, **types},
        )
        modules: dict[int, onnx_node.Modules | None] = {}
        nodes: list[Node] = []
        for index, node in enumerate(proto.node):
            if self._constant_data(node, scope) is None:
                made = list(map(with_target, self.nodes(node, index, inside)))
                nodes += made
                modules |= dict.fromkeys(map(id, made), onnx_node.modules_of(node))
        ordered = in_order(nodes, own, scope.outer, name)
        outputs = tuple(output_value(output, inside.types) for output in proto.output)
        check_outputs(outputs, inside.outer, name)
        final = with_gradients(ordered, {**scope.known, **types}, self.graphs, self._opsets, self.claim)
        return Graph(name, inputs, outputs, final, tuple(constants)), [modules[id(node)] for node in ordered]

    def _initializers(self, proto: Any, scope: Scope) -> list[Constant]:
        tensors = [(tensor.name, tensor) for tensor in getattr(proto, "initializer", ())]
        tensors += [(sparse.values.name, sparse) for sparse in getattr(proto, "sparse_initializer", ())]
        return [self._constant(name, tensor, scope) for name, tensor in tensors]

    def _constant_nodes(self, proto: Any, scope: Scope) -> list[Constant]:
        constants = []
        for node in proto.node:
            data = self._constant_data(node, scope)
            if data is not None:
                resolved = constant_attribute(node) is None
                constants.append(self._constant(node.output[0], data, scope, resolved=resolved))
        return constants

    def _constant_data(self, node: Any, scope: Scope) -> Any | None:
        """Return the AttributeProto with the data of a Constant node; None for any other node."""
        if node.op_type != "Constant" or onnx_node.domain_of(node.domain):
            return None
        if len(node.attribute) != 1 or len(node.output) != 1:
            raise GraphError(
                f"{onnx_node.node_title(node)} must have one attribute and one output",
                source=onnx_node.source_line(node),
            )
        attributes = self.attributes(node, scope)
        if not attributes:
            raise GraphError(
                f"{onnx_node.node_title(node)} reads the attribute"
                f' "{node.attribute[0].ref_attr_name}", which the call does not set'
            )
        return next(iter(attributes.values()))

    def _constant(self, name: str, proto: Any, scope: Scope, *, resolved: bool = False) -> Constant:
        """Return a constant, inline if small or if its data comes from a function call (`resolved`)."""
        if self._store is None or resolved:
            array = array_of(proto, name, self._external)
            return Constant(Value(name, TensorType(name_of(array.dtype), array.shape)), Inline(array))
        key = self._store.key_of(scope.path, name)
        type_ = self._store.type(key)
        count = 1
        for size in type_.shape or ():
            count *= int(size)  # type: ignore[arg-type]  # A stored tensor has sizes in numbers.
        if count <= INLINE_ELEMENTS:
            return Constant(Value(name, type_), Inline(self._store.read(key)))
        self.references += 1
        return Constant(Value(name, type_), Reference(key))

    @property
    def _external(self) -> ExternalData:
        return self._store.external if self._store else ExternalData(None)

    def attributes(self, node: Any, scope: Scope) -> dict[str, Any]:
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

    def nodes(self, node: Any, index: int, scope: Scope) -> list[Node]:
        """Convert a NodeProto to statements; `index` is its position in its graph."""
        location, comment = onnx_node.location_of(node), onnx_node.comment_of(node)
        attributes = self.attributes(node, scope)
        domain = onnx_node.domain_of(node.domain)
        key = (domain, node.op_type, getattr(node, "overload", ""))
        inputs, outputs = inputs_of(node, scope), outputs_of(node, scope)
        if key in self.functions:
            made = [self._call(node, self.functions[key], attributes, scope)]
        elif domain or node.op_type not in ("If", "Loop", "Scan"):
            op, values = onnx_node.op_name(node), self._values(node, attributes)
            return [Node(op, inputs, outputs, values, location=location, comment=comment)]
        elif node.op_type == "If":
            made = [self._if(node, index, scope)]
        else:
            body = self._subgraphs(node, index, scope).get("body")
            if node.op_type == "Loop":
                made = [loop_node(node, body, inputs, outputs, scope.true)]
            else:
                values = self._values(node, attributes)
                made = self._scan_nodes(node, body, inputs, outputs, values, scope.outer)
        return [replace(statement, location=location, comment=comment) for statement in made]

    def _values(self, node: Any, attributes: Mapping[str, Any]) -> dict[str, Attribute]:
        if not attributes:
            return {}
        title = onnx_node.node_title(node)
        return {
            name: onnx_node.attribute_value(attribute, title, self._external)
            for name, attribute in attributes.items()
            if node.op_type != "Scan" or name != "body"
        }

    def _subgraphs(self, node: Any, index: int, scope: Scope) -> dict[str, Graph]:
        """Return the converted graphs by attribute name."""
        return {
            name: self.nested(graph, name, replace(scope, path=subgraph_path(scope.path, index, node, name)))
            for name, graph in subgraphs_of(node)
        }

    def _if(self, node: Any, index: int, scope: Scope) -> Node:
        branches = self._subgraphs(node, index, scope)
        title = onnx_node.node_title(node)
        if branches.keys() != {"then_branch", "else_branch"} or len(node.input) != 1:
            raise GraphError(f"{title} must have one condition, a then_branch and an else_branch")
        then, otherwise = branches["then_branch"], branches["else_branch"]
        if len(then.outputs) != len(otherwise.outputs):
            raise GraphError(
                f"{title} has a then_branch with {len(then.outputs)} outputs,"
                f" but an else_branch with {len(otherwise.outputs)} outputs"
            )
        outputs = padded(outputs_of(node, scope), len(then.outputs), title)
        return Node("if", inputs_of(node, scope), outputs, subgraphs=(then, otherwise))

    def _call(self, node: Any, function: Any, attributes: Mapping[str, Any], scope: Scope) -> Node:
        inputs = inputs_of(node, scope)
        title = onnx_node.node_title(node)
        if len(inputs) > len(function.input):
            raise GraphError(
                f"{title} passes {len(inputs)} inputs to the function"
                f' "{function_name(function)}", which has {len(function.input)} inputs'
            )
        absent = [i for i in range(len(function.input)) if i >= len(inputs) or inputs[i] is None]
        defaults = {attribute.name: attribute for attribute in function.attribute_proto}
        known = {*function.attribute, *defaults}
        given = defaults | {name: data for name, data in attributes.items() if name in known}
        name = self.called(function, given, absent)
        outputs = padded(outputs_of(node, scope), len(function.output), title)
        return Node(f"@{name}", tuple(operand for operand in inputs if operand is not None), outputs)


def _function_key(function: Any) -> FunctionKey:
    return onnx_node.domain_of(function.domain), function.name, getattr(function, "overload", "")
