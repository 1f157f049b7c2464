"""The ONNX documentation of an op, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nncdbg.engine.ops.schema import AttributeFormal, label, one_line, op_signature, schema, version_of

_LONGEST = 6000
"""Maximum number of characters of a document: those of Loop and Scan are several pages long."""


def attribute_markdown(op: str, key: str, opsets: Mapping[str, int]) -> str | None:
    """Return the documentation of one attribute; None if the op has no such attribute."""
    found = op_signature(op, version_of(op, opsets))
    attribute = found.attribute(key) if found is not None else None
    return f"{_attribute_line(attribute)}\n\nan attribute of `{op}`" if attribute is not None else None


def op_markdown(op: str, opsets: Mapping[str, int]) -> str | None:
    """Return the documentation of an op in the opset in use; None if there is none."""
    version = version_of(op, opsets)
    found, declared = op_signature(op, version), schema(op, version)
    if found is None or declared is None:
        return None
    parts = [
        f"```nnc\n{label(replace(found, attributes=()))}\n```",
        f"since opset {declared.since}; opset {version} is in use",
    ]
    if found.attributes:
        attributes = sorted(found.attributes, key=lambda attribute: attribute.name)
        lines = (f"- {_attribute_line(attribute)}" for attribute in attributes)
        parts.append("**Attributes**\n\n" + "\n".join(lines))
    if found.doc:
        doc = found.doc if len(found.doc) <= _LONGEST else found.doc[:_LONGEST].rsplit("\n", 1)[0] + "\n…"
        parts.append("---\n" + doc)
    return "\n\n".join(parts)


def _attribute_line(attribute: AttributeFormal) -> str:
    """Return the line of one attribute: its kind, default and meaning."""
    default = f"default `{attribute.default}`" if attribute.default is not None else ""
    facts = ", ".join(
        fact for fact in (attribute.kind, "required" if attribute.required else default) if fact
    )
    words = one_line(attribute.doc)
    return f"`{attribute.name}`" + (f" ({facts})" if facts else "") + (f": {words}" if words else "")
