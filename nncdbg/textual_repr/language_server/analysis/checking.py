"""One statement against its op's schema and type rule: all that is wrong, each where it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from nncdbg.engine.compilation.code import agreed, literal_array, type_of_array
from nncdbg.engine.compilation.inference import check_operands, literal_dtype, output_types
from nncdbg.engine.errors import GraphError, NncdbgError
from nncdbg.engine.graph import DEFAULT_DOMAIN, Inline, Literal, Node, Type
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import REQUIRED, Schema, check_kind, schema, split, version_of, versions_of
from nncdbg.engine.text.lexemes import nearest
from nncdbg.textual_repr.language_server.analysis.events import Entry
from nncdbg.textual_repr.language_server.document.records import Problem, Severity, Span
from nncdbg.textual_repr.language_server.document.tokens import Arguments, arguments, tokens

Results: TypeAlias = "tuple[Sequence[Type | None], tuple[Problem, ...]]"


def check(entry: Entry, text: str, types: Sequence[Type | None], opsets: Mapping[str, int]) -> Results:
    """The types of the outputs of an op, and its problems; their spans are in line 0."""
    return _Check(entry, text, opsets).run(types)


class _Check:
    def __init__(self, entry: Entry, text: str, opsets: Mapping[str, int]) -> None:
        assert isinstance(entry.content, Node)
        assert entry.mark is not None
        self.node, self.text, self.opsets = entry.content, text, opsets
        self.op = Span(0, entry.mark.start, entry.mark.start + entry.mark.width)
        self.defined = entry.names.defines
        self.problems: list[Problem] = []
        self._arguments: Arguments | None = None

    @property
    def arguments(self) -> Arguments:
        if self._arguments is None:
            self._arguments = arguments(self.text)
        return self._arguments

    def run(self, types: Sequence[Type | None]) -> Results:
        node = self.node
        version = version_of(node.op, self.opsets)
        found = schema(node.op, version)
        if found is None:
            if lookup(node.op, version) is None:
                self.unknown_op(version)
        else:
            self.attributes(found, version)
            self.operands(found)
        types = self.with_literals(types)
        inferred: Sequence[Type | None] = [None] * len(node.outputs)
        if not self.problems:
            try:
                inferred = output_types(node, types, self.opsets)
            except NncdbgError as error:
                self.add(self.place(error.message, found), error, "type")
        return self.declared(inferred), tuple(self.problems)

    def add(self, span: Span, error: NncdbgError, code: str, severity: Severity = "error") -> None:
        self.problems.append(Problem(span, error.message, code, severity, error.hint))

    def unknown_op(self, version: int) -> None:
        """An op that nobody knows is legal; only running it fails."""
        domain, _ = split(self.node.op)
        if domain != DEFAULT_DOMAIN:
            message = f"{self.node.op} has an unknown domain: running it fails"
            self.problems.append(Problem(self.op, message, "unknown-op", "information"))
            return
        versions = versions_of(self.node.op)
        if versions:
            message = f"{self.node.op} is not in opset {version}"
            hint = f"it was added in opset {versions[0]}"
            self.problems.append(Problem(self.op, message, "unknown-op", "warning", hint))
        else:
            message = f"ONNX has no op {self.node.op}: running it fails"
            self.problems.append(Problem(self.op, message, "unknown-op", "warning", unknown=self.node.op))

    def attributes(self, found: Schema, version: int) -> None:
        given = self.node.attributes
        for key, value in given.items():
            if key not in found.attributes:
                known = ", ".join(found.attributes) or "none"
                near = nearest(key, found.attributes)
                message = f"{found.name} has no attribute {key!r} in opset {version}"
                hint = near or f"use these attributes: {known}"
                self.problems.append(Problem(self.name_of(key), message, "attribute", "error", hint))
                continue
            try:
                data = value.array if isinstance(value, Inline) else value
                check_kind(found.name, key, data, found.kinds.get(key, ""))
            except GraphError as error:
                self.add(self.attribute(key), error, "attribute")
        for key, default in found.attributes.items():
            if default is REQUIRED and key not in given:
                message = f"{found.name} needs the attribute {key!r}"
                self.problems.append(
                    Problem(self.op, message, "attribute", "error", f"write {key}=... in the call")
                )

    def operands(self, found: Schema) -> None:
        try:
            check_operands(self.node, found)
        except GraphError as error:
            span = self.op
            columns = self.arguments.operands
            if len(self.node.inputs) > len(found.inputs) and not _variadic(found):
                span = Span(0, columns[len(found.inputs)][0], columns[-1][1])
            elif error.message.startswith(f"{found.name} needs its operand"):
                missing = next(
                    i for i, p in enumerate(found.inputs) if self.node.inputs[i] is None and not p.optional
                )
                span = Span(0, *columns[missing])
            elif "output" in error.message and len(self.defined) > len(found.outputs):
                mark = self.defined[len(found.outputs)]
                span = Span(0, mark.start, mark.start + mark.width)
            self.add(span, error, "arity")

    def with_literals(self, types: Sequence[Type | None]) -> list[Type | None]:
        """The operands' types, those of literals by their positions."""
        completed = list(types)
        for index, operand in enumerate(self.node.inputs):
            if isinstance(operand, Literal):
                dtype = literal_dtype(operand, self.node, index, types, self.opsets)
                try:
                    completed[index] = type_of_array(literal_array(operand, dtype))
                except GraphError as error:
                    self.add(Span(0, *self.arguments.operands[index]), error, "type")
        return completed

    def declared(self, inferred: Sequence[Type | None]) -> list[Type | None]:
        """What the text and the rule agree on."""
        results: list[Type | None] = []
        for value, found in zip(self.node.outputs, inferred, strict=True):
            try:
                results.append(agreed(value.name, value.type, found))
            except GraphError as error:
                self.add(self.type_of(value.name), error, "type")
                results.append(value.type)
        return results

    # -- places --------------------------------------------------------------------------------

    def name_of(self, key: str) -> Span:
        return Span(0, *self.arguments.names.get(key, (self.op.start, self.op.end)))

    def attribute(self, key: str) -> Span:
        return Span(0, *self.arguments.attributes.get(key, (self.op.start, self.op.end)))

    def type_of(self, name: str) -> Span:
        """Where the type of an output is written."""
        mark = next((mark for mark in self.defined if mark.name == name), None)
        pieces = tokens(self.text)
        for at, token in enumerate(pieces):
            if mark is not None and token.start == mark.start:
                typed = next((t for t in pieces[at + 1 : at + 3] if t.kind == "type"), token)
                return Span(0, typed.start, typed.end)
        return self.op

    def place(self, message: str, found: Schema | None) -> Span:
        """The operand or the attribute that a message names; the op where it names none."""
        words = set(re.findall(r"[\w.]+", message)) - {self.node.op}
        for key in self.node.attributes:
            if key in words:
                return self.attribute(key)
        columns = self.arguments.operands
        for index, operand in enumerate(self.node.inputs):
            if isinstance(operand, str) and f"%{operand}" in message:
                return Span(0, *columns[index])
        for parameter, place in zip(found.inputs if found else (), columns, strict=False):
            if len(parameter.name) > 1 and parameter.name in words:
                return Span(0, *place)
        return Span(0, *columns[0]) if len(columns) == 1 else self.op


def _variadic(found: Schema) -> bool:
    return bool(found.inputs) and found.inputs[-1].variadic
