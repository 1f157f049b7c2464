"""The debug configurations in the extension's manifest, from the arguments of `launch` and `attach`."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec

from nncdbg.dap_server.attach.relay import AttachArguments
from nncdbg.opening.configuration import RunConfiguration, Setting, settings

MANIFEST = Path(__file__).resolve().parent.parent / "vscode-extension" / "package.json"

_TYPES = {bool: "boolean", dict: "object", int: "integer", list: "array", str: "string"}

_DEFAULTS = {"allocator": "debug", "folder": "${workspaceFolder}", "program": "${file}"}
"""Defaults in an editor that differ from those of the record."""


def manifest() -> str:
    """Return the text of the manifest with generated keys of the run configuration."""
    document = json.loads(MANIFEST.read_text(encoding="utf-8"))
    attributes = document["contributes"]["debuggers"][0]["configurationAttributes"]
    launch, attach = attributes["launch"], attributes["attach"]
    hints = get_type_hints(RunConfiguration)
    for name, (_, setting) in settings().items():
        launch["properties"][setting.key or name] = _property(name, setting, hints[name])
    attach["properties"]["ranks"] = _attach_property("ranks")
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _attach_property(name: str) -> dict[str, Any]:
    """Return the JSON schema of an argument of `attach`."""
    _, schemas = msgspec.json.schema_components([AttachArguments])
    schema = schemas["AttachArguments"]["properties"][name]
    return {
        "type": [each["type"] for each in schema["anyOf"]],
        "description": schema["description"],
        "default": schema["default"],
    }


def _property(name: str, setting: Setting, hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a key."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    if hasattr(hint, "__origin__"):
        kinds = [hint.__origin__]
    types = [_TYPES[kind] for kind in kinds]
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    if schema["type"] == "array":
        schema["items"] = {"type": "string"}
    if setting.extensible:
        # Editors suggest the words of the list, and accept others without a warning.
        schema = {"anyOf": [{"enum": [*setting.values]}, schema]}
    elif setting.values:
        schema["enum"] = [*setting.values]
    schema["description"] = setting.description or f"{setting.help[0].upper()}{setting.help[1:]}."
    default = _DEFAULTS.get(name, getattr(RunConfiguration(), name))
    return schema if default is None else {**schema, "default": default}
