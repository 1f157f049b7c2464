"""Files that are not models, external data inside and outside the model's folder, stores, sources."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nncdbg.engine.frontends import attach_stores, load, open_stores
from nncdbg.engine.frontends.onnx_file import read_model
from nncdbg.errors import LoadError, NncdbgError
from nncdbg.ir.records import TensorType
from tests.engine.frontends.onnx_models import info, model, save

WEIGHT = np.arange(40, dtype=np.float32).reshape(8, 5)


def weighted(**tensor):
    proto = numpy_helper.from_array(WEIGHT, "w")
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", [2, 8])], initializer=[proto])


GOOD = weighted().SerializeToString()

BAD = {
    "empty": (b"", "is empty"),
    "random": (random.Random(1).randbytes(500), "is not an ONNX model"),
    "text": (b"hello, this is a text file\n", "is text, not an ONNX model"),
    "html": (b"\n<!DOCTYPE html><html></html>", "is an HTML or XML page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer"),
    "zip": (b"PK\x03\x04" + bytes(30), "is a zip archive"),
    "gzip": (b"\x1f\x8b\x08" + bytes(30), "is a gzip file"),
    "pickle": (b"\x80\x02}q\x00.", "is a Python pickle"),
    "nnc": (b"#nncdbg 1\ngraph @main() {\n}\n", "is graph text"),
    "no graph": (
        onnx.ModelProto(ir_version=8, opset_import=[onnx.OperatorSetIdProto(version=18)]),
        "contains no graph",
    ),
    "newer IR": (
        helper.make_model(onnx.GraphProto(name="g"), ir_version=onnx.IR_VERSION + 1),
        f"has IR version {onnx.IR_VERSION + 1}; nncdbg reads versions 1 to {onnx.IR_VERSION}",
    ),
    "IR below 0": (helper.make_model(onnx.GraphProto(name="g"), ir_version=-1), "has IR version -1"),
    "no opset": (onnx.ModelProto(ir_version=8, graph=onnx.GraphProto(name="g")), "has no opset version"),
    "zeros": (bytes(100), "is not an ONNX model"),
    "truncated": (GOOD[: len(GOOD) // 2], "is not an ONNX model"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_files_that_are_not_models(tmp_path, content, message):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    with pytest.raises(LoadError) as raised:
        load(path)
    assert message in raised.value.message
    assert str(path) in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize("suffix", [".onnx", ".nnc", ".pt2", ""])
def test_a_path_that_is_too_long_for_the_file_system_is_an_error(tmp_path, suffix):
    with pytest.raises(LoadError):
        load(tmp_path / ("x" * 300 + suffix))


def test_paths_that_are_not_files(tmp_path):
    save(weighted(), tmp_path / "net.onnx")
    with pytest.raises(LoadError, match="does not exist") as raised:
        load(tmp_path / "nett.onnx")
    assert "net.onnx" in str(raised.value.hint)
    with pytest.raises(LoadError, match="does not exist") as raised:
        load(tmp_path / "nowhere" / "net.onnx")
    assert "folder" in str(raised.value.hint)
    (tmp_path / "dir.onnx").mkdir()
    with pytest.raises(LoadError, match="is a directory"):
        load(tmp_path / "dir.onnx")
    with pytest.raises(LoadError, match="is a directory") as raised:
        load(tmp_path)
    assert ".onnx, .nnc" in str(raised.value.hint)
    with pytest.raises(LoadError, match="not a known model") as raised:
        load(str(tmp_path / "net.pb"))
    assert ".onnx, .nnc" in str(raised.value.hint)
    (tmp_path / "net.pt").touch()
    with pytest.raises(LoadError, match="not a known model") as raised:
        load(tmp_path / "net.pt")
    assert str(raised.value.hint).startswith("export it first: torch.onnx.export(")
    (tmp_path / "train.py").touch()
    with pytest.raises(LoadError, match=r"train\.py is a Python file, not a model") as raised:
        load(tmp_path / "train.py")
    for command in ("watch", "record", "debug"):
        assert f"nncdbg {command} {tmp_path / 'train.py'}" in str(raised.value.hint)
    with pytest.raises(LoadError, match="cannot read"):
        load("\x00.onnx")


def test_a_file_too_large_to_be_a_message(tmp_path):
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # A sparse file: it takes no disk space.
    with pytest.raises(LoadError, match="has 2147483648 bytes") as raised:
        load(path)
    assert "external data" in str(raised.value.hint)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_loads_or_is_an_nncdbg_error(tmp_path, seed):
    """Load a model with changed or truncated bytes."""
    rng = random.Random(seed)
    content = bytearray(GOOD)
    for _ in range(rng.randrange(1, 6)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    if seed % 3 == 0:
        del content[rng.randrange(len(content)) :]
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    # Any other exception, such as a UnicodeDecodeError, fails the test.
    with contextlib.suppress(NncdbgError):
        program = load(path)
        for reader in program.readers:
            for key in reader.keys():  # noqa: SIM118  # A store is not a mapping.
                reader.read(key)


def external(folder, *, data=None, **entries):
    """Save a model with its weight in another file and these external_data entries; return its path."""
    made = weighted()
    tensor = made.graph.initializer[0]
    content = tensor.raw_data if data is None else data
    (folder / "net.bin").write_bytes(b"\0" * 7 + content)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in ({"location": "net.bin", "offset": "7", "length": "160"} | entries).items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    return save(made, folder / "net.onnx")


@pytest.mark.parametrize("entries", [{}, {"length": None}], ids=["length", "no length"])
def test_external_data_is_read_from_its_file(tmp_path, entries):
    program = load(external(tmp_path, **entries))
    array = program.readers[0].read("w")
    assert np.array_equal(array, WEIGHT)
    assert array.flags.aligned
    assert not array.flags.writeable


def test_external_data_is_mapped_not_copied(tmp_path):
    made = save(weighted(), tmp_path / "net.onnx")
    onnx.save(onnx.load(made), made, save_as_external_data=True, location="w.bin", size_threshold=0)
    array = load(made).readers[0].read("w")
    assert np.array_equal(array, WEIGHT)
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert type(base).__name__ == "mmap"


MISPLACED = {
    "absolute": ({"location": "/etc/passwd"}, "outside the model's folder"),
    "up": ({"location": "../net.bin"}, "outside the model's folder"),
    "up and down": ({"location": "a/../net.bin"}, "outside the model's folder"),
    "windows": ({"location": "C:\\net.bin"}, "outside the model's folder"),
    "windows up": ({"location": "..\\net.bin"}, "outside the model's folder"),
    "nameless": ({"location": None}, "no file name"),
    "missing": ({"location": "other.bin"}, "which does not exist"),
    "folder": ({"location": "."}, "which is not a file"),
    "link": ({"location": "link.bin"}, "outside the model's folder"),
    "linked folder": ({"location": "way/secret.bin"}, "outside the model's folder"),
    "nul": ({"location": "a\0b"}, "invalid file name"),
    "short": ({"offset": "8"}, "needs bytes 8 to 168"),
    "beyond": ({"offset": str(2**70)}, "invalid external data: offset is"),
    "negative": ({"offset": "-1"}, 'invalid external data: offset is "-1"'),
    "word": ({"offset": "x"}, 'invalid external data: offset is "x"'),
    "length": ({"length": "159"}, "needs 160 bytes"),
    "negative length": ({"length": "-160"}, 'invalid external data: length is "-160"'),
}


@pytest.mark.parametrize(("entries", "message"), MISPLACED.values(), ids=MISPLACED)
def test_invalid_external_data_is_a_load_error(tmp_path, entries, message):
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret.bin").write_bytes(bytes(400))
    (inside / "link.bin").symlink_to(outside / "secret.bin")
    (inside / "way").symlink_to(outside)
    with pytest.raises(LoadError) as raised:
        load(external(inside, **entries))
    assert message in raised.value.message
    assert '"w"' in raised.value.message


def test_a_link_within_the_folder_is_followed(tmp_path):
    path = external(tmp_path, location="link.bin")
    (tmp_path / "link.bin").symlink_to("net.bin")
    assert np.array_equal(load(path).readers[0].read("w"), WEIGHT)


def test_a_model_in_memory_has_no_external_data(tmp_path):
    made = read_model(external(tmp_path))
    with pytest.raises(LoadError, match="a model loaded from memory has no folder"):
        load(made)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.dims.__setitem__(0, 9),
        lambda tensor: tensor.dims.__setitem__(0, -8),
        lambda tensor: setattr(tensor, "data_type", 99),
        lambda tensor: setattr(tensor, "data_type", TensorProto.STRING),
        lambda tensor: setattr(tensor, "raw_data", b""),
        lambda tensor: tensor.segment.SetInParent(),
    ],
    ids=["more", "negative", "type", "strings", "nothing", "segment"],
)
def test_inconsistent_tensors_are_load_errors(tmp_path, change):
    made = weighted()
    change(made.graph.initializer[0])
    with pytest.raises(LoadError, match='"w"'):
        load(save(made, tmp_path / "m.onnx")).readers[0].read("w")


def test_a_missing_tensor_of_a_store_is_named(tmp_path):
    (store,) = open_stores(["m.onnx"], save(weighted(), tmp_path / "m.onnx").parent)
    assert list(store.keys()) == ["w"]
    with pytest.raises(LoadError, match='has no tensor "v"'):
        store.read("v")


def test_stores_of_unknown_kinds(tmp_path):
    with pytest.raises(LoadError, match="not a known store"):
        open_stores(["weights.db"], tmp_path)


def test_safetensors(tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    numpy_files.save_file({"w": WEIGHT}, tmp_path / "w.safetensors")
    (store,) = open_stores(["w.safetensors"], tmp_path)
    assert store.type("w") == TensorType("f32", (8, 5))
    assert np.array_equal(store.read("w"), WEIGHT)
    with pytest.raises(LoadError, match='has no tensor "v"'):
        store.read("v")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(LoadError, match="cannot read"):
        open_stores(["bad.safetensors"], tmp_path)
    with pytest.raises(LoadError, match="does not exist"):
        open_stores(["no.safetensors"], tmp_path)


def test_the_text_of_a_model_reads_the_same_tensors(tmp_path):
    program = load(save(weighted(), tmp_path / "net.onnx"))
    (tmp_path / "net.nnc").write_text(str(program), encoding="utf-8")
    again = load(tmp_path / "net.nnc")
    assert again == program
    assert again.source == str(tmp_path / "net.nnc")
    assert np.array_equal(again.readers[0].read("w"), WEIGHT)


def test_text_without_its_store(tmp_path):
    program = load(save(weighted(), tmp_path / "net.onnx"))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "net.nnc").write_text(str(program), encoding="utf-8")
    with pytest.raises(LoadError, match=r"net\.onnx does not exist"):
        load(tmp_path / "text" / "net.nnc")
    assert attach_stores(program, tmp_path).readers[0].type("w").shape == (8, 5)


def test_text_files_that_are_binary_or_missing(tmp_path):
    (tmp_path / "bad.nnc").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LoadError, match="is not UTF-8 text"):
        load(tmp_path / "bad.nnc")
    with pytest.raises(LoadError, match="does not exist"):
        load(tmp_path / "none.nnc")


MODELS = Path(os.environ.get("NNCDBG_SHARED", Path(__file__).parents[4] / "shared")) / "models"


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_16k_op15", "silero_vad_op18_ifless"])
def test_real_models(name, flat):
    path = MODELS / f"{name}.onnx"
    if not path.is_file():
        pytest.skip("the shared models are not here")
    from nncdbg.textual_repr.parser import parse

    program = load(path, flat=flat)
    assert parse(str(program)) == program
    assert {value.name for value in program.graphs[program.entry].inputs} == {"input", "state", "sr"}
    tensors = {entry.name: entry for entry in onnx.load(path).graph.initializer}
    for key, tensor in tensors.items():
        assert np.array_equal(program.readers[0].read(key), numpy_helper.to_array(tensor))
