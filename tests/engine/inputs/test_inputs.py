"""Binding of inputs: files, arrays, generated data, sizes, errors."""

from __future__ import annotations

import io
import os
import pickle
import tracemalloc
import zipfile
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nncdbg import dtypes
from nncdbg.engine.inputs import npy
from nncdbg.engine.inputs.binding import bind, parse_dim, parse_spec
from nncdbg.engine.inputs.data_specs import GENERATED
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.ir.records import Graph, SequenceType, TensorType, Value


def graph(**types):
    return Graph("main", tuple(Value(name, type_) for name, type_ in types.items()))


F23 = TensorType("f32", (2, 3))
FN3 = TensorType("f32", ("N", 3))


@pytest.mark.parametrize("kind", GENERATED)
@pytest.mark.parametrize("name", sorted(dtypes.NUMPY))
def test_generated_data_has_the_type_of_the_input(kind, name):
    whole = name in dtypes.INTEGERS or name == "bool"
    if (kind == "normal" and whole) or (name == "str" and kind != "zeros"):
        with pytest.raises(UsageError, match="cannot be"):
            bind(graph(x=TensorType(name, (2, 3))), {"x": kind})
        return
    bound = bind(graph(x=TensorType(name, (2, 3))), {"x": kind})
    array = bound["x"]
    assert array.dtype == dtypes.NUMPY[name]
    assert array.shape == (2, 3)
    assert not array.flags.writeable
    assert bound.notes == []


@pytest.mark.parametrize("name", sorted(dtypes.NUMPY))
def test_missing_inputs_are_drawn_at_random_and_noted(name):
    bound = bind(graph(x=TensorType(name, (64,))), seed=7)
    array = bound["x"]
    assert array.dtype == dtypes.NUMPY[name]
    (note,) = bound.notes
    assert (note.fact, note.missing) == (f"input %x {name}[64] drawn at random from seed 7", ("input", "x"))
    assert str(note) == f"{note.fact} (pass --input x=FILE.npy)"
    if name == "str":
        assert set(array.tolist()) == {""}
    elif name in dtypes.INTEGERS:
        assert 0 <= array.astype(int).min() <= array.astype(int).max() <= 9
        assert len(set(array.astype(int).tolist())) > 1
    else:
        assert len(set(array.astype(complex).tolist())) > 1


def test_a_draw_depends_on_seed_and_name_only():
    alone = bind(graph(x=F23), seed=3)["x"]
    among = bind(graph(a=F23, x=F23, z=F23), {"z": "ones"}, seed=3)
    assert np.array_equal(alone, among["x"])
    assert not np.array_equal(among["a"], among["x"])
    assert not np.array_equal(alone, bind(graph(x=F23), seed=4)["x"])


def test_sizes_come_from_arrays_then_from_the_user_and_default_to_one():
    both = graph(x=FN3, y=TensorType("f32", ("N", "M")), z=TensorType("f32", ("K", None)))
    bound = bind(both, {"x": np.zeros((4, 3), np.float32), "y": "zeros", "z": "ones"}, {"M": 5})
    assert bound["y"].shape == (4, 5)
    assert bound["z"].shape == (1, 1)
    assert bound.dims == {"N": 4, "M": 5, "K": 1}
    assert [*map(str, bound.notes)] == [
        "size K of input %z f32[K,?] is not given, 1 is used (pass --dim K=SIZE)",
        "axis 1 of input %z f32[K,?] has an unknown size, 1 is used (pass --input z=FILE.npy)",
    ]


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7"])
def test_a_seed_is_not_negative(seed):
    with pytest.raises(UsageError, match="invalid seed") as caught:
        bind(graph(x=F23), {"x": "ones"}, seed=seed)
    assert caught.value.hint == "use an integer of 0 or more"


def test_an_array_of_a_later_input_sizes_an_earlier_one():
    bound = bind(graph(x=FN3, y=TensorType("f32", ("N",))), {"y": np.zeros(6, np.float32)})
    assert bound["x"].shape == (6, 3)


def test_a_given_array_is_a_view_and_never_changes():
    mine = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = bind(graph(x=F23), {"%x": mine})["x"]
    assert np.shares_memory(array, mine)
    assert mine.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(12, dtype=np.float32)[::2].reshape(2, 3),
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
    ],
)
def test_other_layouts_become_contiguous_and_native(array):
    got = bind(graph(x=F23), {"x": array})["x"]
    assert got.flags.c_contiguous
    assert got.dtype == np.dtype("=f4")
    assert np.array_equal(got, array)


@pytest.mark.parametrize(
    ("type_", "data", "expected"),
    [
        (TensorType("f32", ()), 3, np.float32(3)),
        (TensorType("f32", ()), np.float32(3), np.float32(3)),
        (TensorType("i64", ()), 3.0, np.int64(3)),
        (TensorType("bool", ()), True, np.bool_(True)),
        (TensorType("u8", (2,)), [1, 255], np.array([1, 255], np.uint8)),
        (TensorType("f16", (2,)), (1.5, float("inf")), np.array([1.5, np.inf], np.float16)),
        (TensorType("bf16", (1,)), [float("nan")], np.array([np.nan], ml_dtypes.bfloat16)),
        (TensorType("f32", (0,)), [], np.zeros(0, np.float32)),
        (TensorType("str", (2,)), ["a", "béta"], np.array(["a", "béta"], object)),
        (TensorType("str", (1,)), np.array(["abc"]), np.array(["abc"], object)),
        (TensorType("c64", ()), 1j, np.complex64(1j)),
    ],
)
def test_scalars_and_lists_are_converted(type_, data, expected):
    got = bind(graph(x=type_), {"x": data})["x"]
    assert got.dtype == np.asarray(expected).dtype
    assert got.shape == np.shape(expected)
    assert repr(got.tolist()) == repr(np.asarray(expected).tolist())


@pytest.mark.parametrize(
    ("type_", "data", "message"),
    [
        (F23, np.zeros((2, 3)), "it needs f32, not f64"),
        (F23, np.zeros((2, 4), np.float32), "axis 1 must have size 3, not 4"),
        (F23, np.zeros(6, np.float32), "it needs 2 axes, not 1"),
        (F23, "x.svg", "is not valid data"),
        (F23, "zeroes", "did you mean zeros"),
        (F23, [[1, 2, 3], [4, 5]], "ragged"),
        (F23, object(), "must contain only strings"),
        (F23, np.array(["a"]), "it needs f32, not str"),
        (F23, np.zeros(2, "datetime64[s]"), "cannot be an array of dtype datetime64"),
        (TensorType("u8", ()), 256, "cannot represent 256"),
        (TensorType("u8", ()), -1, "cannot represent -1"),
        (TensorType("i64", ()), 1.5, "cannot represent 1.5"),
        (TensorType("i64", ()), float("nan"), "cannot represent nan"),
        (TensorType("f16", ()), 1e9, "cannot represent"),
        (TensorType("f32", ()), 1j, "it needs f32, not complex"),
        (TensorType("f32", None), "zeros", "no known shape"),
        (None, "zeros", "no known type"),
    ],
)
def test_incompatible_data_is_a_usage_error(type_, data, message):
    with pytest.raises(UsageError) as raised:
        bind(graph(x=type_), {"x": data})
    assert message in str(raised.value)


def test_a_type_error_names_both_types_and_the_conversion():
    with pytest.raises(UsageError) as raised:
        bind(graph(x=F23), {"x": np.zeros((2, 3))})
    assert raised.value.operands == ("%x: f32[2,3] (the graph)", "f64[2,3] (given)")
    assert 'astype("float32")' in str(raised.value.hint)


def test_an_unknown_name_lists_the_inputs():
    with pytest.raises(UsageError, match='@main has no input "imgae"') as raised:
        bind(graph(image=FN3, mask=F23), {"imgae": "zeros"})
    assert raised.value.operands == ("%image: f32[N,3]", "%mask: f32[2,3]")
    assert raised.value.hint == "did you mean image?"


def test_contradictory_sizes_are_refused():
    two = graph(x=FN3, y=FN3)
    with pytest.raises(UsageError, match="axis 0 is N=5, but N=4 in %x"):
        bind(two, {"x": np.zeros((4, 3), np.float32), "y": np.zeros((5, 3), np.float32)})
    with pytest.raises(UsageError, match="axis 0 is N=5, but N=2 in the size"):
        bind(two, {"y": np.zeros((5, 3), np.float32)}, {"N": 2})
    with pytest.raises(UsageError, match='no input of @main has the size "M"'):
        bind(two, {}, {"M": 2})
    with pytest.raises(UsageError, match="invalid size N=-1"):
        bind(two, {}, {"N": -1})


def test_npy_and_npz_files(tmp_path):
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", data)
    np.savez(tmp_path / "two.npz", a=data, b=data + 1)
    np.savez(tmp_path / "one.npz", only=data + 2)
    np.save(tmp_path / "bf.npy", data.astype(ml_dtypes.bfloat16))
    for spec, expected in (("x.npy", data), ("two.npz:b", data + 1), ("one.npz", data + 2)):
        assert np.array_equal(bind(graph(x=F23), {"x": spec}, folder=tmp_path)["x"], expected)
        assert np.array_equal(bind(graph(x=F23), {"x": f"{tmp_path}/{spec}"})["x"], expected)
    half = bind(graph(x=TensorType("bf16", (2, 3))), {"x": "bf.npy"}, folder=tmp_path)["x"]
    assert half.dtype == ml_dtypes.bfloat16
    assert np.array_equal(half.astype(np.float32), data)


def test_files_that_cannot_be_read(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.zeros(1), b=np.zeros(1))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], object), allow_pickle=True)
    whole = (tmp_path / "two.npz").read_bytes()
    np.save(tmp_path / "good.npy", np.zeros((2, 3), np.float32))
    npy = (tmp_path / "good.npy").read_bytes()
    (tmp_path / "folder.npy").mkdir()
    false_header = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**11, 10**8)}
    np.lib.format.write_array_header_1_0(false_header, header)
    files = {
        "empty.npy": b"",
        "random.npy": bytes(range(256)),
        "short.npy": npy[:-8],
        "header.npy": npy[:40],
        "pickle.npy": pickle.dumps([1, 2]),
        "short.npz": whole[: len(whole) // 2],
        "empty.npz": b"",
        "false_header.npy": false_header.getvalue(),
        "one.npz": npy,
        "many.npy": whole,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name in (*files, "objects.npy", "missing.npy", "folder.npy", "missing.npz:x"):
        with pytest.raises(LoadError) as raised:
            bind(graph(x=F23), {"x": name}, folder=tmp_path)
        assert str(tmp_path) in str(raised.value), name
    with pytest.raises(UsageError, match='has no array "c"'):
        bind(graph(x=F23), {"x": "two.npz:c"}, folder=tmp_path)
    with pytest.raises(UsageError, match="needs a key"):
        bind(graph(x=F23), {"x": "two.npz"}, folder=tmp_path)


def test_pickles_are_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.save(tmp_path / "trap.npy", np.array([Trap()], object), allow_pickle=True)
    with pytest.raises(LoadError, match="Python objects"):
        bind(graph(x=F23), {"x": "trap.npy"}, folder=tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_an_archive_that_would_unpack_to_much_data_is_refused_by_its_header(tmp_path):
    bomb = np.broadcast_to(np.float32(0), (50_000_000,))
    np.savez_compressed(tmp_path / "bomb.npz", x=bomb)
    assert (tmp_path / "bomb.npz").stat().st_size < 1_000_000
    types = (F23, TensorType("i64", (50_000_000,)), TensorType("f32", ("N", 3)), SequenceType(F23))
    tracemalloc.start()
    try:
        for type_ in types:
            with pytest.raises(UsageError, match="has the wrong (shape|dtype)"):
                bind(graph(x=type_), {"x": "bomb.npz"}, folder=tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20, "the archive is not unpacked"
    fits = bind(graph(x=TensorType("f32", ("N",))), {"x": "bomb.npz:x"}, folder=tmp_path)["x"]
    assert fits.shape == (50_000_000,)


def test_an_archive_with_a_false_header_is_refused(tmp_path):
    false_header = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 3)}
    np.lib.format.write_array_header_1_0(false_header, header)
    with zipfile.ZipFile(tmp_path / "false_header.npz", "w") as archive:
        archive.writestr("x.npy", false_header.getvalue() + b"few")
        archive.writestr("text", "no array")
    with pytest.raises(LoadError, match="its header requires 12000000000 bytes, but the archive has 3"):
        bind(graph(x=TensorType("f32", ("N", 3))), {"x": "false_header.npz:x"}, folder=tmp_path)
    with pytest.raises(LoadError, match="is not a plain array"):
        bind(graph(x=F23), {"x": "false_header.npz:text"}, folder=tmp_path)


@pytest.mark.parametrize("name", ["pipe.npy", "pipe.npz:x"])
def test_a_pipe_or_device_is_refused_without_blocking(name, tmp_path):
    for path in ("pipe.npy", "pipe.npz"):
        os.mkfifo(tmp_path / path)
    (tmp_path / "zero.npy").symlink_to("/dev/zero")
    for given in (name, "zero.npy"):
        with pytest.raises(LoadError, match="is not a regular file"):
            bind(graph(x=F23), {"x": given}, folder=tmp_path)


@pytest.mark.parametrize("text", ["x", "=x.npy", "x=", ""])
def test_bad_input_options(text):
    with pytest.raises(UsageError, match="is not NAME=VALUE"):
        parse_spec(text)


@pytest.mark.parametrize("text", ["N", "N=", "=4", "N=four", "N=-1", "N=1.5", "N=²"])
def test_bad_dim_options(text):
    with pytest.raises(NncdbgError, match="is not NAME=SIZE"):
        parse_dim(text)


def test_options():
    assert parse_spec("x=a=b.npy") == ("x", "a=b.npy")
    assert parse_dim("batch=12") == ("batch", 12)


def hollow(file, size, missing=0):
    """Write a sparse .npy file of `size` float32 zeros, `missing` bytes too short."""
    with file.open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + 4 * size - missing)


def test_a_large_npy_file_is_mapped_not_read(tmp_path):
    size = npy.MAPPED
    hollow(tmp_path / "large.npy", size)
    found = bind(graph(x=TensorType("f32", (size,))), {"x": "large.npy"}, folder=tmp_path)["x"]
    base = found
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not found.flags.writeable
    assert found.shape == (size,)
    assert found[-1] == 0
    hollow(tmp_path / "short.npy", size, missing=8)
    with pytest.raises(LoadError, match="damaged"):
        npy.load_array(tmp_path / "short.npy")


SPECS: dict[str, tuple[TensorType | None, Any]] = {
    "16000": (TensorType("i64", ()), np.array(16000)),
    "-3.5e-2": (TensorType("f32", ()), np.float32(-0.035)),
    "true": (TensorType("bool", ()), np.array(True)),
    "[1, 2,3]": (TensorType("i64", (3,)), np.array([1, 2, 3])),
    "[[0.5, nan], [-inf, 1]]": (
        TensorType("f16", (2, 2)),
        np.array([[0.5, np.nan], [-np.inf, 1]], np.float16),
    ),
    '["a", "b"]': (TensorType("str", (2,)), np.array(["a", "b"], object)),
    "zeros[2,3]": (TensorType("f32", ("N", "?")), np.zeros((2, 3), np.float32)),
    "ones[]": (TensorType("f64", ()), np.ones(())),
    "arange[4]": (None, np.arange(4, dtype=np.float32)),
    "zeros[2, 3]": (TensorType("u8", None), np.zeros((2, 3), np.uint8)),
}


@pytest.mark.parametrize("text", SPECS)
def test_text_is_parsed_as_numbers_lists_and_generated_data(text):
    type_, expected = SPECS[text]
    bound = bind(graph(x=type_), {"x": text})
    np.testing.assert_array_equal(bound["x"], expected)
    assert bound["x"].dtype == expected.dtype
    assert bound.notes == []


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        (F23, "normal[2,4]", "axis 1 must have size 3, not 4"),
        (F23, "normal[6]", "it needs 2 axes, not 1"),
        (F23, "normal[a,3]", "has wrong sizes"),
        (F23, "[1,2", "expected"),
        (F23, "[1,2]", "it needs 2 axes, not 1"),
        (F23, "%x", "is not valid data"),
        (TensorType("i64", ()), "1.5", "cannot represent 1.5"),
        (TensorType("i64", (2,)), '["a"]', "it needs i64, not str"),
    ],
)
def test_text_of_incompatible_data_is_refused(type_, text, message):
    with pytest.raises(UsageError) as raised:
        bind(graph(x=type_), {"x": text})
    assert message in str(raised.value)
    assert "%x" in str(raised.value)


def test_the_sizes_of_generated_data_bind_symbols():
    bound = bind(graph(x=FN3, y=TensorType("f32", ("N",))), {"x": "normal[5,3]", "y": "zeros"})
    assert bound.dims == {"N": 5}
    assert bound["y"].shape == (5,)
