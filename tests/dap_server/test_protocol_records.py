"""Protocol records: generated from the schema, and equal to it in encoded form."""

from __future__ import annotations

import ast
import json
import re
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nncdbg.dap_server import protocol
from nncdbg.dap_server.protocol import EVENTS, REQUESTS, REVERSE_REQUESTS, Record
from tests.dap_server import schema
from tests.dap_server.schema import needs_schema
from tools import generate_protocol

Schema = dict[str, Any]

RECORDS: dict[str, type[Record]] = {
    name: item
    for name, item in vars(protocol).items()
    if isinstance(item, type) and issubclass(item, Record) and item is not Record
}
WRONG: dict[str, Any] = {"string": 1, "integer": "1", "number": "1", "boolean": 1, "array": {}, "object": []}


def definition(record: str) -> Schema:
    """Return the schema of a record, found by its name."""
    definitions = schema.definitions()
    for pattern, kind in ((r"(\w+Event)Body", ""), (r"(\w+)Body", "Response")):
        if message := re.fullmatch(pattern, record):
            body: Schema = definitions[message[1] + kind]["allOf"][1]["properties"]["body"]
            return body
    return schema.merged(definitions[record], definitions)


def sample(part: Any, above: tuple[str, ...] = ()) -> Any:
    """Return a value of a schema with every property; a list has one element, or none if it would recur."""
    if part is True or "oneOf" in part:
        return {"any": [1, None]}
    if "$ref" in part:
        name = referred(part)
        return sample(schema.definitions()[name], (*above, name))
    kind = part.get("type", "object")
    if isinstance(kind, list):
        return sample(True) if "object" in kind else sample({"type": kind[0]})
    if kind == "array":
        return [] if referred(part["items"]) in above else [sample(part["items"], above)]
    if kind == "object":
        whole = schema.merged(part, schema.definitions())
        items = whole.get("properties") or {"key": whole["additionalProperties"]}
        return {key: sample(value, above) for key, value in items.items()}
    plain = {"string": "text", "integer": 7, "number": 2.5, "boolean": False}
    return part["enum"][-1] if "enum" in part else plain[kind]


def referred(part: Schema) -> str:
    return str(part.get("$ref", "")).rpartition("/")[2]


def full(record: str) -> Schema:
    """Return an object with every property of a record."""
    return {key: sample(part, (record,)) for key, part in definition(record).get("properties", {}).items()}


@needs_schema
def test_the_files_match_the_generator() -> None:
    assert generate_protocol.main([str(schema.PATH), "--check"]) == 0


@needs_schema
def test_a_stale_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate_protocol, "FILE", tmp_path / "protocol.py")
    assert generate_protocol.main([str(schema.PATH)]) == 0
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"protocol.py"}
    (tmp_path / "protocol.py").write_text("stale\n", encoding="utf-8")
    assert generate_protocol.main([str(schema.PATH), "--check"]) == 1
    assert re.findall(r"(\w+\.py) is stale", capsys.readouterr().err) == ["protocol.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("{}", "definitions"),
        ('{"definitions": {"A": {"type": "object", "properties": {"b": {"type": "blob"}}}}}', "blob"),
        (
            '{"definitions": {"A": {"allOf": [{"$ref": "#/definitions/B"}, {}]},'
            ' "B": {"allOf": [{"$ref": "#/definitions/A"}, {}]}}}',
            "cycle",
        ),
    ],
)
def test_an_invalid_schema_is_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    assert generate_protocol.main([str(path), "--check"]) == 2
    assert message in capsys.readouterr().err


@needs_schema
def test_every_definition_has_its_record() -> None:
    """The records are types, arguments and inline bodies, and nothing else."""
    wanted = set()
    for name, part in schema.definitions().items():
        if name in ("ProtocolMessage", "Request", "Response", "Event") or name.endswith("Request"):
            continue
        if name.endswith(("Response", "Event")):
            body = part["allOf"][1].get("properties", {}).get("body", {})
            if "properties" in body:
                wanted.add(f"{name.removesuffix('Response')}Body")
        elif part.get("type") != "string":
            wanted.add(name)
    assert set(RECORDS) == wanted


@needs_schema
@pytest.mark.parametrize("name", sorted(RECORDS))
def test_encoded_names_and_required_fields_match_the_schema(name: str) -> None:
    part = definition(name)
    fields = msgspec.structs.fields(RECORDS[name])
    assert [field.encode_name for field in fields] == list(part.get("properties", {}))
    assert {field.encode_name for field in fields if field.required} == set(part.get("required", ()))
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", field.name) for field in fields)


@needs_schema
@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_full_object_round_trips(name: str) -> None:
    whole = full(name)
    text = msgspec.json.encode(whole)
    record = msgspec.json.decode(text, type=RECORDS[name])
    assert json.loads(msgspec.json.encode(record)) == whole
    assert msgspec.convert(whole, RECORDS[name]) == record


@needs_schema
@pytest.mark.parametrize("name", sorted(RECORDS))
def test_optional_fields_are_omitted_and_missing_required_ones_are_refused(name: str) -> None:
    part = definition(name)
    required = part.get("required", [])
    least = {key: value for key, value in full(name).items() if key in required}
    record = msgspec.convert(least, RECORDS[name])
    written = json.loads(msgspec.json.encode(record))
    assert list(written) == [key for key in part.get("properties", {}) if key in least]
    for key in required:
        with pytest.raises(msgspec.ValidationError, match=f"missing required field `{key}`"):
            msgspec.convert({other: least[other] for other in required if other != key}, RECORDS[name])


@needs_schema
@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_value_of_another_type_is_refused_with_its_path(name: str) -> None:
    part = definition(name)
    whole = full(name)
    for key, value in part.get("properties", {}).items():
        target = schema.merged(value, schema.definitions())
        kind = target.get("type", "object")
        if isinstance(kind, list) and "object" in kind:
            continue  # any JSON value is valid
        wrong = [[]] if isinstance(kind, list) else [WRONG[kind]]
        if "enum" in target:
            wrong.append("no such word")
        for other in wrong:
            with pytest.raises(msgspec.ValidationError, match=rf"`\$\.{key}`"):
                msgspec.convert({**whole, key: other}, RECORDS[name])


@needs_schema
def test_tables_name_every_request_and_event() -> None:
    definitions = schema.definitions()
    for word, exchange in {**REQUESTS, **REVERSE_REQUESTS}.items():
        name = word[0].upper() + word[1:]
        request = definitions[f"{name}Request"]["allOf"][1]
        arguments = request["properties"].get("arguments")
        assert exchange.arguments is (RECORDS[arguments["$ref"].rpartition("/")[2]] if arguments else None)
        assert exchange.arguments_required == ("arguments" in request["required"])
        body = definitions[f"{name}Response"]["allOf"][1].get("properties", {}).get("body")
        reference = (body or {}).get("$ref", f"/{name}Body").rpartition("/")[2]
        assert exchange.body is (RECORDS[reference] if body else None)
    for word, record in EVENTS.items():
        name = f"{word[0].upper()}{word[1:]}Event"
        has_body = "body" in definitions[name]["allOf"][1]["properties"]
        assert record is (RECORDS[f"{name}Body"] if has_body else None)
    assert (len(REQUESTS), len(REVERSE_REQUESTS), len(EVENTS)) == (43, 2, 17)


def test_prose_of_the_schema_is_not_copied() -> None:
    """The generated file has no comment, and no prose except the docstrings of the generator's own text."""
    text = Path(str(protocol.__file__)).read_text(encoding="utf-8")
    assert "#" not in text
    constants = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    prose = {cleandoc(one) for one in constants if isinstance(one, str) and re.search(r"\w \w", one)}
    own = (protocol.__doc__, Record.__doc__, protocol.Exchange.__doc__, "No field of its own.")
    # Python 3.13 removes the indentation of docstrings.
    assert prose <= {cleandoc(one) for one in own if one is not None}


DECODING = [
    (
        "setBreakpoints",
        {"source": {"path": "a.nnc"}, "breakpoints": [{"line": 1}, {"line": "2"}]},
        "Expected `int`, got `str` - at `$.breakpoints[1].line`",
    ),
    (
        "setBreakpoints",
        {"source": {"sources": [{"sources": [{"name": 3}]}]}},
        "Expected `str | null`, got `int` - at `$.source.sources[0].sources[0].name`",
    ),
    (
        "setBreakpoints",
        {"breakpoints": []},
        "Object missing required field `source`",
    ),
    (
        "setFunctionBreakpoints",
        {"breakpoints": [{"condition": "x"}]},
        "Object missing required field `name` - at `$.breakpoints[0]`",
    ),
    (
        "next",
        {"threadId": 1, "granularity": "word"},
        "Invalid enum value 'word' - at `$.granularity`",
    ),
    (
        "stackTrace",
        {"threadId": 1, "format": {"hex": 1}},
        "Expected `bool | null`, got `int` - at `$.format.hex`",
    ),
]


@pytest.mark.parametrize(("command", "arguments", "message"), DECODING)
def test_errors_of_decoding_name_the_path(command: str, arguments: Schema, message: str) -> None:
    record = REQUESTS[command].arguments
    assert record is not None
    with pytest.raises(msgspec.ValidationError, match=re.escape(message)):
        msgspec.json.decode(json.dumps(arguments), type=record)


def test_unknown_fields_and_nulls_are_accepted() -> None:
    """A newer client sends more fields than this schema; some clients send null for omitted fields."""
    arguments = {"adapterID": "nncdbg", "clientID": "vscode", "locale": None, "supportsTimeTravel": True}
    record = msgspec.convert(arguments, protocol.InitializeRequestArguments)
    assert record == protocol.InitializeRequestArguments(adapter_id="nncdbg", client_id="vscode")


def test_an_open_enumeration_accepts_new_words() -> None:
    assert protocol.StoppedEventBody(reason="goal reached").reason == "goal reached"
    assert msgspec.convert({"reason": "goal reached"}, protocol.StoppedEventBody).reason == "goal reached"


def test_null_is_written_where_the_schema_requires_it() -> None:
    body = protocol.DataBreakpointInfoBody(data_id=None, description="constant")
    assert msgspec.json.encode(body) == b'{"dataId":null,"description":"constant"}'
