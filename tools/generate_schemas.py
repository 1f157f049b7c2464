"""Writes the signatures of the ops that onnxruntime adds to ONNX, from the installed onnxruntime.

`python tools/generate_schemas.py` writes `nncdbg/engine/ops/microsoft/schemas.json`; with `--check` it only
compares, and exits 1 if the file differs. Names, types, defaults and arities are taken; the prose is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "nncdbg" / "engine" / "ops" / "microsoft" / "schemas.json"
DOMAINS = ("com.microsoft", "com.microsoft.nchwc")

Entry = dict[str, Any]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the signatures of onnxruntime's own ops.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file differs")
    options = parser.parse_args(arguments)
    text = written(entries())
    if options.check:
        stale = not FILE.is_file() or FILE.read_text(encoding="utf-8") != text
        if stale:
            print(f"{FILE} is stale: run python tools/generate_schemas.py", file=sys.stderr)
        return int(stale)
    FILE.write_text(text, encoding="utf-8")
    return 0


def entries() -> list[Entry]:
    """Return the ops of onnxruntime's domains, and its additions to ONNX's domain with a CPU kernel."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    on_cpu = {
        kernel.op_name
        for kernel in native.get_all_opkernel_def()
        if kernel.domain == "" and kernel.provider == "CPUExecutionProvider"
    }
    found = native.get_all_operator_schema()
    chosen = [
        schema
        for schema in found
        if schema.domain in DOMAINS
        or (schema.domain == "" and schema.name in on_cpu and not in_onnx(schema.name, schema.since_version))
    ]
    return [entry(each) for each in sorted(chosen, key=lambda s: (s.domain, s.name, s.since_version))]


def in_onnx(name: str, version: int) -> bool:
    import onnx.defs

    try:
        onnx.defs.get_schema(name, version, "")
    except onnx.defs.SchemaError:
        # Removed ops of ONNX are in the history; they are not additions of onnxruntime.
        history = onnx.defs.get_all_schemas_with_history()
        return any(s.name == name and s.domain == "" and s.since_version <= version for s in history)
    return True


def entry(schema: Any) -> Entry:
    return {
        "name": schema.name,
        "domain": schema.domain,
        "since": schema.since_version,
        "inputs": [formal(each) for each in schema.inputs],
        "outputs": [formal(each) for each in schema.outputs],
        "attributes": {name: attribute(each) for name, each in sorted(schema.attributes.items())},
        "types": {each.type_param_str: list(each.allowed_type_strs) for each in schema.type_constraints},
    }


def formal(parameter: Any) -> list[Any]:
    """Return [name, type] of a required parameter, or [name, type, option]."""
    option = str(parameter.option).rpartition(".")[2].lower()
    if option == "variadic" and not parameter.isHomogeneous:
        option = "heterogeneous"
    return [parameter.name, parameter.typeStr, *([] if option == "single" else [option])]


def attribute(found: Any) -> Entry:
    """Return the type of an attribute, with `default` or `required` if it has one."""
    from onnx import AttributeProto, helper

    said: Entry = {"type": str(found.type).rpartition(".")[2]}
    if found.required:
        said["required"] = True
    proto = AttributeProto.FromString(found._default_value or b"")
    if proto.type:
        value = helper.get_attribute_value(proto)
        said["default"] = value.decode() if isinstance(value, bytes) else value
    return said


def written(ops: list[Entry]) -> str:
    """Return one op per line, so that a changed op is one changed line."""
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in ops)
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
