"""Signatures of the ops that onnxruntime adds to ONNX, from `schemas.json`; onnxruntime itself is not needed.

`tools/generate_schemas.py` writes that file.  The schemas are `onnx.defs.OpSchema`s like ONNX's own, but they
are not registered with `onnx`: its checker and its inference stay as they are.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

DOMAINS = frozenset({"com.microsoft", "com.microsoft.nchwc"})
"""The domains that belong to onnxruntime."""


@cache
def _entries() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """By domain and name, oldest version first."""
    text = files(__package__).joinpath("schemas.json").read_text(encoding="utf-8")
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in json.loads(text):
        found.setdefault((entry["domain"], entry["name"]), []).append(entry)
    return found


def added_schemas() -> list[tuple[str, str]]:
    """(domain, name) of every op that onnxruntime adds."""
    return sorted(_entries())


def added_versions(domain: str, name: str) -> tuple[int, ...]:
    """The versions of an op that onnxruntime adds, oldest first; empty for any other op."""
    return tuple(entry["since"] for entry in _entries().get((domain, name), ()))


@cache
def added_schema(domain: str, name: str, version: int) -> Any:
    """The `onnx.defs.OpSchema` of an op in `version` of its domain; None where onnxruntime adds none."""
    entries = [entry for entry in _entries().get((domain, name), ()) if entry["since"] <= version]
    return _schema(entries[-1]) if entries else None


def _schema(entry: dict[str, Any]) -> Any:
    from onnx.defs import OpSchema

    return OpSchema(
        entry["name"],
        entry["domain"],
        entry["since"],
        inputs=[_formal(*each) for each in entry["inputs"]],
        outputs=[_formal(*each) for each in entry["outputs"]],
        type_constraints=[(variable, types, "") for variable, types in entry["types"].items()],
        attributes=[_attribute(name, **said) for name, said in entry["attributes"].items()],
    )


def _formal(name: str, kind: str, option: str = "single") -> Any:
    from onnx.defs import OpSchema

    homogeneous = option != "heterogeneous"
    chosen = option.capitalize() if homogeneous else "Variadic"
    return OpSchema.FormalParameter(
        name,
        kind,
        param_option=getattr(OpSchema.FormalParameterOption, chosen),
        is_homogeneous=homogeneous,
    )


def _attribute(name: str, type: str, required: bool = False, default: Any = None) -> Any:
    from onnx import AttributeProto, helper
    from onnx.defs import OpSchema

    if default is None:
        return OpSchema.Attribute(name, getattr(OpSchema.AttrType, type), required=required)
    proto = helper.make_attribute(name, default, attr_type=AttributeProto.AttributeType.Value(type))
    return OpSchema.Attribute(name, proto)
