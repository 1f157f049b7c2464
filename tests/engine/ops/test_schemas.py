"""Schema providers: a fictitious domain beside those of ONNX and onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pytest

import nncdbg
from nncdbg.engine.ops import schema as schemas
from nncdbg.engine.ops.schema import REQUIRED, Formal, Schema, label, op_signature, register_schemas
from nncdbg.terminal.main import main

DOMAIN = "org.example.sound"
NAME = f"{DOMAIN}.Echo"


class SoundSchemas:
    source = "soundlib 2.1"

    def schema(self, name: str, version: int) -> Schema | None:
        if name != NAME:
            return None
        signal = Formal("signal", "T", dtypes=frozenset({"f32"}), doc="samples over time")
        return Schema(
            name,
            (signal,),
            (Formal("output", "T"),),
            {"delay": REQUIRED, "gain": 0.5},
            {"delay": "INT", "gain": "FLOAT"},
            {"delay": "in samples"},
            "The signal plus its echo.",
            since=2,
        )

    def versions(self, name: str) -> tuple[int, ...]:
        return (2,) if name == NAME else ()

    def names(self, domain: str) -> Iterable[str]:
        return [NAME]

    def newest(self, domain: str) -> int | None:
        return 3


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(schemas, "_PROVIDERS", dict(schemas._PROVIDERS))
    register_schemas(SoundSchemas(), DOMAIN)
    yield
    monkeypatch.undo()
    for cached in (schemas.schema, schemas._newest, op_signature):
        cached.cache_clear()


def program(call: str, version: int = 3) -> nncdbg.Program:
    header = f"opset 17\nopset {DOMAIN} {version}\n"
    return nncdbg.parse(header + f"graph @main(%x: f32[8]) -> (%y) {{\n  %y = {call}\n  return %y\n}}\n")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (f"{NAME}(%x)", f"{NAME} needs the attribute 'delay'"),
        (f"{NAME}(%x, %x, delay=2)", f"{NAME} takes 1 operand, not 2"),
        (f"{NAME}(%x, delay=0.5)", f"{NAME}: the attribute 'delay' is 0.5, not an integer"),
    ],
)
def test_a_statement_is_checked_against_the_schema(call: str, message: str) -> None:
    nncdbg.op(NAME)(lambda xp, signal, *, delay, gain: signal)
    with pytest.raises(nncdbg.GraphError) as caught:
        nncdbg.Debugger(program(call))
    assert caught.value.message == message


def test_an_unknown_version_names_the_library_of_the_provider() -> None:
    with pytest.raises(nncdbg.GraphError) as caught:
        nncdbg.Debugger(program(f"{NAME}(%x, delay=1)", version=4))
    assert caught.value.message == f"opset 4 of {DOMAIN} is unknown: nncdbg supports versions 1 to 3"
    assert caught.value.hint == "upgrade soundlib 2.1, or export the model for an older opset"


def test_the_editor_and_the_list_of_ops_show_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    signature = op_signature(NAME, 3)
    assert signature is not None
    assert label(signature) == f"{NAME}(signal: T, delay: INT, gain=0.5) -> (output: T)"
    assert main(["ops", NAME, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["since"] == [2]
    assert shown["attributes"]["delay"] == {"required": True, "default": None}
    assert NAME in schemas.schema_names([DOMAIN])
    assert schemas.versions_of(NAME) == (2,)


def test_other_domains_keep_their_providers() -> None:
    assert schemas.schema("Relu", 17) is not None
    assert schemas.schema("com.microsoft.FusedMatMul", 1) is not None
    assert schemas.schema("org.unknown.Relu", 1) is None
