"""Infer the types of a graph's values, statement by statement, and report contradictions.

`TypeRules` has one method per kind of statement.  `GraphInference` applies them to records, for the compiler
and for models with declared types; the language server applies them to lines.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from nncdbg.engine.inference.statements import Types, check_statement, literal_dtype
from nncdbg.engine.inference.types import (
    bind_symbols,
    common_type,
    joined_type,
    literal_array,
    stacked_type,
    type_of_array,
    with_symbols,
)
from nncdbg.engine.ops.schema import schema, version_of
from nncdbg.errors import GraphError, NncdbgError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import (
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Path,
    TensorType,
    Type,
    Value,
    without_sizes,
)
from nncdbg.text.lexemes import name_text

Answers: TypeAlias = "dict[tuple[tuple[object, ...], tuple[Type | None, ...]], Types]"
"""The form of a statement and the types of its operands, to the types of its outputs."""


_CORRECT = "convert the value, or correct the declared type"


class GraphSignature(Protocol):
    """The inputs and outputs of a callable graph; a `Graph` is one."""

    @property
    def inputs(self) -> tuple[Value, ...]: ...

    @property
    def outputs(self) -> tuple[Value, ...]: ...


class TypeRules:
    """The type rules of all statements in a program with these opsets.

    `signatures` are the graphs that a statement may call; `answers` caches results between texts.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        signatures: Mapping[str, GraphSignature],
        answers: Answers | None = None,
    ) -> None:
        self.opsets = opsets
        self.signatures = signatures
        self._answers: Answers = {} if answers is None else answers

    def report(self, error: NncdbgError) -> None:
        """Handle an error of the statement: raise it.  If an override returns, inference continues."""
        raise error

    # -- statements ----------------------------------------------------------------------------

    def operand_types(self, node: Node, type_of: Callable[[str], Type | None]) -> tuple[Type | None, ...]:
        """Return the types of a statement's operands, those of literals by their positions."""
        names = node.inputs
        types = tuple([type_of(name) if name.__class__ is str else None for name in names])
        return self.literal_types(node, types) if any(isinstance(each, Literal) for each in names) else types

    def literal_types(self, node: Node, types: tuple[Type | None, ...]) -> tuple[Type | None, ...]:
        """Return the types of a statement's operands, with the types of its literals added."""
        completed = list(types)
        for index, operand in enumerate(node.inputs):
            if isinstance(operand, Literal):
                dtype = literal_dtype(operand, node, index, types, self.opsets)
                try:
                    completed[index] = type_of_array(literal_array(operand, dtype))
                except GraphError as error:
                    error.operand = index
                    self.report(error)
        return tuple(completed)

    def results(self, node: Node, types: tuple[Type | None, ...]) -> list[Type | None]:
        """Return the types of the outputs of an op, a call or a `break`."""
        if node.kind is Kind.BREAK:
            self.check_condition(types[0])
            return []
        if node.op[0] == "@":
            inferred, source = self._called(node, types), f"{node.op} returns"
        else:
            inferred, source = self.inferred(node, types), "the op returns"
        return [
            known if value.type is None else self.agreed(value, known, index, source, (node, types))
            for index, (value, known) in enumerate(zip(node.outputs, inferred, strict=True))
        ]

    def inferred(self, node: Node, types: tuple[Type | None, ...]) -> Types:
        """Return the output types by the op's rule, regardless of declared types."""
        form = _form(node)
        found = self._answers.get((form, types)) if form is not None else None
        if found is None:
            found, errors = check_statement(node, types, self.opsets)
            for error in errors:
                self.report(error)
            if form is not None and not errors:
                self._answers[form, types] = found
        return found

    def _called(self, node: Node, types: Types) -> Types:
        """Return the result types of a call, after checking its operands against the graph's inputs."""
        signature = self.signatures.get(node.op[1:])
        if signature is None or len(signature.inputs) != len(types):
            return [None] * len(node.outputs)
        sizes: dict[str, int | str | None] = {}
        for index, (value, given) in enumerate(zip(signature.inputs, types, strict=True)):
            if value.type is None or given is None:
                continue
            if common_type(value.type, given) is None:
                message = f"{node.op} takes {value.type} as %{name_text(value.name)}, not {given}"
                self.report(GraphError(message, hint=_CORRECT, operand=index))
            bind_symbols(value.type, given, sizes)
        found = [value.type and with_symbols(value.type, sizes) for value in signature.outputs]
        return (found + [None] * len(node.outputs))[: len(node.outputs)]

    def agreed(
        self,
        value: Value,
        inferred: Type | None,
        output: int | None = None,
        source: str = "the op returns",
        statement: tuple[Node, Types] | None = None,
    ) -> Type | None:
        """Return a value's declared type with inferred sizes; report an error if the two contradict.

        `statement` is the op with the types of its operands, for the hint.
        """
        declared = value.type
        if declared is None or inferred is None or declared == inferred:
            return declared or inferred
        found = common_type(declared, inferred)
        if found is None:
            message = f"%{name_text(value.name)} is declared {declared} but {source} {inferred}"
            keepdims = statement is not None and self._with_other_keepdims(*statement, declared)
            hint = f"{keepdims or 'omit the type'}, or write %{name_text(value.name)}: {inferred}"
            self.report(GraphError(message, hint=hint, output=output))
        return found or declared

    def _with_other_keepdims(self, node: Node, types: Types, declared: Type) -> str | None:
        """Return the hint for a reduction that has the declared type with the other value of keepdims."""
        known = schema(node.op, version_of(node.op, self.opsets))
        if known is None or "keepdims" not in known.attributes:
            return None
        other = 0 if node.attributes.get("keepdims", known.attributes["keepdims"]) else 1
        changed = replace(node, attributes={**node.attributes, "keepdims": other})
        result = check_statement(changed, types, self.opsets)[0][0]
        fits = result is not None and common_type(declared, result) is not None
        return f"write keepdims={other}" if fits else None

    # -- blocks --------------------------------------------------------------------------------

    def check_condition(self, known: Type | None) -> None:
        """Report a condition, operand 0 of its statement, if it is not a bool."""
        if known is not None and not (isinstance(known, TensorType) and known.dtype == "bool"):
            message = f"the condition must be a bool, not {known}"
            self.report(GraphError(message, hint="compare, as in Greater(%x, 0)", operand=0))

    def loop_inputs(self, inputs: Sequence[Value], initial: Types) -> list[Type | None]:
        """Return the types of a loop's counter and carried values that hold in every iteration."""
        types = [self.agreed(inputs[0], TensorType("i64", ()), 0, "a counter is")]
        carried = enumerate(zip(inputs[1:], initial, strict=True), 1)
        return types + [self.carried(value, known, index) for index, (value, known) in carried]

    def carried(self, value: Value, initial: Type | None, index: int) -> Type | None:
        """Return the type of input `index` of a loop's body: as declared, else `initial` without sizes."""
        if value.type is None:
            return without_sizes(initial) if initial is not None else None
        self.agreed(value, initial, index, "its first value is")
        return value.type

    def check_ends(
        self, wanted: Sequence[Value], names: Sequence[str], found: Types, where: str = ""
    ) -> None:
        """Report each result of a block with a type that contradicts its `wanted` type."""
        for index, (value, name, known) in enumerate(zip(wanted, names, found, strict=False)):
            if value.type is not None and known is not None and common_type(value.type, known) is None:
                place = where or f"%{name_text(value.name)} is"
                message = f"%{name_text(name)} is {known}, but {place} {value.type}"
                self.report(GraphError(message, hint=_CORRECT, operand=index))

    def branch_results(self, node: Node, ends: Sequence[Types]) -> list[Type | None]:
        """Return the output types of an `if` from the result types of its branches."""
        found = [joined_type(types) for types in zip(*ends, strict=False)]
        for index, (value, types) in enumerate(zip(node.outputs, zip(*ends, strict=False), strict=False)):
            if found[index] is None and value.type is not None:
                # The branches differ: one contradicts the declared type, or the type is unknown.
                declared = without_sizes(value.type)
                wrong = (known for known in types if known and common_type(declared, known) is None)
                found[index] = next(wrong, None)
        return self._block_results(node, found, "a branch returns")

    def loop_results(self, node: Node, carried: Types, ends: Types) -> list[Type | None]:
        """Return the output types of a `while`: carried values, then collected values, stacked."""
        found = [*carried, *map(stacked_type, ends[len(carried) :])]
        return self._block_results(node, found, "the loop returns")

    def _block_results(self, node: Node, found: list[Type | None], source: str) -> list[Type | None]:
        found += [None] * (len(node.outputs) - len(found))
        return [
            self.agreed(value, known, index, source)
            for index, (value, known) in enumerate(zip(node.outputs, found, strict=False))
        ]


def _form(node: Node) -> tuple[object, ...] | None:
    """Return what a type rule reads besides operand types, as a key; None if it includes a tensor."""
    attributes = node.attributes
    if not attributes:
        text = ""
    elif any(isinstance(value, Inline) for value in attributes.values()):
        return None
    else:
        text = repr(attributes)
    absent = tuple([name is None for name in node.inputs]) if None in node.inputs else len(node.inputs)
    return node.op, text, absent, len(node.outputs)


Complain: TypeAlias = Callable[[Path, int, NncdbgError], NncdbgError]
"""Adds the place of a statement, its block and its number, to an error."""

Steps: TypeAlias = "Generator[tuple[Graph, Path, Types, _Scope], None, None]"


@dataclass(slots=True)
class _Scope:
    """The types of the values of one block, and of the blocks around it."""

    types: dict[str, Type | None]
    outer: _Scope | None = None

    def __call__(self, name: str) -> Type | None:
        """Return the type of a value that is visible in the block.  Raises GraphError if there is none."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.types:
                return scope.types[name]
            scope = scope.outer
        raise GraphError(f"%{name_text(name)} is not defined", hint="define the value before this statement")


class GraphInference(TypeRules):
    """Infers the types of one graph and all blocks inside it; raises the first error.

    `constant_type` returns the type of a constant without a declared type; `complain` adds the place to
    an error.  A block may define the names in `rebound` more than once, with the same type.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        signatures: Mapping[str, GraphSignature],
        constant_type: Callable[[Constant], Type],
        complain: Complain,
        answers: Answers | None = None,
        rebound: Container[str] = (),
    ) -> None:
        super().__init__(opsets, signatures, answers)
        self._rebound = rebound
        self._constant_type = constant_type
        self._complain = complain
        self.path: Path = ()
        """The block of the statement in inference."""
        self.types: dict[Path, dict[str, Type | None]] = {}
        self._ends: dict[Path, Types] = {}

    def infer(
        self, graph: Graph, inputs: Types, path: Path | None = None
    ) -> Mapping[Path, dict[str, Type | None]]:
        """Return the types of all values by block, for inputs of these types (None: as declared)."""
        types = [given or value.type for value, given in zip(graph.inputs, inputs, strict=True)]
        # No recursion: blocks may be nested deeper than Python's stack.
        stack = [self._block(graph, path or (graph.name,), types, None)]
        while stack:
            inner = next(stack[-1], None)
            if inner is None:
                stack.pop()
            else:
                stack.append(self._block(*inner))
        return self.types

    def _block(self, graph: Graph, path: Path, inputs: Types, outer: _Scope | None) -> Steps:
        known = self.types[path] = dict(zip([value.name for value in graph.inputs], inputs, strict=True))
        known.pop("", None)  # A counter that no statement reads.
        for constant in graph.constants:
            known[constant.value.name] = constant.value.type or self._constant_type(constant)
        scope = _Scope(known, outer)
        for pc, node in enumerate(graph.nodes):
            try:
                self.path = path
                types = self.operand_types(node, scope)
                if node.subgraphs:
                    yield from self._inside(node, (*path, pc), types, scope)
                    self.path = path
                    results = self._closed(node, (*path, pc))
                else:
                    results = self.results(node, types)
                self._define(node, results, known)
            except NncdbgError as error:
                raise self._with_statement(path, pc, error) from error
        try:
            self.path = path
            self._end(graph, scope)
        except NncdbgError as error:
            raise self._with_statement(path, len(graph.nodes), error) from error

    def _with_statement(self, path: Path, pc: int, error: NncdbgError) -> NncdbgError:
        return error if error.excerpt is not None else self._complain(path, pc, error)

    def _define(self, node: Node, results: Types, known: dict[str, Type | None]) -> None:
        for value, type_ in zip(node.outputs, results, strict=True):
            if value.name in known and value.name not in self._rebound:
                raise GraphError(
                    f"%{name_text(value.name)} is defined twice", hint="rename one of the two values"
                )
            if value.name:
                known[value.name] = type_

    def _inside(self, node: Node, place: Path, types: Types, scope: _Scope) -> Steps:
        """Infer the types in the blocks of an `if` or a `while`."""
        if node.kind is Kind.WHILE:
            body, path = node.subgraphs[0], (*place, 0)
            self.path = path
            yield body, path, self.loop_inputs(body.inputs, types[1:]), scope
            return
        self.check_condition(types[0])
        for index, branch in enumerate(node.subgraphs):
            yield branch, (*place, index), (), scope

    def _closed(self, node: Node, place: Path) -> list[Type | None]:
        """Return the output types of an `if` or a `while` after its blocks have been inferred."""
        if node.kind is Kind.WHILE:
            carried = [self.types[(*place, 0)].get(value.name) for value in node.subgraphs[0].inputs[1:]]
            return self.loop_results(node, carried, self._ends[(*place, 0)])
        return self.branch_results(node, [self._ends[(*place, index)] for index in (0, 1)])

    def _end(self, graph: Graph, scope: _Scope) -> None:
        """Check the last line of a block: a graph's results, or a loop's next carried values."""
        names = [value.name for value in graph.outputs]
        ends = self._ends[self.path] = [scope(name) for name in names]
        if len(self.path) == 1:
            self.check_ends(graph.outputs, names, ends, "the graph declares")
        else:
            carried = [Value(value.name, scope.types.get(value.name)) for value in graph.inputs[1:]]
            self.check_ends(carried, names, ends)
