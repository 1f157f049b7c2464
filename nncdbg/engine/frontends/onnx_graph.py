"""Convert ONNX graphs and functions to `Graph` records: constants, nodes, branches, loops, calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeAlias

from nncdbg.dtypes import name_of
from nncdbg.engine.frontends.declared_types import StaleShape, with_inferred_types
from nncdbg.engine.frontends.layers import all_known, group_layers
from nncdbg.engine.frontends.onnx_loops import (
    GRADIENT,
    batched_scan_nodes,
    is_true,
    loop_node,
    scan_nodes,
    with_gradients,
    with_target,
)
from nncdbg.engine.frontends.onnx_node import (
    GraphScope,
    Modules,
    attribute_values,
    attributes_of,
    comment_of,
    comment_text,
    domain_of,
    inputs_of,
    location_of,
    modules_of,
    node_title,
    outputs_of,
    plain_node,
    source_line,
)
from nncdbg.engine.frontends.onnx_store import (
    ExternalData,
    GraphPath,
    OnnxStore,
    array_of,
    constant_attribute,
    function_name,
    subgraph_path,
    subgraphs_of,
)
from nncdbg.engine.frontends.order import in_order
from nncdbg.engine.ops.onnx_schemas import type_of_proto
from nncdbg.engine.ops.schema import schema, versions_of
from nncdbg.errors import GraphError
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import Constant, Graph, Inline, Node, Path, Reference, TensorType, Type, Value
from nncdbg.ir.rewrite import renamed, rewrite
from nncdbg.text.lexemes import name_text, nearest

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
        self.unknown_attributes: list[str] = []
        """Notes about attributes that are left out."""
        self.reordered: list[str] = []
        """The graphs whose nodes are not in an order in which they can run."""
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
        return claimed_name(name, self._names, first=2, mark="#")

    def entry(self, graph: Any, name: str = "", path: GraphPath = ()) -> str:
        """Convert the model's own graph, or the one at `path`, and return its name: `name` if it is free."""
        name = self.claim(name or graph.name or "main")
        self._enter(graph, name, GraphScope(path), comment=comment_text(graph.doc_string))
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
        scope = GraphScope((f"@{title}",), attributes=attributes, absent=frozenset(names))
        self._open.append(key)
        self._enter(function, name, scope, comment=comment_text(function.doc_string))
        self._open.pop()
        return name

    def _enter(self, proto: Any, name: str, scope: GraphScope, comment: str) -> None:
        self.graphs[name] = Graph(name)  # Reserve its place: callers come before the graphs they call.
        graph, modules = self._graph(proto, name, scope)
        graph = replace(_without_hiding(graph), comment=comment)
        graph, stale = with_inferred_types(graph, self._opsets)
        self.stale += stale
        if self._flat:
            self.graphs[name] = graph
            return
        prefix = "" if not scope.path else f"{name}/"
        scopes = all_known([None if found is None else [name for name, _ in found] for found in modules])
        classes = {name: kind for found in modules for name, kind in found or ()}
        for layer in group_layers(graph, scopes, lambda wanted: self.claim(prefix + wanted), classes):
            self.graphs[layer.name] = layer

    def nested(self, graph: Any, name: str, scope: GraphScope) -> Graph:
        """Convert a branch or body: it sees `scope.outer`, and its outputs have no types."""
        converted, _ = self._graph(graph, graph.name or name, scope)
        return replace(converted, outputs=tuple(Value(value.name) for value in converted.outputs))

    def _graph(self, proto: Any, name: str, scope: GraphScope) -> tuple[Graph, list[Modules | None]]:
        """Return the graph and the modules around each of its nodes."""
        constants = self._initializers(proto, scope)
        converted: set[int] = set()
        for index, node in enumerate(proto.node):
            data = self._constant_data(node, scope)
            if data is not None:
                converted.add(index)
                resolved = constant_attribute(node) is None
                constants.append(self.constant(node.output[0], data, scope, resolved=resolved))
        given = {constant.value.name for constant in constants}
        if hasattr(proto, "initializer"):
            formal = [Value(info.name, type_of_proto(info.type)) for info in proto.input]
        else:
            declared = _typed_values(getattr(proto, "value_info", ()))
            formal = [Value(each, declared.get(each)) for each in proto.input if each not in scope.absent]
        inputs = tuple(value for value in formal if value.name not in given)
        own = _defined_once(
            [value.name for value in inputs] + [constant.value.name for constant in constants], name
        )
        results = {output for node in proto.node for output in node.output if output}
        stated = _typed_values(getattr(proto, "value_info", ()))
        if hasattr(proto, "initializer"):
            stated |= _typed_values(proto.output)
        types = {value.name: value.type for value in (*inputs, *(c.value for c in constants))}
        inside = replace(
            scope,
            outer=scope.outer | own | results,
            true=(scope.true - own - results) | {c.value.name for c in constants if is_true(c.data, bool)},
            types=stated,
            known={**scope.known, **stated, **types},
        )
        modules: dict[int, Modules | None] = {}
        nodes: list[Node] = []
        for index, node in enumerate(proto.node):
            if index not in converted:
                made = self.nodes(node, index, inside)
                nodes += made
                modules |= dict.fromkeys(map(id, made), modules_of(node))
        ordered = in_order(nodes, own, scope.outer, name)
        if any(mine is not other for mine, other in zip(nodes, ordered, strict=True)):
            self.reordered.append(name)
        names = [each if isinstance(each, str) else each.name for each in proto.output]
        outputs = tuple(Value(each, stated.get(each)) for each in names)
        _check_outputs(outputs, inside.outer, name)
        final = with_gradients(ordered, {**scope.known, **types}, self.graphs, self._opsets, self.claim)
        return Graph(name, inputs, outputs, final, tuple(constants)), [modules[id(node)] for node in ordered]

    def _initializers(self, proto: Any, scope: GraphScope) -> list[Constant]:
        tensors = [(tensor.name, tensor) for tensor in getattr(proto, "initializer", ())]
        tensors += [(sparse.values.name, sparse) for sparse in getattr(proto, "sparse_initializer", ())]
        return [self.constant(name, tensor, scope) for name, tensor in tensors]

    def _constant_data(self, node: Any, scope: GraphScope) -> Any | None:
        """Return the AttributeProto with the data of a Constant node; None for any other node."""
        if node.op_type != "Constant" or domain_of(node.domain):
            return None
        if len(node.attribute) != 1 or len(node.output) != 1:
            raise GraphError(
                f"{node_title(node)} must have one attribute and one output",
                source=source_line(node),
            )
        attributes = attributes_of(node, scope)
        if not attributes:
            raise GraphError(
                f"{node_title(node)} reads the attribute"
                f' "{node.attribute[0].ref_attr_name}", which the call does not set'
            )
        return next(iter(attributes.values()))

    def constant(self, name: str, proto: Any, scope: GraphScope, *, resolved: bool = False) -> Constant:
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

    def nodes(self, node: Any, index: int, scope: GraphScope) -> list[Node]:
        """Convert a NodeProto to statements; `index` is its position in its graph."""
        domain = domain_of(node.domain)
        key = (domain, node.op_type, getattr(node, "overload", ""))
        if key in self.functions:
            made = [self._call(node, self.functions[key], scope)]
        elif domain or node.op_type not in ("If", "Loop", "Scan"):
            plain = self._known_attributes(plain_node(node, scope, self._external), node)
            return [with_target(plain) if plain.op == GRADIENT else plain]
        elif node.op_type == "If":
            made = [self._if(node, index, scope)]
        else:
            body = self._subgraphs(node, index, scope).get("body")
            inputs, outputs = inputs_of(node, scope), outputs_of(node, scope)
            if node.op_type == "Loop":
                made = loop_node(node, body, inputs, outputs, scope.true, scope.known, scope.outer)
            else:
                values = attribute_values(node, scope, self._external)
                made = self._scan_nodes(node, body, inputs, outputs, values, scope.outer)
        comments = filter(None, (comment_of(node), *self._unknown_of_control(node)))
        location, comment = location_of(node), "\n".join(comments)
        return [replace(statement, location=location, comment=comment) for statement in made]

    def _unknown_of_control(self, node: Any) -> list[str]:
        """Return comments about attributes of an If, Loop or Scan that no version of it has.

        Raises GraphError for one of another version: without it, the result would be another one.
        """
        version = self._opsets.get("", 1)
        signature = schema(node.op_type, version)
        known, given = _attributes_of(node.op_type), {each.name for each in node.attribute}
        own = known if signature is None else signature.attributes.keys()
        for name in sorted((given & known) - own):
            raise GraphError(
                f"{node_title(node)} has no attribute {name!r} in opset {version}",
                hint="export the model again, for the opset that it imports",
            )
        return self._ignored(node, node.op_type, given - known, known)

    def _ignored(self, node: Any, op: str, names: Set[str], known: Set[str]) -> list[str]:
        """Note that unknown attributes are ignored; return comments for the statement."""
        comments = []
        for name in sorted(names):
            guess = nearest(name, known)
            rest = f"has no attribute {name!r}; it is ignored" + (f"; {guess}" if guess else "")
            self.unknown_attributes.append(f"{node_title(node)} {rest}")
            comments.append(f"{op} {rest}")
        return comments

    def _known_attributes(self, made: Node, node: Any) -> Node:
        """Return the statement without attributes that its op does not have, which onnxruntime ignores.

        An attribute of another version of the op stays: without it, the result would be another one.
        """
        known = _attributes_of(made.op) if made.attributes else set()
        if not known or made.attributes.keys() <= known:
            return made
        comments = [made.comment] if made.comment else []
        comments += self._ignored(node, made.op, made.attributes.keys() - known, known)
        kept = {name: value for name, value in made.attributes.items() if name in known}
        return replace(made, attributes=kept, comment="\n".join(comments))

    def _subgraphs(self, node: Any, index: int, scope: GraphScope) -> dict[str, Graph]:
        """Return the converted graphs by attribute name."""
        return {
            name: self.nested(graph, name, replace(scope, path=subgraph_path(scope.path, index, node, name)))
            for name, graph in subgraphs_of(node)
        }

    def _if(self, node: Any, index: int, scope: GraphScope) -> Node:
        branches = self._subgraphs(node, index, scope)
        title = node_title(node)
        if branches.keys() != {"then_branch", "else_branch"} or len(node.input) != 1:
            raise GraphError(f"{title} must have one condition, a then_branch and an else_branch")
        then, otherwise = branches["then_branch"], branches["else_branch"]
        if len(then.outputs) != len(otherwise.outputs):
            raise GraphError(
                f"{title} has a then_branch with {len(then.outputs)} outputs,"
                f" but an else_branch with {len(otherwise.outputs)} outputs"
            )
        outputs = _padded(outputs_of(node, scope), len(then.outputs), title)
        return Node("if", inputs_of(node, scope), outputs, subgraphs=(then, otherwise))

    def _call(self, node: Any, function: Any, scope: GraphScope) -> Node:
        inputs = inputs_of(node, scope)
        title = node_title(node)
        if len(inputs) > len(function.input):
            raise GraphError(
                f"{title} passes {len(inputs)} inputs to the function"
                f' "{function_name(function)}", which has {len(function.input)} inputs'
            )
        absent = [i for i in range(len(function.input)) if i >= len(inputs) or inputs[i] is None]
        defaults = {attribute.name: attribute for attribute in function.attribute_proto}
        known = {*function.attribute, *defaults}
        given = defaults | {name: data for name, data in attributes_of(node, scope).items() if name in known}
        name = self.called(function, given, absent)
        outputs = _padded(outputs_of(node, scope), len(function.output), title)
        return Node(f"@{name}", tuple(operand for operand in inputs if operand is not None), outputs)


def _function_key(function: Any) -> FunctionKey:
    return domain_of(function.domain), function.name, getattr(function, "overload", "")


def _padded(outputs: tuple[Value, ...], count: int, title: str) -> tuple[Value, ...]:
    """Return the outputs padded to `count` with unused ones.  Raises GraphError if there are more."""
    if len(outputs) > count:
        raise GraphError(f"{title} has {len(outputs)} outputs, but its graph returns {count}")
    return outputs + (Value(""),) * (count - len(outputs))


def _typed_values(infos: Iterable[Any]) -> dict[str, Type]:
    """Return the types of the ValueInfoProtos that state one, by name."""
    types = ((info.name, type_of_proto(info.type)) for info in infos)
    return {name: known for name, known in types if known is not None}


def _check_outputs(outputs: Sequence[Value], names: frozenset[str], graph: str) -> None:
    """Raise GraphError for an output that nothing defines."""
    for value in outputs:
        if value.name not in names:
            raise GraphError(
                f"graph @{graph} returns %{name_text(value.name)}, which is not defined",
                hint="export the model again: it is incomplete",
            )


def _defined_once(names: Sequence[str], graph: str) -> set[str]:
    """Return the names as a set.  Raises GraphError for a duplicate."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise GraphError(
                f"%{name_text(name)} is defined twice as an input or constant of graph @{graph}",
                hint="rename one of the values: each value of a graph has one definition",
            )
        seen.add(name)
    return seen


def _without_hiding(graph: Graph) -> Graph:
    """Return the graph with new names for inputs of bodies that hide values around them.

    ONNX requires unique names, but onnxruntime accepts such inputs.  Raises GraphError for a constant or a
    result that hides a value.
    """
    scopes: dict[Path, tuple[str, Set[str], set[str]]] = {}
    """Per block its name, the values around it, and all values that are visible in it so far."""

    def define(path: Path, values: Iterable[Value]) -> None:
        name, around, visible = scopes[path]
        for value in values:
            if value.name in around:
                raise GraphError(
                    f"%{name_text(value.name)} is defined in graph @{name} and in an enclosing graph",
                    hint="rename one of the values: ONNX names are unique in a model",
                )
            if value.name:
                visible.add(value.name)

    def enter(path: Path, block: Graph) -> Graph:
        around = scopes[path[:-2]][2] if len(path) > 1 else set()
        taken = set(around)
        new = {each.name: claimed_name(each.name, taken) for each in block.inputs if each.name in around}
        block = renamed(block, new) if new else block
        scopes[path] = block.name, around, {*around, *(value.name for value in block.inputs)}
        define(path, (constant.value for constant in block.constants))
        return block

    def statement(path: Path, pc: int, node: Node) -> Node:
        define(path, node.outputs)
        return node

    return rewrite(graph, statement, enter=enter)


def _attributes_of(op: str) -> set[str]:
    """Return the attributes of all versions of an op."""
    versions = [schema(op, version) for version in versions_of(op)]
    return {name for each in versions if each is not None for name in each.attributes}
