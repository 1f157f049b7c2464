"""The signature of an op: formal parameters, attributes with defaults, documentation.

ONNX's come from `onnx.defs`, those of the ops that onnxruntime adds from `microsoft.schemas`; none
is typed in by hand.  Ops of the domain ``nncdbg`` have no ONNX schema; theirs is read off the
kernel's signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from nncdbg.engine.errors import GraphError
from nncdbg.engine.graph import DEFAULT_DOMAIN, Inline, Node
from nncdbg.engine.ops.declaration import declared
from nncdbg.engine.ops.microsoft.schemas import DOMAINS, added_schema, added_schemas, added_versions


@dataclass(frozen=True, slots=True)
class Parameter:
    """A formal input or output.  `type` is a type variable (``T``) or an ONNX type string."""

    name: str
    type: str
    optional: bool = False
    variadic: bool = False
    tensor: bool = True
    """False where a sequence, an optional or a map may stand."""
    only_float: str | None = None
    """The float type of 16 bits or more, if exactly one is allowed."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The signature of an op in one opset version."""

    name: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    """Name to default; `REQUIRED` where there is none and one must be given; None where it may be absent."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Name of an attribute to ONNX's word for its type: ``INT``, ``FLOATS``, ``TENSOR`` ..."""
    doc: str = ""
    since: int = 1


REQUIRED = object()

LISTED_DOMAINS = (DEFAULT_DOMAIN, "ai.onnx.ml", *sorted(DOMAINS))
"""The domains of which `nncdbg ops` lists every op."""


def split(name: str) -> tuple[str, str]:
    """``aten.relu`` is (``aten``, ``relu``); an ONNX name has the default domain."""
    domain, _, local = name.rpartition(".")
    return domain, local


def newest_opset() -> int:
    """The newest opset of ONNX's own domain that the installed `onnx` knows."""
    import onnx.defs

    return int(onnx.defs.onnx_opset_version())


def versions_of(name: str) -> tuple[int, ...]:
    """The opset versions that brought the op or changed it, oldest first; empty for an unknown op."""
    return _versions().get(split(name), ()) or added_versions(*split(name))


@cache
def _versions() -> dict[tuple[str, str], tuple[int, ...]]:
    """By domain and name; one pass over all of them costs as much as one for a single op."""
    import onnx.defs

    found: dict[tuple[str, str], list[int]] = {}
    for each in onnx.defs.get_all_schemas_with_history():
        found.setdefault((each.domain, each.name), []).append(each.since_version)
    return {key: tuple(sorted(versions)) for key, versions in found.items()}


def check_opsets(opsets: Mapping[str, int], domains: Iterable[str]) -> None:
    """GraphError if one of ONNX's `domains` is imported in a version that `onnx` does not know."""
    import onnx

    for domain in sorted(set(domains) & opsets.keys()):
        newest = newest_opset() if domain == DEFAULT_DOMAIN else _newest_of(domain)
        if newest is not None and not 1 <= opsets[domain] <= newest:
            newer = f"upgrade onnx {onnx.__version__}, or export the model for an older opset"
            raise GraphError(
                f"opset {opsets[domain]} of {domain or 'ONNX'} is unknown: "
                f"nncdbg supports versions 1 to {newest}",
                hint=newer if opsets[domain] > newest else "export the model again: it is damaged",
            )


@cache
def _newest_of(domain: str) -> int | None:
    """The newest opset of a domain, None for one that is not ONNX's."""
    import onnx.defs

    known = (found.since_version for found in onnx.defs.get_all_schemas() if found.domain == domain)
    return max(known, default=None)


def op_schema(name: str, version: int) -> Any:
    """The `onnx.defs.OpSchema` of an op in `version` of its domain: ONNX's, else onnxruntime's, else None."""
    import onnx.defs

    domain, local = split(name)
    if domain in DOMAINS:
        return added_schema(domain, local, version)
    try:
        return onnx.defs.get_schema(local, version, domain)
    except onnx.defs.SchemaError:
        return added_schema(domain, local, version)


def schema_names(domains: Iterable[str]) -> set[str]:
    """The names of all ops of these domains that have a schema, as in program text."""
    import onnx.defs

    wanted = frozenset(domains)
    known = {(found.domain, found.name) for found in onnx.defs.get_all_schemas()}
    pairs = (pair for pair in known.union(added_schemas()) if pair[0] in wanted)
    return {f"{domain}.{local}" if domain else local for domain, local in pairs}


@cache
def schema(name: str, version: int) -> Schema | None:
    """The schema of `name` in opset `version` of its domain, or None for an op without one."""
    domain, _ = split(name)
    if domain == "nncdbg":
        return _own(name)
    found = op_schema(name, version)
    if found is None:
        return None
    return Schema(
        name=name,
        inputs=tuple(_parameter(formal) for formal in found.inputs),
        outputs=tuple(_parameter(formal) for formal in found.outputs),
        attributes={key: _default(attribute) for key, attribute in found.attributes.items()},
        kinds={key: attribute.type.name for key, attribute in found.attributes.items()},
        doc=(found.doc or "").strip() or _documented(name, version),
        since=found.since_version,
    )


def only_float(node: Node, index: int, opsets: Mapping[str, int]) -> str | None:
    """The float type that an op takes as its operand `index`, if it takes exactly one."""
    known = schema(node.op, version_of(node.op, opsets))
    if known is None or not known.inputs:
        return None
    return known.inputs[min(index, len(known.inputs) - 1)].only_float


def _documented(name: str, version: int) -> str:
    """What our declaration says of an op whose schema has no documentation."""
    entries = [entry for entry in declared(name) if entry.since <= version]
    return inspect.cleandoc(entries[-1].doc) if entries else ""


_FLOATS = {
    "tensor(float16)": "f16",
    "tensor(bfloat16)": "bf16",
    "tensor(float)": "f32",
    "tensor(double)": "f64",
}


def _parameter(formal: Any) -> Parameter:
    option = formal.option.name
    tensor = all(kind.startswith("tensor(") for kind in formal.types)
    floats = [short for kind, short in _FLOATS.items() if kind in formal.types]
    only_float = floats[0] if len(floats) == 1 else None
    return Parameter(
        formal.name, formal.type_str, option == "Optional", option == "Variadic", tensor, only_float
    )


def _default(attribute: Any) -> Any:
    import onnx.helper

    if attribute.required:
        return REQUIRED
    if not attribute.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
    return value


def _own(name: str) -> Schema | None:
    versions = declared(name)
    if not versions or versions[-1].kernel is None:
        return None
    parameters = list(inspect.signature(versions[-1].kernel).parameters.values())[1:]
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = [
        p
        for p in parameters
        if p.kind is p.KEYWORD_ONLY and p.name not in ("out", "rng", "opset", "outputs_count")
    ]
    return Schema(
        name=name,
        inputs=tuple(Parameter(p.name, "T", p.default is None) for p in positional),
        outputs=(Parameter("output", "T"),),
        attributes={p.name: REQUIRED if p.default is p.empty else p.default for p in keywords},
        doc=inspect.cleandoc(versions[-1].doc),
    )


def complete(name: str, version: int, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a statement with the schema's defaults, as a kernel takes them.

    Tensors come as arrays.  Raises GraphError for a required attribute that is not given, for one
    that the op does not have, or of another type; an op without a schema keeps what it was given.
    """
    given = {key: value.array if isinstance(value, Inline) else value for key, value in attributes.items()}
    found = schema(name, version)
    if found is None:
        return given
    for error in attribute_errors(found, version, given):
        raise error
    return {**found.attributes, **given}


def attribute_errors(found: Schema, version: int, given: Mapping[str, Any]) -> Iterator[GraphError]:
    """Each attribute that the op does not have, that is of another type, or that is missing.

    `given` has tensors as arrays.
    """
    for key, value in given.items():
        if key not in found.attributes:
            known = ", ".join(found.attributes) or "none"
            message = f"{found.name} has no attribute {key!r} in opset {version}"
            hint = f"use these attributes: {known}"
            yield GraphError(message, hint=hint, attribute=key, code="attribute")
        elif (wrong := _wrong_kind(value, found.kinds.get(key, ""))) is not None:
            message = f"{found.name}: the attribute {key!r} is {_said(value)}, not {wrong}"
            yield GraphError(message, attribute=key, code="attribute")
    for key, default in found.attributes.items():
        if default is REQUIRED and key not in given:
            message = f"{found.name} needs the attribute {key!r}"
            yield GraphError(message, hint=f"write {key}=... in the call", code="attribute")


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "INT": ((int, np.integer), "an integer"),
    "FLOAT": ((int, float, np.number), "a number"),
    "STRING": ((str, bytes), "a text"),
    "TENSOR": ((np.ndarray, np.generic), "a tensor"),
}
"""ONNX's word for the type of an attribute to the types of its value, and how a person says it."""


def _wrong_kind(value: Any, kind: str) -> str | None:
    """What the schema expects, if an attribute is of another type."""
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
    """The opset version that holds for the op `name` in a program with these imports."""
    domain, _ = split(name)
    if domain == "nncdbg":
        return 1
    version = opsets.get(domain)
    if version is not None:
        return int(version)
    return newest_opset() if domain == DEFAULT_DOMAIN else _newest_of(domain) or 1
