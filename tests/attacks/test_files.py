"""Attacks by files of all other formats: one error with the right exit code, and nothing read outside.

Attacks by journals are in `test_journals.py`, those by `.pt2` files in `test_exported_programs.py`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from nncdbg.opening.schedule_logs import reading
from tests.attacks.conftest import MARKER

Command = Callable[..., tuple[int, str, str]]
Attack = Callable[[], Any]

SMALL = """#nncdbg 1
opset 18

graph @main(%x: f32[2,3]) -> (%y: f32[2,3]) {
  %y = Relu(%x)
  return %y
}
"""
STATES = SMALL.replace("graph @main", "state %s: f32[] = 1.0\n\ngraph @main", 1)
DEEP, DIGITS = "[" * 100_000, "9" * 100_000
PIPE, DAMAGED = "not a regular file", "damaged"


class Opens:
    """Creates the marker when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (MARKER, "w")


def text(name: str, content: str | bytes) -> Attack:
    def make() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def pipe(name: str) -> Attack:
    return lambda: os.mkfifo(name)


def linked(name: str, to: str) -> Attack:
    return lambda: os.symlink(to, name)


def both(*attacks: Attack) -> Attack:
    return lambda: [attack() for attack in attacks]


def onnx_model(nodes: Any = None, functions: Any = (), **fields: Any) -> onnx.ModelProto:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    nodes = nodes or [helper.make_node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "main", value[:1], value[1:], **fields)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))


def saved(model: onnx.ModelProto) -> Attack:
    return text("m.onnx", model.SerializeToString())


def external(**entries: str) -> Attack:
    """Return a model with a weight f32[2,3] in another file."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=1)
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    return saved(onnx_model([helper.make_node("Add", ["x", "w"], ["y"])], initializer=[weight]))


def function(name: str, *called: str) -> Any:
    nodes = [helper.make_node(each, ["a"], ["b"], domain="d") for each in called]
    return helper.make_function("d", name, ["a"], ["b"], nodes, [helper.make_opsetid("d", 1)])


def calling(*functions: Any) -> Attack:
    return saved(onnx_model([helper.make_node("F0", ["x"], ["y"], domain="d")], functions))


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message with bytes."""
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def deep_branches(depth: int) -> Attack:
    """Return a model whose graph is nested in an attribute of a node of a graph, and so on."""
    graph = b""
    for _ in range(depth):
        graph = field(1, field(4, b"If") + field(5, field(6, graph)))
    return text("m.onnx", b"\x08\x0a" + field(8, b"\x10\x12") + field(7, graph))


def huge(*sizes: int) -> Attack:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=sizes, raw_data=b"1234")
    return saved(onnx_model([helper.make_node("Add", ["x", "w"], ["y"])], initializer=[weight]))


def graph_text(store: str) -> str:
    data = '  %w: f32[2,3] = data("w")\n  %y = Add(%x, %w)'
    return SMALL.replace("opset 18\n", f'opset 18\nstore "{store}"\n').replace("  %y = Relu(%x)", data)


def npy(header: str, data: bytes = b"") -> bytes:
    encoded = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(encoded)) + encoded + data


def npz(member: str, content: bytes, **options: Any) -> Attack:
    def make() -> None:
        with zipfile.ZipFile("x.npz", "w", **options) as file:
            file.writestr(member, content)

    return make


def array_bytes(array: Any) -> bytes:
    data = io.BytesIO()
    np.save(data, array, allow_pickle=True)
    return data.getvalue()


def tensors(header: str | bytes, size: int | None = None, data: bytes = bytes(24)) -> Attack:
    encoded = header if isinstance(header, bytes) else header.encode()
    length = struct.pack("<Q", len(encoded) if size is None else size)
    return both(text("w.safetensors", length + encoded + data), text("m.nnc", graph_text("w.safetensors")))


def entry(**fields: Any) -> str:
    return json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **fields}})


SHAPE = "{{'descr': '<f4', 'fortran_order': False, 'shape': {}}}"
PRINT, RUN = ["print", "m.onnx"], ["run", "m.onnx"]
TEXT, GIVEN = ["run", "m.nnc"], ["run", "m.nnc", "--input", "x=x.npy"]
ZIPPED = ["run", "m.nnc", "--input", "x=x.npz:x"]
HERE = both(text("m.nnc", SMALL), lambda: np.savez("g.npz", y=np.zeros((2, 3), np.float32)))

ATTACKS: dict[str, tuple[Attack, list[str], int, str]] = {
    # ONNX
    "onnx: external data above the folder": (external(location="../../etc/passwd"), RUN, 3, "outside"),
    "onnx: external data with an absolute path": (external(location="/etc/passwd"), RUN, 3, "outside"),
    "onnx: external data through a link": (
        both(linked("w.bin", "/etc/passwd"), external(location="w.bin")),
        RUN,
        3,
        "outside",
    ),
    "onnx: external data in a pipe": (both(pipe("w.bin"), external(location="w.bin")), RUN, 3, "not a file"),
    "onnx: external data in a folder": (external(location="."), RUN, 3, "error: "),
    "onnx: null byte in a path": (external(location="a\0b"), RUN, 3, "error: "),
    "onnx: huge offset": (
        both(text("w.bin", bytes(24)), external(location="w.bin", offset=str(2**62))),
        RUN,
        3,
        "error: ",
    ),
    "onnx: offset of 100,000 digits": (
        both(text("w.bin", bytes(24)), external(location="w.bin", offset=DIGITS)),
        RUN,
        3,
        "has invalid external data",
    ),
    "onnx: negative length": (
        both(text("w.bin", bytes(24)), external(location="w.bin", length="-8")),
        RUN,
        3,
        "has invalid external data",
    ),
    "onnx: function that calls itself": (calling(function("F0", "F0")), RUN, 3, "error: "),
    "onnx: functions that call each other": (
        calling(function("F0", "F1"), function("F1", "F0")),
        RUN,
        3,
        "error: ",
    ),
    "onnx: functions that double 60 times": (
        calling(*(function(f"F{n}", f"F{n + 1}") for n in range(60)), function("F60", "Relu")),
        PRINT,
        0,
        "",
    ),
    "onnx: branches nested 200 deep": (deep_branches(200), RUN, 3, "error: "),
    "onnx: weight of 2^62 elements": (huge(2**31, 2**31), RUN, 3, "error: "),
    "onnx: weight with a negative size": (huge(-1, 3), RUN, 3, "error: "),
    "onnx: pipe": (pipe("m.onnx"), RUN, 3, PIPE),
    "onnx: device": (linked("m.onnx", "/dev/zero"), RUN, 3, "error: "),
    "onnx: pickle": (text("m.onnx", b"\x80\x02c__builtin__\neval\n"), RUN, 3, "pickle"),
    "onnx: repeated bytes": (text("m.onnx", b"\x0a\xff\xff\xff\xff\x0f" * 9), RUN, 3, "error: "),
    # graph text
    "text: store above the folder": (text("m.nnc", graph_text("../w.safetensors")), TEXT, 3, "outside"),
    "text: store with an absolute path": (text("m.nnc", graph_text("/etc/passwd")), TEXT, 3, "outside"),
    "text: store through a link": (
        both(linked("w.safetensors", "/etc/passwd"), text("m.nnc", graph_text("w.safetensors"))),
        TEXT,
        3,
        "outside",
    ),
    "text: store in a pipe": (
        both(pipe("w.safetensors"), text("m.nnc", graph_text("w.safetensors"))),
        TEXT,
        3,
        PIPE,
    ),
    "text: store with a null byte": (text("m.nnc", graph_text("a\\0b.onnx")), TEXT, 3, "error: "),
    "text: pipe": (pipe("m.nnc"), TEXT, 3, PIPE),
    "text: no UTF-8": (text("m.nnc", b"#nncdbg 1\n\xff\xfe"), TEXT, 3, "not UTF-8"),
    "text: operator that reads a file": (
        text("m.nnc", SMALL.replace("Relu(%x)", 'aten.from_file.default(filename="OWNED", shared=true)')),
        [*TEXT, "--backend", "torch"],
        3,
        "opens a file",
    ),
    "text: states in /dev/zero": (
        both(text("m.nnc", STATES), linked("s.safetensors", "/dev/zero")),
        [*TEXT, "--states", "s.safetensors"],
        3,
        PIPE,
    ),
    # NumPy
    "npy: pickle": (both(HERE, text("x.npy", array_bytes(np.array([Opens()], object)))), GIVEN, 3, "pickle"),
    "npy: code in the header": (
        both(HERE, text("x.npy", npy(f"open('{MARKER}', 'w')"))),
        GIVEN,
        3,
        "x.npy",
    ),
    "npy: deep header": (both(HERE, text("x.npy", npy("(" * 9000))), GIVEN, 3, "x.npy"),
    "npy: long header": (both(HERE, text("x.npy", npy(" " * 10**6))), GIVEN, 3, "x.npy"),
    "npy: shape of 2^62": (both(HERE, text("x.npy", npy(SHAPE.format("(2**62,)")))), GIVEN, 3, "x.npy"),
    "npy: huge shape": (
        both(HERE, text("x.npy", npy(SHAPE.format(f"({2**62}, 4)"), bytes(24)))),
        GIVEN,
        3,
        "x.npy",
    ),
    "npy: size of 4,000 digits": (
        both(HERE, text("x.npy", npy(SHAPE.format(f"({DIGITS[:4000]},)"), bytes(24)))),
        GIVEN,
        3,
        "x.npy",
    ),
    "npy: negative shape": (both(HERE, text("x.npy", npy(SHAPE.format("(-2, 3)")))), GIVEN, 3, "x.npy"),
    "npy: pipe": (both(HERE, pipe("x.npy")), GIVEN, 3, "x.npy"),
    "npz: pickle": (both(HERE, npz("x.npy", array_bytes(np.array([Opens()], object)))), ZIPPED, 3, "x.npz"),
    "npz: bomb": (
        both(
            HERE,
            npz("x.npy", npy(SHAPE.format("(9999999,)"), bytes(4 * 10**7)), compression=zipfile.ZIP_DEFLATED),
        ),
        ZIPPED,
        2,
        "x",
    ),
    "npz: path outside": (both(HERE, npz(f"../{MARKER}.npy", b"x")), ZIPPED, 2, "x.npz"),
    "npz: no archive": (both(HERE, text("x.npz", b"PK\x03\x04")), ZIPPED, 3, "x.npz"),
    "npz: pipe": (both(HERE, pipe("x.npz")), ZIPPED, 3, "x.npz"),
    "npz: golden values in a pipe": (
        both(text("m.nnc", SMALL), pipe("g.npz")),
        ["diff", "m.nnc", "--golden", "g.npz"],
        3,
        "g.npz",
    ),
    # safetensors
    "safetensors: header of 2^63 bytes": (tensors("{}", 2**63), TEXT, 3, "w.safetensors"),
    "safetensors: header longer than the file": (tensors("{}", 10**6), TEXT, 3, "w.safetensors"),
    "safetensors: deep header": (tensors(DEEP), TEXT, 3, "w.safetensors"),
    "safetensors: header is a list": (tensors("[1]"), TEXT, 3, "w.safetensors"),
    "safetensors: entry is a number": (tensors('{"w": 3}'), TEXT, 3, "w"),
    "safetensors: no UTF-8": (tensors(b'{"\xff": 1}'), TEXT, 3, "w.safetensors"),
    "safetensors: offsets outside": (tensors(entry(data_offsets=[0, 2**62])), TEXT, 3, "w"),
    "safetensors: offsets reversed": (tensors(entry(data_offsets=[24, 0])), TEXT, 3, "w"),
    "safetensors: negative offsets": (tensors(entry(data_offsets=[-24, 0])), TEXT, 3, "w"),
    "safetensors: offsets are texts": (tensors(entry(data_offsets=["0", "24"])), TEXT, 3, "w"),
    "safetensors: huge shape": (tensors(entry(shape=[2**62, 2**62])), TEXT, 3, "w"),
    "safetensors: negative shape": (tensors(entry(shape=[-2, -3])), TEXT, 3, "w"),
    "safetensors: shape is a text": (tensors(entry(shape="23")), TEXT, 3, "w"),
    "safetensors: number of 100,000 digits": (
        tensors('{"w": {"dtype": "F32", "shape": [' + DIGITS + '], "data_offsets": [0, 24]}}'),
        TEXT,
        3,
        "w",
    ),
    "safetensors: unknown dtype": (tensors(entry(dtype="OBJECT")), TEXT, 3, "w"),
    # files of options
    **{
        f"{kind}: {name}": (
            both(HERE, make),
            [*line, "f.json"],
            code,
            message,
        )
        for kind, line, code in (
            ("kernels", ["run", "m.nnc", "--kernels"], 2),
            ("schedule", ["print", "m.nnc", "--schedule"], 2),
            ("plan", ["watch", "m.nnc", "--memory", "--plan"], 2),
            ("baseline", ["watch", "m.nnc", "--baseline"], 3),
            ("golden names", ["diff", "m.nnc", "--golden", "g.npz", "--names"], 3),
            ("commands", ["m.nnc", "-x"], 3),
            ("recording", ["replay"], 2),
            ("log", ["races"], 3),
        )
        for name, make, message in (
            ("pipe", pipe("f.json"), PIPE),
            ("device", linked("f.json", "/dev/zero"), PIPE),
            ("deep JSON", text("f.json", '{"a":' * 50_000), "f.json"),
            ("number of 100,000 digits", text("f.json", f'{{"nncdbg_kernels": {DIGITS}}}'), "f.json"),
            ("no text", text("f.json", b"{\xff\xfe\x00"), "f.json"),
            ("list", text("f.json", "[[1]]"), "f.json"),
        )
        if kind != "commands" or name in ("pipe", "device")
    },
    # program folders
    "folder: document in a pipe": (
        both(text("d/program.nnc", SMALL), pipe("d/nncdbg.json")),
        ["run", "d"],
        3,
        PIPE,
    ),
    "folder: deep document": (
        both(text("d/program.nnc", SMALL), text("d/nncdbg.json", DEEP)),
        ["run", "d"],
        3,
        DAMAGED,
    ),
    "folder: document of 100,000 digits": (
        both(text("d/program.nnc", SMALL), text("d/nncdbg.json", DIGITS)),
        ["run", "d"],
        3,
        DAMAGED,
    ),
    # images
    "image: program for Ghostscript": (
        both(HERE, text("x.eps", "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")),
        ["run", "m.nnc", "--input", "x=x.eps"],
        2,
        "x.eps",
    ),
    "image: pipe": (both(HERE, pipe("x.png")), ["run", "m.nnc", "--input", "x=x.png"], 3, "x.png"),
    "image: no image": (
        both(HERE, text("x.png", b"\x89PNG\r\n\x1a\n" + b"\0" * 99)),
        ["run", "m.nnc", "--input", "x=x.png"],
        3,
        "x.png",
    ),
}


@pytest.mark.parametrize(("attack", "arguments", "code", "message"), ATTACKS.values(), ids=ATTACKS)
def test_a_hostile_file_is_one_error(
    command: Command, attack: Attack, arguments: list[str], code: int, message: str
) -> None:
    attack()
    got, out, err = command(*arguments)
    assert message in err
    assert got == code, err
    assert "root:" not in out + err
    assert len(err) < 3000
    assert "error: " in err or code == 0


def test_a_compressed_log_is_unpacked_up_to_a_limit(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(reading, "_LARGEST", 1000)
    Path("log.json.gz").write_bytes(gzip.compress(bytes(10**6)))
    code, _, err = command("races", "log.json.gz")
    assert code == 3
    assert "it has more than 1,000 bytes when it is unpacked" in err
