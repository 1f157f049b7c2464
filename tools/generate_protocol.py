"""Writes the typed records of the Debug Adapter Protocol from its JSON schema.

`python tools/generate_protocol.py SCHEMA` writes `nncdbg/dap_server/protocol.py`; with `--check` it only
compares, and exits with 1 if the file differs. Only names, types and required fields are read, not the prose.
"""

from __future__ import annotations

import argparse
import json
import keyword
import re
import sys
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

FILE = Path(__file__).resolve().parent.parent / "nncdbg" / "dap_server" / "protocol.py"
WIDTH = 110
ENVELOPES = {"ProtocolMessage", "Request", "Response", "Event"}
# Sent by the adapter; the schema separates them from the client's requests only in prose.
REVERSE = {"runInTerminal", "startDebugging"}
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
ANYTHING = {*SCALARS, "array", "object"}


class UnknownShape(Exception):
    """A part of the schema without a Python type."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the protocol's records from its JSON schema.")
    parser.add_argument("schema", type=Path, help="debugAdapterProtocol.json")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file differs")
    options = parser.parse_args(arguments)
    try:
        text = module(json.loads(options.schema.read_text(encoding="utf-8"))["definitions"])
    except (OSError, ValueError, KeyError, UnknownShape) as error:
        print(f"cannot read {options.schema} as the protocol's schema: {error}", file=sys.stderr)
        return 2
    if options.check:
        stale = not FILE.is_file() or FILE.read_text(encoding="utf-8") != text
        if stale:
            print(f"{FILE} is stale: run python tools/generate_protocol.py SCHEMA", file=sys.stderr)
        return 1 if stale else 0
    FILE.write_text(text, encoding="utf-8")
    return 0


def module(definitions: dict[str, Schema]) -> str:
    """Return the text of the generated file."""
    shared = {name: definitions[name] for name in definitions if is_shared(name)}
    records = [declaration(name, shared[name]) for name in in_order(shared)]
    records += [record for name in requests_of(definitions) for record in request_records(name, definitions)]
    records.append(record("ErrorBody", own_part("ErrorResponse", definitions)["properties"]["body"]))
    bodies = ((name, body_of(name, definitions)) for name in events_of(definitions))
    records += [record(f"{name}Body", body) for name, body in bodies if body is not None]
    return "\n\n\n".join([HEADER, *records, tables(definitions)])


# Contents of the schema


def is_shared(name: str) -> bool:
    return name not in ENVELOPES and not name.endswith(("Request", "Response", "Event", "Arguments"))


def requests_of(definitions: dict[str, Schema]) -> list[str]:
    return [name for name in definitions if name.endswith("Request") and name not in ENVELOPES]


def events_of(definitions: dict[str, Schema]) -> list[str]:
    return [name for name in definitions if name.endswith("Event") and name not in ENVELOPES]


def own_part(name: str, definitions: dict[str, Schema]) -> Schema:
    """Return the part of a message beyond its envelope: the second half of its `allOf`."""
    _, part = definitions[name]["allOf"]
    return dict(part)


def wire_name(name: str, definitions: dict[str, Schema]) -> str:
    """Return the `command` or `event` string of a message."""
    properties = own_part(name, definitions)["properties"]
    (word,) = properties["command" if "command" in properties else "event"]["enum"]
    return str(word)


def arguments_name(request: str, definitions: dict[str, Schema]) -> str | None:
    arguments = own_part(request, definitions)["properties"].get("arguments")
    return None if arguments is None else referred(arguments)


def body_of(message: str, definitions: dict[str, Schema]) -> Schema | None:
    """Return the schema of the body of a response or event; None without a body."""
    body: Schema | None = own_part(message, definitions).get("properties", {}).get("body")
    return body


def body_name(request: str, definitions: dict[str, Schema]) -> str | None:
    """Return the record of a response's body: its own, or the shared one of the schema."""
    stem = request.removesuffix("Request")
    body = body_of(f"{stem}Response", definitions)
    if body is None:
        return None
    return referred(body) if "$ref" in body else f"{stem}Body"


def referred(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def references(schema: object) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to, at any depth."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield referred(schema)
        for part in schema.values():
            yield from references(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from references(part)


def in_order(definitions: dict[str, Schema]) -> Iterable[str]:
    """Return the names, each after those it refers to except itself.  A cycle is a `ValueError`."""
    needs = {name: [one for one in references(part) if one != name] for name, part in definitions.items()}
    return TopologicalSorter(needs).static_order()


# Python records


def python_type(schema: Schema) -> str:
    """Return the annotation of a value."""
    if "$ref" in schema:
        return referred(schema)
    kind = schema.get("type")
    if isinstance(kind, list):
        return "Any" if set(kind) == ANYTHING else " | ".join(SCALARS[one] for one in kind)
    if "enum" in schema:
        return f"Literal[{', '.join(quoted(schema['enum']))}]"
    if kind == "array":
        return f"list[{python_type(schema['items'])}]"
    if "oneOf" in schema or (kind == "object" and "properties" not in schema):
        values = schema.get("additionalProperties", True)
        return f"dict[str, {'Any' if values is True else python_type(values)}]"
    if kind in SCALARS:
        return SCALARS[kind]
    raise UnknownShape(json.dumps(schema))


def quoted(words: list[str]) -> list[str]:
    return [f'"{word}"' for word in words]


def wrapped(head: str, items: list[str], tail: str, indent: str = "") -> str:
    """Return head, items and tail on one line if it fits the width, else one item per line."""
    line = f"{indent}{head}{', '.join(items)}{tail}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{indent}{head}", *(f"{indent}    {item}," for item in items), f"{indent}{tail}"])


def declaration(name: str, schema: Schema) -> str:
    """Return a shared definition: a record, a record with a base, or an alias of a type."""
    if "allOf" in schema:
        base, part = schema["allOf"]
        return record(name, part, referred(base))
    if schema["type"] == "object":
        return record(name, schema)
    if "enum" in schema:
        return wrapped(f"{name}: TypeAlias = Literal[", quoted(schema["enum"]), "]")
    return f"{name}: TypeAlias = {python_type(schema)}"


def record(name: str, schema: Schema, base: str = "Record") -> str:
    required = schema.get("required", ())
    lines = [f"class {name}({base}, frozen=True, kw_only=True):"]
    for key, value in schema.get("properties", {}).items():
        lines.append(f"    {field(name, key, value, key in required)}")
    if len(lines) == 1:
        lines.append('    """No field of its own."""')
    return "\n".join(lines)


def field(owner: str, key: str, schema: Schema, required: bool) -> str:
    """Return one line of a record; a key that differs from the camel case of its field is spelled out."""
    annotation = python_type(schema)
    if not required and annotation != "Any":
        annotation = f"{annotation} | None"
    if owner in references(schema):
        annotation = f'"{annotation}"'
    name = snake_case(key)
    options = [] if required else ["default=None"]
    if camel_case(name) != key:
        options.append(f'name="{key}"')
        return f"{name}: {annotation} = field({', '.join(options)})"
    return f"{name}: {annotation}" if required else f"{name}: {annotation} = None"


def snake_case(key: str) -> str:
    """`clientID` to `client_id`, `supportsANSIStyling` to `supports_ansi_styling`, `__data` to `data`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key.strip("_")).lower()
    return f"{words}_" if keyword.iskeyword(words) else words


def camel_case(name: str) -> str:
    """Return the name that msgspec's `rename="camel"` gives a field."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def request_records(name: str, definitions: dict[str, Schema]) -> Iterator[str]:
    if arguments := arguments_name(name, definitions):
        yield record(arguments, definitions[arguments])
    stem = name.removesuffix("Request")
    body = body_of(f"{stem}Response", definitions)
    if body is not None and "$ref" not in body:
        yield record(f"{stem}Body", body)


# The file

HEADER = '''"""The Debug Adapter Protocol as typed records, and tables of its requests and events by name.

Generated by `python tools/generate_protocol.py SCHEMA`.
"""

from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import Struct, field


class Record(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An object of the protocol.  Omitted fields are left out on the wire, and unknown ones are ignored.

    Subclasses inherit `rename` and `omit_defaults`; they must repeat `kw_only`, and `frozen` for type
    checkers.
    """


class Exchange(NamedTuple):
    """A request: the record of its arguments, that of its response body, whether arguments are required."""

    arguments: type[Record] | None
    body: type[Record] | None
    arguments_required: bool'''


def tables(definitions: dict[str, Schema]) -> str:
    requests: list[str] = []
    reverse_requests: list[str] = []
    for name in requests_of(definitions):
        word = wire_name(name, definitions)
        records = [str(each(name, definitions)) for each in (arguments_name, body_name)]
        records.append(str("arguments" in own_part(name, definitions)["required"]))
        entry = wrapped(f'"{word}": Exchange(', records, "),", "    ")
        (reverse_requests if word in REVERSE else requests).append(entry)
    events = []
    for name in events_of(definitions):
        body = f"{name}Body" if body_of(name, definitions) else "None"
        events.append(f'    "{wire_name(name, definitions)}": {body},')
    return "\n".join(
        [
            *("REQUESTS: dict[str, Exchange] = {", *requests, "}"),
            *("", "REVERSE_REQUESTS: dict[str, Exchange] = {", *reverse_requests, "}"),
            *("", "EVENTS: dict[str, type[Record] | None] = {", *events, "}", ""),
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
