"""User kernels that allocate through `xp`: uninitialized elements are reported, without false positives."""

from __future__ import annotations

import inspect
import pickle
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends.numpy import KernelNamespace


def writes_all(xp: Any, x: Any) -> Any:
    out = xp.empty_like(x)
    out[...] = x * 2
    return out


def without_the_tail(xp: Any, x: Any) -> Any:
    out = xp.empty_like(x)
    out[:-1] = x[:-1] * 2
    return out


def without_the_tail_scaled(xp: Any, x: Any) -> Any:
    out = xp.empty(x.shape, x.dtype)
    out[:-1] = x[:-1]
    return out * 2


def sum_over_scratch(xp: Any, x: Any) -> Any:
    scratch = xp.ndarray(x.shape, x.dtype)
    scratch[1:] = x[1:]
    return xp.asarray(scratch.sum())


def scratch_read_only_where_written(xp: Any, x: Any) -> Any:
    scratch = xp.empty((2 * x.size,), x.dtype)
    scratch[: x.size] = x.reshape(-1)
    return scratch[: x.size].reshape(x.shape) + 1


def integers_without_the_tail(xp: Any, x: Any) -> Any:
    out = xp.empty(x.shape, np.int64)
    out[:-1] = 7
    return out


def decision_by_scratch(xp: Any, x: Any) -> Any:
    flags = xp.empty(x.shape, bool)
    flags[1:] = True
    return xp.where(flags, x, 0.0).astype(x.dtype)


def nan_to_num_of_scratch(xp: Any, x: Any) -> Any:
    out = xp.empty_like(x)
    out[:-1] = x[:-1]
    return xp.nan_to_num(out)


def fails_over_another_fill(xp: Any, x: Any) -> Any:
    sizes = xp.empty((2,), np.float32)
    sizes[0] = 1
    if not xp.isnan(sizes[1]):
        raise ValueError("a size")
    return x + 0


def different_each_time(xp: Any, x: Any, _calls: Any = [0]) -> Any:  # noqa: B006  on purpose
    xp.empty((3,), np.float32)
    _calls[0] += 1
    return x + _calls[0]


def read_only_buffer(xp: Any, x: Any) -> Any:
    return x + xp.ndarray(x.shape, x.dtype, buffer=np.ones(x.size, x.dtype).data)


READ = "read uninitialized memory from xp.empty"

CASES: list[tuple[Any, str | None]] = [
    (writes_all, None),
    (without_the_tail, "left 1 of 4 elements of %y uninitialized, the first at [3]"),
    (without_the_tail_scaled, f"{READ}: 1 of 4 elements of %y are wrong, the first at [3]"),
    (sum_over_scratch, f"{READ}: 1 of 1 elements"),
    (scratch_read_only_where_written, None),
    (integers_without_the_tail, "left 1 of 4 elements of %y uninitialized, the first at [3]"),
    (decision_by_scratch, READ),
    (nan_to_num_of_scratch, f"{READ}: 1 of 4 elements of %y are wrong"),
    (fails_over_another_fill, f"{READ}: 4 of 4 elements"),
    (different_each_time, None),
    (read_only_buffer, None),
]  # fmt: skip

TEXT = """#nncdbg 1
graph @main(%x: f32[4]) -> (%y) {
  %y = mine.Kernel(%x)
  return %y
}
"""
X = np.arange(1, 5, dtype=np.float32)


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> str | None:
    function, expected = request.param
    nncdbg.op("mine.Kernel")(function)
    return str(expected) if expected is not None else None


@pytest.mark.parametrize("kernel", CASES, indirect=True, ids=lambda case: case[0].__name__)
@pytest.mark.parametrize("allocator", [None, "debug", "arena"])
def test_a_watch_reports_elements_that_a_kernel_leaves_uninitialized(
    kernel: str | None, allocator: str | None
) -> None:
    report = nncdbg.watch(nncdbg.parse(TEXT), {"x": X}, allocator=allocator)
    assert report.error is None
    found = [each for each in report.tripping if each.kind == "uninitialized"]
    if kernel is None:
        assert report.findings == []
        return
    assert found[0].first
    assert found[0].evidence.startswith(f"mine.Kernel {kernel}")
    # The NaN that follows is not a separate finding.
    assert {each.kind for each in report.findings} == {"uninitialized"}


@pytest.mark.parametrize("allocator", ["debug", "poison"])
def test_uninitialized_scratch_of_a_kernel_with_an_output_buffer(allocator: str) -> None:
    def scaled(xp: Any, x: Any, *, out: Any) -> Any:
        scratch = xp.empty_like(x)
        scratch[1:] = x[1:]
        return xp.multiply(scratch, 2, out=out)

    nncdbg.op("mine.Kernel", infer=lambda attributes, types: [types[0]], accepts_out=True)(scaled)
    stop = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, allocator=allocator).run()
    assert stop.detail == f"mine.Kernel {READ}: 1 of 4 elements of %y are wrong, the first at [0]"


@pytest.mark.parametrize("kernel", [CASES[1]], indirect=True)
def test_the_debugger_stops_at_the_kernel(kernel: str) -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X})
    stop = debugger.run()
    assert (stop.reason, stop.detail) == ("exception", f"mine.Kernel {kernel}")


def test_a_kernel_gets_the_numpy_module_without_memory_checks() -> None:
    seen: list[Any] = []

    @nncdbg.op("mine.Kernel")
    def kernel_with_xp(xp: Any, x: Any) -> Any:
        seen.append(xp)
        return x + 0

    for allocator, own in (("plain", True), ("debug", False)):
        debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X}, allocator=allocator)
        debugger.run()
        assert (seen[-1] is np) == own
    assert isinstance(seen[-1], KernelNamespace)


def test_the_kernel_namespace_otherwise_behaves_like_numpy() -> None:
    made: list[Any] = []

    def fresh(array: Any, written: bool) -> Any:
        assert not written
        made.append(array)
        return array

    xp = KernelNamespace(np, fresh)
    assert isinstance(xp, ModuleType)
    assert inspect.ismodule(xp)
    assert xp.__name__ == "numpy"
    assert (xp.sin, xp.float32, xp.linalg, xp.__version__) == (np.sin, np.float32, np.linalg, np.__version__)
    assert {"empty", "einsum", "ndarray"} <= set(dir(xp))
    assert pickle.loads(pickle.dumps(xp)) is np
    array = np.ones(3)
    assert isinstance(array, xp.ndarray)
    assert not isinstance([1.0], xp.ndarray)
    assert issubclass(np.ma.MaskedArray, xp.ndarray)

    class Mine(xp.ndarray):  # type: ignore[misc, name-defined]
        pass

    assert isinstance(array.view(Mine), xp.ndarray)
    assert not isinstance(array, Mine)
    assert made == []
    for array in (xp.empty(3), xp.empty_like([1, 2]), xp.ndarray((2, 2)), xp.empty((2,), order="F")):
        assert type(array) is np.ndarray
        assert made.pop(0) is array
    assert pickle.loads(pickle.dumps(xp.empty((2,), np.int8))).shape == (2,)
    with pytest.raises(AttributeError):
        xp.nothing_of_this_name  # noqa: B018  the attribute access is the test
