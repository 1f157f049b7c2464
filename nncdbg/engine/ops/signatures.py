"""Signatures of ops, from their schemas, for editors and `nncdbg ops`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from nncdbg.engine.ops import names as declared_names
from nncdbg.engine.ops.schema import REQUIRED, Parameter, Schema, schema, schema_names, version_of
from nncdbg.engine.text.lexemes import key_text, op_text
from nncdbg.ir.records import DEFAULT_DOMAIN, Type
from nncdbg.textual_repr.literals import attribute_text


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal operand or output.

    `kind` is the type variable of an op's schema (formals of one variable have one type) or a type as text;
    `dtypes` are the allowed element types, None for all; `type` is that of a graph's input.
    """

    name: str
    kind: str = ""
    optional: bool = False
    variadic: bool = False
    dtypes: frozenset[str] | None = None
    type: Type | None = None
    doc: str = ""

    def text(self) -> str:
        """Format the formal as in a signature: ``X: T``, ``B?: T``, ``inputs...: T``."""
        mark = "..." if self.variadic else "?" if self.optional else ""
        return f"{self.name}{mark}: {self.kind}" if self.kind else f"{self.name}{mark}"


@dataclass(frozen=True, slots=True)
class AttributeFormal:
    """An attribute of an op: `kind` is ONNX's name (``INTS``), `default` is text or None."""

    name: str
    kind: str
    default: str | None
    required: bool
    doc: str = ""

    def text(self) -> str:
        """Format the attribute: ``axis=-1``, ``to: INT``, ``pads?: INTS``."""
        if self.default is not None:
            return f"{key_text(self.name)}={self.default}"
        return f"{key_text(self.name)}{'' if self.required else '?'}: {self.kind or 'any'}"


@dataclass(frozen=True, slots=True)
class OpSignature:
    """The signature of an op or a graph; `name` is that of an op, or ``@graph``."""

    name: str
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attributes: tuple[AttributeFormal, ...] = ()
    doc: str = ""

    def operand(self, index: int) -> Formal | None:
        """Return the formal operand at a position; a variadic last one covers all later positions."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.inputs and self.inputs[-1].variadic else None

    def attribute(self, name: str) -> AttributeFormal | None:
        return next((found for found in self.attributes if found.name == name), None)


@cache
def op_signature(name: str, version: int) -> OpSignature | None:
    """Return the signature of an op in an opset version of its domain."""
    found = schema(name, version)
    if found is None:
        return None
    attributes = [_attribute(found, key) for key in found.attributes]
    return OpSignature(
        name,
        tuple(map(_formal, found.inputs)),
        tuple(map(_formal, found.outputs)),
        tuple(sorted(attributes, key=lambda attribute: not attribute.required)),
        found.doc,
    )


def _formal(parameter: Parameter) -> Formal:
    return Formal(
        parameter.name,
        parameter.type,
        parameter.optional,
        parameter.variadic,
        parameter.dtypes,
        doc=parameter.doc,
    )


def _attribute(found: Schema, key: str) -> AttributeFormal:
    default = found.attributes[key]
    text = None if default is REQUIRED or default is None else attribute_text(default)
    return AttributeFormal(
        key, found.kinds.get(key, ""), text, default is REQUIRED, found.attribute_docs.get(key, "")
    )


@cache
def op_names(opsets: frozenset[tuple[str, int]]) -> tuple[str, ...]:
    """Return the names of all ops that a program with these opsets can use, sorted."""
    held = dict(opsets)
    own = (name for name in declared_names() if "." in name)
    known = schema_names({DEFAULT_DOMAIN, *held})
    return tuple(sorted(name for name in {*known, *own} if _is_current(name, held)))


def _is_current(name: str, opsets: Mapping[str, int]) -> bool:
    version = version_of(name, opsets)
    found = schema(name, version)
    return found is not None and not found.deprecated


def one_line(text: str) -> str:
    return " ".join(text.split())


def label(found: OpSignature) -> str:
    """Format a signature: ``Conv(X: T, W: T, B?: T, group=1) -> (Y: T)``."""
    inner = [*(f.text() for f in found.inputs), *(a.text() for a in found.attributes)]
    return f"{op_text(found.name)}({', '.join(inner)}) -> ({', '.join(f.text() for f in found.outputs)})"
