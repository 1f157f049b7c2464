"""Validation of messages of the Debug Adapter Protocol with its official JSON schema.

The schema allows unnamed properties.  Here they are refused, to find misspelt ones, unless they begin
with `nncdbg`.  Integers are limited to the width of their `format`.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator

from tests.conftest import ROOT

Schema = dict[str, Any]

PATH = Path(os.environ.get("NNCDBG_SHARED") or ROOT.parent / "shared") / "dap" / "debugAdapterProtocol.json"
OWN = "nncdbg"
# The schema allows these to have further properties, but says so only in prose.
OPEN = {"LaunchRequestArguments", "AttachRequestArguments"}
WIDTHS = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**53) + 1, 2**53 - 1),
    "uint64": (0, 2**53 - 1),
}


def available() -> bool:
    return PATH.is_file()


needs_schema = pytest.mark.skipif(
    not available(), reason=f"there is no {PATH}; NNCDBG_SHARED names the folder that has `dap/`"
)


def validate(message: dict[str, Any]) -> None:
    """Raise AssertionError with the JSON path of each error in a message."""
    name = definition_of(message)
    wrong = [f"  {error.json_path}: {error.message}" for error in validator(name).iter_errors(message)]
    assert not wrong, "\n".join([f"not a {name}:", *wrong])


def definition_of(message: dict[str, Any]) -> str:
    """Return the name of the definition of a message; own requests and events have a general one."""
    kind = message.get("type")
    assert kind in ("request", "response", "event"), f"$.type: {kind!r} is not a type of message"
    if kind == "response" and message.get("success") is False:
        return "ErrorResponse"
    key = "event" if kind == "event" else "command"
    word = message.get(key)
    assert isinstance(word, str), f"$.{key}: {word!r} is not a name"
    if word.startswith(OWN):
        return str(kind).title()
    name = f"{word[:1].upper()}{word[1:]}{kind.title()}"
    known = word[:1].islower() and name in definitions()
    assert known, f"$.{key}: {word!r} is not in the protocol"
    return name


@cache
def definitions() -> dict[str, Schema]:
    """Return the published definitions."""
    loaded: dict[str, Schema] = json.loads(PATH.read_text(encoding="utf-8"))["definitions"]
    return loaded


@cache
def closed_definitions() -> dict[str, Schema]:
    """Return the definitions without unnamed properties."""
    return {
        name: part if name in OPEN else closed(merged(part, definitions()))
        for name, part in definitions().items()
    }


@cache
def validator(name: str) -> Draft4Validator:
    return Draft4Validator({"$ref": f"#/definitions/{name}", "definitions": closed_definitions()})


def merged(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Merge an `allOf` into one object, as its closed parts would refuse each other's properties."""
    if "$ref" in schema:
        return merged(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "allOf" not in schema:
        return schema
    properties: Schema = {}
    required: list[str] = []
    for part in schema["allOf"]:
        whole = merged(part, definitions)
        properties.update(whole.get("properties", {}))
        required += [name for name in whole.get("required", ()) if name not in required]
    return {"type": "object", "properties": properties, "required": required}


def closed(schema: Any) -> Any:
    """Return a schema that allows only named properties, and integers of their width."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {key: closed(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        whole["additionalProperties"] = False
        whole["patternProperties"] = {f"^{OWN}": {}}
    if schema.get("type") == "integer" and schema.get("format") in WIDTHS:
        least, most = WIDTHS[schema["format"]]
        whole["minimum"] = max(least, schema.get("minimum", least))
        whole["maximum"] = min(most, schema.get("maximum", most))
    return whole
