"""The signature of an op: formal parameters, attributes with defaults, documentation.

Each domain has providers of its signatures (`Schemas`): ONNX's come from `onnx.defs` (`onnx_schemas.py`),
those of the ops that onnxruntime adds from a file, those of the domain ``nncdbg`` from the kernels.
`register_schemas` adds others.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np

from nncdbg.dtypes import ONNX
from nncdbg.engine.ops.declaration import declared
from nncdbg.engine.ops.declaration import names as declared_names
from nncdbg.errors import GraphError
from nncdbg.ir.records import DEFAULT_DOMAIN, Inline, Node, Type
from nncdbg.text.lexemes import key_text, nearest, op_text, quote
from nncdbg.textual_repr.literals import attribute_text

_WIDE_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal operand or result.

    `kind` is the type variable of an op's schema (``T``; formals of one variable have one type) or a type as
    text; `type` is that of a graph's input.
    """

    name: str
    kind: str = ""
    optional: bool = False
    variadic: bool = False
    tensor: bool = True
    """False if a sequence, an optional or a map is allowed."""
    dtypes: frozenset[str] | None = None
    """The allowed element types of tensors; None for all."""
    doc: str = ""
    type: Type | None = None

    @property
    def only_float(self) -> str | None:
        """Return the float type of 16 bits or more, if exactly one is allowed."""
        floats = self.dtypes & _WIDE_FLOATS if self.dtypes is not None else ()
        return next(iter(floats)) if len(floats) == 1 else None

    def text(self) -> str:
        """Format the formal as in a signature: ``X: T``, ``B?: T``, ``inputs...: T``."""
        mark = "..." if self.variadic else "?" if self.optional else ""
        return f"{self.name}{mark}: {self.kind}" if self.kind else f"{self.name}{mark}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The signature of an op in one opset version."""

    name: str
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    """Name to default: `REQUIRED` if it must be given, None for an optional attribute without default."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Name of an attribute to ONNX's name for its type: ``INT``, ``FLOATS``, ``TENSOR`` ..."""
    attribute_docs: dict[str, str] = field(default_factory=dict)
    doc: str = ""
    since: int = 1
    deprecated: bool = False
    function: bool = False
    """True if ONNX defines the op by a function body."""
    operand_mark: str = ""
    """The text of an attribute or its item that is an operand after the others; "" if there is none."""

    def marked(self, given: Mapping[str, Any]) -> int:
        """Return the number of operands that these attributes ask for."""
        items = (value if isinstance(value, tuple) else (value,) for value in given.values())
        return sum(each.count(self.operand_mark) for each in items) if self.operand_mark else 0


REQUIRED = object()


class Schemas(Protocol):
    """A provider of signatures for the ops of one or more domains.  Op names are as in program text."""

    @property
    def source(self) -> str:
        """The library that provides the signatures, for hints."""

    def schema(self, name: str, version: int) -> Schema | None:
        """Return the signature of an op in `version` of its domain, None for an unknown op."""

    def versions(self, name: str) -> tuple[int, ...]:
        """Return the versions that added the op or changed it, oldest first; empty for an unknown op."""

    def names(self, domain: str) -> Iterable[str]:
        """Return the names of all ops of a domain."""
        return ()

    def newest(self, domain: str) -> int | None:
        """Return the newest version of a domain, None if any version is accepted."""
        return None


_ANNOTATED = {
    "int": "INT",
    "float": "FLOAT",
    "float | None": "FLOAT",
    "str": "STRING",
    "Sequence[int]": "INTS",
    "Sequence[int] | None": "INTS",
}
"""The annotation of a kernel's keyword to ONNX's name for the type of the attribute."""


_BEYOND_TENSORS = frozenset({"S", "V"})
"""The type variables of sequences, and of tensors and sequences, as in ONNX's schemas."""


class KernelSchemas(Schemas):
    """Signatures derived from the kernels of declared ops."""

    source = "nncdbg"

    def schema(self, name: str, version: int) -> Schema | None:
        entries = [entry for entry in declared(name) if entry.since <= version]
        if not entries or entries[-1].kernel is None:
            return None
        parameters = list(inspect.signature(entries[-1].kernel).parameters.values())[1:]
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
        keywords = [
            p
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name not in ("out", "rng", "opset", "outputs_count")
        ]
        types = entries[-1].types
        return Schema(
            name=name,
            inputs=tuple(
                Formal(
                    p.name,
                    types.get(p.name, "T"),
                    p.default is None,
                    p.kind is p.VAR_POSITIONAL,
                    types.get(p.name) not in _BEYOND_TENSORS,
                )
                for p in positional
            ),
            outputs=tuple(
                Formal(each.removesuffix("..."), types.get(each, "T"), variadic=each.endswith("..."))
                for each in entries[-1].results
            ),
            attributes={p.name: _default(p) for p in keywords},
            kinds={p.name: _ANNOTATED[p.annotation] for p in keywords if p.annotation in _ANNOTATED},
            doc=inspect.cleandoc(entries[-1].doc),
        )

    def versions(self, name: str) -> tuple[int, ...]:
        return tuple(entry.since for entry in declared(name))


def _default(parameter: inspect.Parameter) -> Any:
    """Return the default of an attribute; a float is rounded to f32, as in program text."""
    if parameter.default is parameter.empty:
        return REQUIRED
    return float(np.float32(parameter.default)) if isinstance(parameter.default, float) else parameter.default


_DEFAULT = "*"
_PROVIDERS: dict[str, tuple[Schemas, ...]] = {"nncdbg": (KernelSchemas(),)}
_FLAT: set[str] = set()


def register_schemas(provider: Schemas, *domains: str, flat: bool = False) -> None:
    """Register `provider` for the ops of `domains`, after the providers that these already have.

    Without `domains`: for all domains without their own provider.  A `flat` domain is the part of a name
    before the first dot rather than the last one: ``aten.add.Tensor`` is of the domain ``aten``.
    """
    _FLAT.update(domains if flat else ())
    for domain in domains or (_DEFAULT,):
        _PROVIDERS[domain] = (*_PROVIDERS.get(domain, ()), provider)
    schema.cache_clear()
    split.cache_clear()
    _newest.cache_clear()


def _providers(domain: str) -> tuple[Schemas, ...]:
    return _PROVIDERS.get(domain) or _PROVIDERS[_DEFAULT]


def listed_domains() -> list[str]:
    """Return the domains for which `nncdbg ops` lists every op: all but those of PyTorch, which are large."""
    return [domain for domain in _PROVIDERS if domain not in ("nncdbg", _DEFAULT) and domain not in _FLAT]


def is_flat(domain: str) -> bool:
    """Return whether a domain is the part of an op's name before the first dot."""
    return domain in _FLAT


@lru_cache(maxsize=4096)
def split(name: str) -> tuple[str, str]:
    """Split a name: ``com.example.Op`` is (``com.example``, ``Op``); an ONNX name has the default domain.

    In a flat domain ``aten.relu.default`` is (``aten``, ``relu.default``).
    """
    domain, _, local = name.rpartition(".")
    first, _, rest = name.partition(".")
    return (first, rest) if first in _FLAT else (domain, local)


def joined(domain: str, local: str) -> str:
    """Return the name of an op as in program text."""
    return f"{domain}.{local}" if domain else local


def newest_opset() -> int:
    """Return the newest opset of ONNX's own domain that the installed `onnx` supports."""
    return _newest(DEFAULT_DOMAIN) or 1


@cache
def _newest(domain: str) -> int | None:
    return _providers(domain)[0].newest(domain)


def versions_of(name: str) -> tuple[int, ...]:
    """Return the versions that added the op or changed it, oldest first; empty for an unknown op."""
    found = (provider.versions(name) for provider in _providers(split(name)[0]))
    return next(filter(None, found), ())


def check_opsets(opsets: Mapping[str, int], domains: Iterable[str]) -> None:
    """Raise GraphError if one of `domains` is imported in a version that its provider does not have."""
    for domain in sorted(set(domains) & opsets.keys()):
        newest = _newest(domain)
        if newest is not None and not 1 <= opsets[domain] <= newest:
            newer = f"upgrade {_providers(domain)[0].source}, or export the model for an older opset"
            raise GraphError(
                f"opset {opsets[domain]} of {domain or 'ONNX'} is unknown: "
                f"nncdbg supports versions 1 to {newest}",
                hint=newer if opsets[domain] > newest else "export the model again: it is damaged",
            )


def schema_names(domains: Iterable[str]) -> set[str]:
    """Return the names of all ops of these domains that have a schema, as in program text."""
    return {name for domain in domains for each in _providers(domain) for name in each.names(domain)}


@cache
def schema(name: str, version: int) -> Schema | None:
    """Return the schema of `name` in opset `version` of its domain, or None for an op without one."""
    found = (provider.schema(name, version) for provider in _providers(split(name)[0]))
    return next((each for each in found if each is not None), None)


def documentation(name: str, version: int) -> str:
    """Return the documentation in the declaration of an op."""
    entries = [entry for entry in declared(name) if entry.since <= version]
    return inspect.cleandoc(entries[-1].doc) if entries else ""


def only_float(node: Node, index: int, opsets: Mapping[str, int]) -> str | None:
    """Return the float type of operand `index` of an op, if it allows exactly one."""
    known = schema(node.op, version_of(node.op, opsets))
    if known is None or not known.inputs:
        return None
    return known.inputs[min(index, len(known.inputs) - 1)].only_float


def complete(name: str, version: int, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a statement with the schema's defaults, as a kernel takes them.

    Tensors become arrays.  Raises GraphError for a missing required attribute, for an attribute that the op
    does not have, or for one of another type; an op without a schema keeps the given attributes.
    """
    given = {key: value.array if isinstance(value, Inline) else value for key, value in attributes.items()}
    found = schema(name, version)
    if found is None:
        return given
    for error in attribute_errors(found, version, given):
        raise error
    return {**found.attributes, **given}


def for_rules(name: str, version: int, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a statement as the rules of an op read them.

    The rules serve every version: an attribute that this version lacks has the default of the newest one.
    """
    versions = versions_of(name)
    newest = schema(name, versions[-1]) if versions else None
    return {**(newest.attributes if newest is not None else {}), **complete(name, version, attributes)}


def attribute_errors(found: Schema, version: int, given: Mapping[str, Any]) -> Iterator[GraphError]:
    """Yield an error for each attribute that is unknown to the op, of another type, or missing.

    `given` has tensors as arrays.
    """
    for key, value in given.items():
        if key not in found.attributes:
            message = f"{found.name} has no attribute {key!r} in opset {version}"
            hint = _unknown_attribute(found, key, value)
            yield GraphError(message, hint=hint, attribute=key, code="attribute")
        elif isinstance(value, str) and value == found.operand_mark != "":
            continue
        elif (wrong := _wrong_kind(value, found.kinds.get(key, ""))) is not None:
            message = f"{found.name}: the attribute {key!r} is {_said(value)}, not {wrong}"
            hint = f"write {key}={_repaired(value, found.kinds[key])}"
            yield GraphError(message, hint=hint, attribute=key, code="attribute")
    for key, default in found.attributes.items():
        if default is REQUIRED and key not in given:
            message = f"{found.name} needs the attribute {key!r}"
            yield GraphError(
                message, hint=f"write {key}={_repaired(None, found.kinds.get(key, ''))}", code="attribute"
            )


_SYNONYMS = {"dim": ("axis", "axes"), "dims": ("axes",), "axis": ("axes",), "axes": ("axis",)}
"""Names that PyTorch, NumPy and other ops use for an attribute, and those to try instead."""


def _unknown_attribute(found: Schema, key: str, value: Any) -> str:
    """Return the hint for an attribute that the op does not have: an operand, or a similar attribute."""
    names = [parameter.name for parameter in found.inputs]
    for other in (key, *_SYNONYMS.get(key, ())):
        if other in names:
            given = [value] if other == "axes" and isinstance(value, int) else value
            operands = ", ".join([*names[: names.index(other)], _said(given)])
            return f"{other} is an operand: {found.name}({operands})"
        if other in found.attributes:
            return f"did you mean {other}?"
    close = nearest(key, found.attributes)
    return close or f"use these attributes: {', '.join(found.attributes) or 'none'}"


_EXAMPLES = {
    "INT": "1",
    "FLOAT": "1.0",
    "STRING": '"text"',
    "TENSOR": "f32[1] [1.0]",
    "TYPE_PROTO": "type(f32[1])",
}


def _repaired(value: Any, kind: str) -> str:
    """Return `value` as the text of an attribute of ONNX's type `kind`; an example if it cannot be one."""
    several = kind in ("INTS", "FLOATS", "STRINGS")
    item = kind[:-1] if several else kind
    values = value if isinstance(value, (list, tuple)) else (value,)
    texts = [_repaired_item(each, item) for each in (values if several else values[:1])]
    return f"[{', '.join(texts)}]" if several else "".join(texts) or _EXAMPLES.get(kind, "1")


def _repaired_item(value: Any, kind: str) -> str:
    """Return the text of an element of an attribute."""
    if kind == "INT" and isinstance(value, str) and value in ONNX:
        return str(ONNX[value])
    if kind in ("INT", "FLOAT") and isinstance(value, (int, float, str)):
        try:
            return str(int(value) if kind == "INT" else float(value))
        except (ValueError, OverflowError):
            return _EXAMPLES[kind]
    if kind == "TENSOR" and isinstance(value, (int, float)):
        return f"i64[] {value}" if isinstance(value, int) else f"f32[] {value}"
    return quote(str(value)) if kind == "STRING" and value is not None else _EXAMPLES.get(kind, "1")


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "INT": ((int, np.integer), "an integer"),
    "FLOAT": ((int, float, np.number), "a number"),
    "STRING": ((str, bytes), "a text"),
    "TENSOR": ((np.ndarray, np.generic), "a tensor"),
}
"""ONNX's name for the type of an attribute to the types of its value, and a readable description."""


def _wrong_kind(value: Any, kind: str) -> str | None:
    """Return the type that the schema expects, if an attribute is of another type."""
    several = kind in ("INTS", "FLOATS", "STRINGS")
    types, words = _KINDS.get(kind[:-1] if several else kind, ((object,), ""))
    listed = isinstance(value, (list, tuple))
    items = value if listed else (value,)
    if not words or (listed == several and all(isinstance(item, types) for item in items)):
        return None
    return f"a list, each item {words}" if several else words


def _said(value: Any) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def version_of(name: str, opsets: Mapping[str, int]) -> int:
    """Return the opset version that applies to the op `name` in a program with these imports."""
    domain, _ = split(name)
    version = opsets.get(domain) if domain != "nncdbg" else 1
    return int(version) if version is not None else _newest(domain) or 1


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
        found.inputs,
        found.outputs,
        tuple(sorted(attributes, key=lambda attribute: not attribute.required)),
        found.doc,
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
    signatures = ((name, schema(name, version_of(name, held))) for name in {*known, *own})
    return tuple(sorted(name for name, found in signatures if found is not None and not found.deprecated))


def one_line(text: str) -> str:
    return " ".join(text.split())


def label(found: OpSignature) -> str:
    """Format a signature: ``Conv(X: T, W: T, B?: T, group=1) -> (Y: T)``."""
    inner = [*(f.text() for f in found.inputs), *(a.text() for a in found.attributes)]
    return f"{op_text(found.name)}({', '.join(inner)}) -> ({', '.join(f.text() for f in found.outputs)})"
