"""The check of many tensors finds NaN, Inf and overflowing squares, in any layout and on both passes."""

import os

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg import stats  # noqa: E402
from nncdbg.stats import preparation  # noqa: E402
from nncdbg.torch import finiteness, guard_kernels  # noqa: E402
from nncdbg.torch.finiteness import are_moderate, not_finite, suspicious  # noqa: E402


@pytest.fixture(params=["library", "compiled", "norms"], autouse=True)
def either_pass(request, monkeypatch):
    """Run a test with the library of the guard, with the compiled check, and with norms, as on a device."""
    monkeypatch.setattr(finiteness, "_checks", {})
    if request.param == "library" and os.environ.get("NNCDBG_TORCH_KERNELS") == "off":
        pytest.skip("there is no C++ compiler with the headers of Python")
    if request.param in ("library", "compiled"):
        stats.prepare(wait=True)
        assert stats.failure() is None
        if request.param == "library":
            monkeypatch.setattr(guard_kernels, "used", guard_kernels.LIBRARY.module())
    else:
        monkeypatch.setattr(preparation, "kernels", {})


LAYOUTS = {
    "contiguous": lambda: torch.ones(4, 6),
    "transposed": lambda: torch.ones(4, 6).T,
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.ones(4, 6)[:, ::2],
    "expanded": lambda: torch.ones(4, 1).expand(4, 6),
    "offset": lambda: torch.ones(4, 6)[2],
    "parameter": lambda: torch.nn.Parameter(torch.ones(4)),
    "scalar": lambda: torch.tensor(1.0),
    "sparse": lambda: torch.ones(4, 6).to_sparse(),
}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_bad_element_among_tensors_is_found(layout, bad):
    tensor = LAYOUTS[layout]()
    others = [torch.ones(3), torch.arange(3), torch.ones(0), torch.tensor([True])]
    assert not suspicious([*others, tensor])
    values = tensor.detach()
    values = values._values() if values.is_sparse else values
    values[(-1,) * values.dim()] = bad
    assert suspicious([*others, tensor])
    assert not_finite(tensor)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_element_outside_of_a_view_is_left_out(dtype):
    base = torch.ones(4, 6, dtype=dtype)
    base[0, 1] = float("nan")
    assert not suspicious([base[:, ::2], base[1:]])
    assert suspicious([base])


@pytest.mark.parametrize("elements", [1, 5, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_square_that_overflows_is_suspicious_and_finite(dtype, elements):
    tensor = torch.ones(elements, dtype=dtype)
    tensor[elements // 2] = -(torch.finfo(dtype).max ** 0.6)
    assert suspicious([tensor])
    assert not_finite(tensor) == ""


@pytest.mark.parametrize("elements", [1, 5, 1000])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("number", [0.0, 1.0, -(2.0**20), 2.0**19.9, float("nan"), float("-inf")])
def test_only_magnitudes_below_a_limit_are_moderate(number, dtype, elements, request):
    tensor = torch.ones(elements, dtype=dtype)
    tensor[elements // 2] = number
    compiled = "norms" not in request.node.callspec.id
    expected = compiled and abs(float(tensor[elements // 2])) < 2.0**20
    assert are_moderate([torch.ones(3, dtype=dtype), tensor]) == expected
    assert are_moderate([torch.nn.Parameter(torch.ones(3)), tensor]) == expected


def test_tensors_that_are_not_read_as_they_are_in_memory_are_not_moderate():
    assert not are_moderate([torch.ones(4, 6)[:, ::2]])
    assert not are_moderate([torch.ones(4, 6).to_sparse()])
    assert not are_moderate([torch.ones(3), torch.ones(3, dtype=torch.int64)])
