"""The torch backend: conversions, calls of operators, their errors, and debugging a program of operators."""

import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.backends import backend as backend_of
from nncdbg.errors import GraphError, RunError, UnsupportedOp, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed")

from nncdbg.engine.ops.aten.arrays import host_array  # noqa: E402
from nncdbg.engine.ops.aten.internals import out_form  # noqa: E402
from nncdbg.engine.ops.aten.signatures import signature  # noqa: E402
from tests.laws import examples  # noqa: E402

FLOATS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16"]
PLAIN = ["float16", "float32", "float64", "int8", "int16", "int32", "int64"]
PLAIN += ["uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"]

PROGRAM = """#nncdbg 1
graph @main(%x: f32[2,2]) -> (%y, %x.1) {
  %h: f32[2,2] = aten.exp.default(%x)
  %x.1: f32[2,2] = aten.add_.Tensor(%x, %h, alpha=2)
  %y: f32[2] = aten.sum.dim_IntList(%x.1, dim=[0])
  return %y, %x.1
}
"""

X = np.array([[0, 1], [2, 3]], np.float32)


@pytest.fixture(autouse=True, params=["from Python", "compiled"])
def _one_thread(request, monkeypatch):
    if request.param == "from Python":
        monkeypatch.setenv("NNCDBG_TORCH_KERNELS", "off")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def backend():
    return backend_of("torch")


def opened(text=PROGRAM, inputs=None, **options):
    return nncdbg.Debugger(
        nncdbg.parse(text), {"x": X.copy()} if inputs is None else inputs, backend="torch", **options
    )


def statement(line, result, **inputs):
    """Return the values of %y and %z after one statement."""
    formal = ", ".join(f"%{name}" for name in inputs)
    text = f"#nncdbg 1\ngraph @main({formal}) -> ({result}) {{\n  {line}\n  return {result}\n}}\n"
    debugger = opened(text, inputs)
    stop = debugger.run()
    if stop.error is not None:
        raise stop.error
    return [debugger.outputs[name.strip(" %")] for name in result.split(",")]


# -- conversions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN + FLOATS)
def test_arrays_and_tensors_share_memory(backend, name):
    dtype = np.dtype(getattr(ml_dtypes, name) if name in FLOATS else name)
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    tensor = backend.to_device(array)
    assert tensor.dtype == getattr(torch, name)
    assert tensor.data_ptr() == array.ctypes.data
    back = backend.to_host(tensor)
    assert back.dtype == dtype
    assert back.ctypes.data == array.ctypes.data
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", FLOATS)
def test_bits_of_small_floats_survive(backend, name):
    bits = np.arange(256, dtype=np.uint8) if name != "bfloat16" else np.arange(1 << 16).astype(np.uint16)
    array = bits.view(getattr(ml_dtypes, name))
    tensor = backend.to_device(array)
    assert np.array_equal(np.asarray(tensor.float()), array.astype(np.float32), equal_nan=True)
    assert backend.to_host(tensor).tobytes() == bits.tobytes()


@pytest.mark.parametrize(
    "view",
    [lambda a: a.T, lambda a: a[:, ::2], lambda a: a[1:], lambda a: a[0, 0], lambda a: a[:, :0]],
    ids=["transposed", "every second", "part", "no axes", "empty"],
)
def test_strides_survive_without_a_copy(backend, view):
    array = view(np.arange(12, dtype=np.float32).reshape(3, 4))
    array = np.asarray(array) if array.ndim == 0 else array
    tensor = backend.to_device(array)
    assert tensor.shape == array.shape
    if array.size:
        assert tensor.data_ptr() == array.ctypes.data
        assert tuple(4 * step for step in tensor.stride()) == array.strides
    assert np.array_equal(backend.to_host(tensor), array)


def test_read_only_array_is_copied(backend):
    array = np.arange(3.0)
    array.flags.writeable = False
    tensor = backend.to_device(array)
    tensor.fill_(7)
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("array", [np.arange(4)[::-1], np.arange(4, dtype=">i4"), np.arange(6.0)[::-2]])
def test_array_that_torch_cannot_share_is_copied(backend, array):
    tensor = backend.to_device(array)
    assert tensor.tolist() == array.tolist()


def test_lazy_conjugate_and_negation_become_plain(backend):
    tensor = torch.tensor([1 + 2j])
    assert backend.to_host(tensor.conj()).tolist() == [1 - 2j]
    assert backend.to_host(tensor.conj().imag).tolist() == [-2]


def test_dtype_without_tensors_is_refused(backend):
    with pytest.raises(RunError, match=r"torch has no tensors of int4.*") as caught:
        backend.to_device(np.zeros(2, ml_dtypes.int4))
    assert caught.value.hint == "use --backend numpy"


def test_other_values_are_unchanged(backend):
    names = np.array(["a"], object)
    assert backend.to_device(names) is names
    assert backend.to_device(None) is None
    assert backend.to_host("text") == "text"
    assert [each.tolist() for each in backend.to_host([torch.tensor(1), torch.tensor([2])])] == [1, [2]]


@pytest.mark.parametrize("make", [torch.Tensor.t, lambda t: t[:, ::2], torch.Tensor.clone])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64])
def test_statistics_equal_those_of_numpy(backend, make, dtype):
    tensor = make(torch.arange(12).reshape(3, 4).to(dtype))
    row = torch.zeros(10, dtype=torch.float64)
    expected = torch.zeros(10, dtype=torch.float64)
    backend.summarize(tensor, row)
    backend.summarize(backend.to_device(host_array(tensor).copy()), expected)
    assert row.tolist() == expected.tolist()
    assert row.any()


# -- statements ----------------------------------------------------------------------------------------


def test_defaults_are_those_of_torch():
    (result,) = statement("%y = aten.add.Tensor(%x, %x)", "%y", x=X)
    assert result.tolist() == (2 * X).tolist()


def test_number_for_a_tensor_is_an_attribute():
    (result,) = statement("%y = aten.mul.Tensor(%x, other=0.5)", "%y", x=X)
    assert result.tolist() == (X / 2).tolist()


def test_tensors_of_a_list_are_counted():
    line = "%y = aten.cat.default(%x, %z, %x, n_tensors=3, dim=1)"
    (result,) = statement(line, "%y", x=X, z=X + 4)
    assert result.tolist() == np.concatenate([X, X + 4, X], 1).tolist()


def test_omitted_operand_is_none():
    (result,) = statement("%y = aten.clamp.Tensor(%x, _, %z)", "%y", x=X, z=np.float32(1))
    assert result.max() == 1


def test_foreach_operator_gives_all_new_values():
    line = "%y, %z = aten._foreach_add_.Scalar(%a, %b, n_self=2, scalar=1)"
    one, other = statement(line, "%y, %z", a=X, b=-X)
    assert one.tolist() == (X + 1).tolist()
    assert other.tolist() == (1 - X).tolist()


def test_random_state_is_an_operand_and_a_result():
    state = host_array(torch.manual_seed(3).get_state()).copy()
    expected = torch.rand(4)
    before = torch.get_rng_state()
    line = '%y, %z = aten.rand.default(%r, size=[4], random="cpu")'
    drawn, after = statement(line, "%y, %z", r=state)
    assert drawn.tolist() == expected.tolist()
    assert after.tobytes() != state.tobytes()
    assert torch.equal(torch.get_rng_state(), before), "the user's own generator is unchanged"


def test_without_state_the_seed_of_the_debugger_decides():
    text = "#nncdbg 1\ngraph @main(%x) -> (%y) {\n  %y = aten.bernoulli.p(%x, p=0.5)\n  return %y\n}\n"
    before = torch.get_rng_state()
    drawn = []
    for seed in (1, 1, 2):
        debugger = opened(text, {"x": np.zeros(64, np.float32)}, seed=seed)
        assert debugger.run().reason == "end"
        drawn.append(debugger.outputs["y"].tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    assert torch.equal(torch.get_rng_state(), before)


WRITES = {
    "aten.add_.Scalar": "other=1",
    "aten.zero_.default": "",
    "aten.relu_.default": "",
    "aten.fill_.Scalar": "value=2",
    "aten.clamp_.default": "min=0.5",
}


@examples(40)
@given(
    op=st.sampled_from(sorted(WRITES)),
    shape=st.lists(st.integers(0, 4), max_size=3),
    permuted=st.randoms(use_true_random=False),
    step=st.integers(1, 3),
)
def test_writes_change_no_operand(op, shape, permuted, step):
    axes = list(range(len(shape)))
    permuted.shuffle(axes)
    array = np.linspace(-2, 2, max(int(np.prod(shape)), 1), dtype=np.float32)[: int(np.prod(shape))]
    array = array.reshape(shape).transpose(axes)
    array = array[::step] if array.ndim else array
    before = array.copy()
    attributes = f", {WRITES[op]}" if WRITES[op] else ""
    (result,) = statement(f"%y = {op}(%x{attributes})", "%y", x=array)
    assert np.array_equal(array, before)
    tensor = torch.from_numpy(before.copy())
    namespace, name, overload = op.split(".")
    keywords = dict([WRITES[op].split("=")]) if WRITES[op] else {}
    getattr(getattr(getattr(torch.ops, namespace), name), overload)(
        tensor, **{key: float(value) for key, value in keywords.items()}
    )
    assert np.array_equal(result, tensor.numpy())


def test_written_copy_has_the_strides_of_the_operand():
    line = """%z = aten.t.default(%x)
  %w = aten.add_.Scalar(%z, other=1)
  %y = torch.view(%w, size=[4], stride=[1])"""
    (result,) = statement(line, "%y", x=X)
    assert result.tolist() == [1, 2, 3, 4], "the memory is in the order of %x"


REPLACED: dict[str, dict[str, float]] = {
    "aten.add_.Tensor": {"alpha": 3},
    "aten.mul_.Tensor": {},
    "aten.addcdiv_.default": {"value": -0.375},
    "aten.addcmul_.default": {"value": 0.625},
    "aten.lerp_.Scalar": {"weight": 0.125},
    "aten.sqrt_.default": {},
    "aten.sub_.Tensor": {"alpha": 1},
}
STRIDED = (lambda each: each, lambda each: each.t(), lambda each: each[:, ::2], lambda each: each[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("op", REPLACED)
def test_writes_give_the_bits_of_the_operator_in_place(op, dtype):
    found, attributes = signature(op), "".join(f", {key}={value}" for key, value in REPLACED[op].items())
    assert found is not None
    assert out_form(found.overload) is not None
    torch.manual_seed(0)
    for view in STRIDED:
        written = view(torch.rand(33, 20).to(dtype))
        row, other = torch.randn(written.shape[-1]), view(torch.rand(33, 20) + 0.5)
        other = other.to(dtype) if "lerp" in op else other
        others = [other, row.expand(written.shape)][: len(found.tensor_arguments) - 1]
        names = [f"o{index}" for index in range(len(others))]
        (result,) = statement(
            f"%y = {op}({', '.join(['%w', *(f'%{name}' for name in names)])}{attributes})",
            "%y",
            w=host_array(written),
            **dict(zip(names, map(host_array, others), strict=True)),
        )
        expected = torch.empty_strided(written.shape, written.stride(), dtype=dtype).copy_(written)
        found.overload(expected, *others, **REPLACED[op])
        assert result.tobytes() == host_array(expected).tobytes()


def test_write_that_broadcasts_to_another_shape_is_refused():
    with pytest.raises(RunError, match=r"doesn't match the broadcast shape"):
        statement("%y = aten.add_.Tensor(%x, %z)", "%y", x=X, z=np.zeros((3, 2, 2), np.float32))


def test_part_is_written_to_a_copy():
    line = "%y = torch.write(%x, %z, size=[2], stride=[2], offset=1)"
    result, given = statement(line, "%y, %x", x=X, z=np.array([8, 9], np.float32))
    assert result.tolist() == [[0, 8], [2, 9]]
    assert given.tolist() == X.tolist()


def test_host_read_gives_the_number_of_the_tensor():
    (result,) = statement("%y = torch.read(%x, value=3)", "%y", x=np.float32(5))
    assert result == 5


# -- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            "%y = aten.nothing.default(%x)",
            "aten.nothing.default is not an operator of torch",
            "nncdbg ops aten",
        ),
        ("%y = aten.add.Nothing(%x)", "aten.add.Nothing is not an operator of torch", "nncdbg ops aten"),
        (
            "%y = Hardmax(%x)",
            "Hardmax has no kernel on torch: it is not an operator of PyTorch",
            "--fallback",
        ),
        ('%y = aten._to_copy.default(%x, dtype="f33")', 'dtype="f33" is not a ScalarType', ""),
        ('%y = aten._to_copy.default(%x, device="no such")', 'device="no such" is not a Device', ""),
    ],
)
def test_statement_without_a_kernel_is_refused(line, message, hint):
    with pytest.raises((UnsupportedOp, GraphError)) as caught:
        statement(line, "%y", x=X)
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_kernel_that_fails_names_the_statement():
    with pytest.raises(RunError, match=r"aten\.mm\.default cannot compute with f32\[2,2\], f32\[3,2\]"):
        statement("%y = aten.mm.default(%x, %z)", "%y", x=X, z=np.zeros((3, 2), np.float32))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%y = aten.add.Tensor(%x, %x, %x)", "2 operands, not 3"),
        ("%y, %z = aten.exp.default(%x)", "aten.exp.default has 1 output, not 2"),
        ("%y = aten.exp.default(%x, base=2)", "aten.exp.default has no attribute 'base'"),
        ("%y = aten.softmax.int(%x)", "aten.softmax.int needs the attribute 'dim'"),
        ("%y = aten.softmax.int(%x, dim=1.5)", "dim"),
    ],
)
def test_arity_and_attributes_are_checked_before_the_run(line, message):
    with pytest.raises(GraphError) as caught:
        statement(line, "%y", x=X)
    assert message in str(caught.value)
    assert line.partition(" = ")[2] in str(caught.value), "the statement is shown"


def test_missing_torch_is_a_usage_error(monkeypatch):
    monkeypatch.setattr("nncdbg.text.torch_names.installed", lambda: False)
    with pytest.raises(UsageError, match="needs the package torch, which is not installed") as caught:
        backend_of("torch")
    assert caught.value.hint == "pip install nncdbg[torch]"


# -- the debugger --------------------------------------------------------------------------------------


def test_step_back_set_and_branch():
    debugger = opened()
    assert debugger.run().reason == "end"
    debugger.step_back()
    debugger.step_back()
    debugger.set_value("%h", np.zeros((2, 2), np.float32))
    assert debugger.run().reason == "end"
    assert debugger.outputs["x.1"].tolist() == X.tolist()
    assert debugger.outputs["y"].tolist() == [2, 4]


def test_onnx_operator_without_a_counterpart_needs_the_fallback():
    lines = ["  %h = Hardmax(%x)", "  %y = aten.exp.default(%h)", "  return %y"]
    text = "\n".join(["graph @main(%x) -> (%y) {", *lines, "}"])
    refused = opened(text).run()
    assert isinstance(refused.error, UnsupportedOp)
    debugger = opened(text, fallback=True)
    assert debugger.run().reason == "end"
    largest = torch.nn.functional.one_hot(torch.from_numpy(X).argmax(-1), X.shape[-1])
    assert debugger.outputs["y"].tolist() == torch.exp(largest.float()).tolist()
    assert [each.op for each in debugger.loaded.fallbacks] == ["Hardmax"]


def test_own_operators_of_the_debugger_run():
    (result,) = statement('%y = nncdbg.Empty(shape=[2,3], dtype="f32")', "%y")
    assert result.shape == (2, 3)


def test_importing_nncdbg_imports_no_torch():
    import subprocess

    text = "graph @main(%x) -> (%x) {\\n return %x\\n}"
    code = f"import sys, nncdbg; nncdbg.parse('{text}'); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
