"""What ONNX says of an op, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from nncdbg.engine.ops.schema import REQUIRED, Parameter, Schema, schema, split, version_of

_LONGEST = 6000
"""Characters of a document: those of Loop and Scan go on for pages."""


@lru_cache(maxsize=512)
def _attribute_words(name: str, version: int) -> dict[str, str]:
    """A sentence for each attribute of an op of ONNX; the engine's schema leaves them out."""
    import onnx.defs

    domain, local = split(name)
    try:
        found = onnx.defs.get_schema(local, version, domain)
    except onnx.defs.SchemaError:
        return {}
    return {key: _one_line(attribute.description or "") for key, attribute in found.attributes.items()}


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def signature(found: Schema) -> str:
    """``Conv(X: T, W: T, B?: T) -> (Y: T)``."""
    inputs = ", ".join(map(_parameter, found.inputs))
    outputs = ", ".join(map(_parameter, found.outputs))
    return f"{found.name}({inputs}) -> ({outputs})"


def _parameter(parameter: Parameter) -> str:
    mark = "..." if parameter.variadic else "?" if parameter.optional else ""
    return f"{parameter.name}{mark}: {parameter.type}"


def default_text(default: Any) -> str:
    """The default of an attribute as the text of a program would have it; nothing where there is none."""
    if default is REQUIRED:
        return "required"
    if default is None:
        return ""
    if isinstance(default, str):
        return f'"{default}"'
    if isinstance(default, (list, tuple)):
        return f"[{','.join(map(default_text, default))}]"
    return repr(default)


def attribute_line(found: Schema, key: str, version: int) -> str:
    """One attribute: its kind, its default, what it means."""
    kind = found.kinds.get(key, "")
    default = default_text(found.attributes[key])
    if default and default != "required":
        default = f"default `{default}`"
    facts = ", ".join(fact for fact in (kind, default) if fact)
    words = _attribute_words(found.name, version).get(key, "")
    return f"`{key}`" + (f" ({facts})" if facts else "") + (f": {words}" if words else "")


def attribute_markdown(op: str, key: str, opsets: Mapping[str, int]) -> str | None:
    """The documentation of one attribute; None if the op has none of that name."""
    version = version_of(op, opsets)
    found = schema(op, version)
    if found is None or key not in found.attributes:
        return None
    return f"{attribute_line(found, key, version)}\n\nan attribute of `{op}`"


def op_markdown(op: str, opsets: Mapping[str, int]) -> str | None:
    """The documentation of an op in the opset that holds; None if nobody has one."""
    version = version_of(op, opsets)
    found = schema(op, version)
    if found is None:
        return None
    parts = [f"```nnc\n{signature(found)}\n```", f"since opset {found.since}; opset {version} is in use"]
    if found.attributes:
        lines = (f"- {attribute_line(found, key, version)}" for key in sorted(found.attributes))
        parts.append("**Attributes**\n\n" + "\n".join(lines))
    if found.doc:
        doc = found.doc if len(found.doc) <= _LONGEST else found.doc[:_LONGEST].rsplit("\n", 1)[0] + "\n…"
        parts.append("---\n" + doc)
    return "\n\n".join(parts)
