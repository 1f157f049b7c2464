"""Statistics and checks of torch's tensors, which are inspected in place, and change no bit."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.backends.torch import Torch  # noqa: E402
from nncdbg.engine.execution.findings import Finding  # noqa: E402
from nncdbg.engine.observers.device_observation import DeviceObserver, DeviceStatisticsLog  # noqa: E402
from nncdbg.engine.ops.aten.arrays import host_array, host_memory  # noqa: E402
from nncdbg.stats import prepare, summarize  # noqa: E402
from nncdbg.stats.inspection import Flag, row_of  # noqa: E402
from tests.torch.steps import STEPS  # noqa: E402

BOTH = int(Flag.NAN | Flag.INF)

GRID = torch.arange(5040, dtype=torch.float32).reshape(7, 8, 9, 10) - 99.5

LAYOUTS = {
    "contiguous": GRID,
    "transposed": GRID[0, 0].t(),
    "permuted": GRID.permute(2, 0, 3, 1),
    "channels last": GRID.contiguous(memory_format=torch.channels_last),
    "slice": GRID[:, 1:3],
    "every second": GRID[..., ::2],
    "expanded": GRID[:1].expand(50, 8, 9, 10),
    "one repeated": torch.tensor(2.5).expand(600),
    "overlapping": GRID.as_strided((500, 4), (1, 1)),
    "no axes": torch.tensor(2.5),
    "no elements": torch.empty(0, 3),
    "gap of one row": GRID.as_strided((1, 10), (720, 1)),
    "negated view": torch.imag(torch.complex(GRID, GRID).conj()),
    "bf16": GRID.to(torch.bfloat16),
    "f16": GRID.half(),
    "f64": GRID.double(),
    "i64": GRID.long(),
    "u8": GRID.to(torch.uint8),
    "bool": GRID > 0,
    "not finite": torch.where(GRID > 4900, torch.nan, torch.where(GRID < -90, -torch.inf, GRID)),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    prepare(wait=True)
    yield
    torch.set_num_threads(before)


def observer(statistics=True, watched=BOTH):
    found: list[Finding] = []
    backend = Torch()
    log = DeviceStatisticsLog(backend) if statistics else None
    made = DeviceObserver(backend, found.append, log)
    made.watched = watched
    return made, found


def observe(made, result):
    """Let the observer inspect a result of a statement."""
    return made.wrap(SimpleNamespace(several=False, views=False), lambda: result)()


@pytest.mark.parametrize("name", LAYOUTS)
def test_statistics_equal_those_of_the_host_array(name):
    made, found = observer()
    tensor = LAYOUTS[name]
    assert observe(made, tensor) is tensor
    summary = summarize(host_array(tensor).copy())
    np.testing.assert_allclose(made.log.row_of(tensor), row_of(summary), rtol=1e-6, equal_nan=True)
    kinds = [kind for kind, count in (("nan", summary.nan), ("inf", summary.neginf)) if count]
    assert [finding.kind for finding in found] == kinds


@pytest.mark.parametrize("name", LAYOUTS)
def test_check_without_statistics_finds_the_same(name):
    made, found = observer(statistics=False)
    observe(made, LAYOUTS[name])
    assert [finding.kind for finding in found] == (["nan", "inf"] if name == "not finite" else [])


VIEWS = """
graph @main(%x: f32[300]) -> (%h) {
  %l = aten.log.default(%x)
  %v = aten.view.default(%l, size=[3,100])
  %u = aten._unsafe_view.default(%v, size=[100,3])
  %t = torch.view(%u, size=[300], stride=[1], offset=0)
  %i = aten.view.dtype(%t, dtype="i32")
  %h = aten._to_copy.default(%t, dtype="f16")
  return %h
}
"""


@pytest.mark.parametrize("statistics", [True, False])
def test_views_are_not_inspected_and_have_statistics(statistics):
    debugger = nncdbg.Debugger(
        nncdbg.parse(VIEWS), {"x": np.full(300, 5, np.float32)}, backend="torch", statistics=statistics
    )
    debugger.catch("nan")
    debugger.run()
    log = debugger.observers.log
    assert (log.positions.written if log is not None else 3) == 3, "log, view.dtype and _to_copy"
    for name in ("v", "u", "t"):
        assert debugger.stats(name).mean == pytest.approx(np.log(5))


def test_conversion_that_overflows_is_the_origin_of_its_inf():
    debugger = nncdbg.Debugger(
        nncdbg.parse(VIEWS.replace("log.default", "neg.default")),
        {"x": np.full(300, 1e30, np.float32)},
        backend="torch",
    )
    debugger.catch("inf")
    assert "%h" in str(debugger.run())


def test_memory_that_is_used_again_is_inspected_again():
    made, found = observer()
    memory = torch.ones(1000)
    first = memory.view(-1)
    observe(made, first)
    del first  # its owner may change the memory now
    memory.fill_(torch.nan)
    second = memory.view(-1)
    observe(made, second)
    assert [finding.kind for finding in found] == ["nan"]
    assert made.log.row_of(second)[4] == 1000


def test_a_result_that_is_no_tensor_is_ignored():
    made, found = observer()
    for result in (None, "text", [torch.tensor(torch.nan)]):
        observe(made, result)
    assert found == []


def test_memory_has_an_address_only_without_gaps():
    direct = {
        "contiguous",
        "transposed",
        "permuted",
        "channels last",
        "no axes",
        "gap of one row",
        "not finite",
    }
    direct |= {"bf16", "f16", "f64", "i64", "u8", "bool"}
    assert {name for name, tensor in LAYOUTS.items() if (host_memory(tensor) or [0])[0]} == direct
    assert host_memory(torch.empty(3, device="meta")) is None
    assert host_memory(torch.eye(3).to_sparse()) is None


def test_catch_stops_at_the_operator_that_makes_a_nan():
    text = """
graph @main(%x: f32[300]) -> (%s) {
  %m = aten.neg.default(%x)
  %v = aten.view.default(%m, size=[3,100])
  %l = aten.log.default(%v)
  %t = aten.transpose.int(%l, dim0=0, dim1=1)
  %s = aten.sum.default(%t)
  return %s
}
"""
    for statistics in (True, False):
        debugger = nncdbg.Debugger(
            nncdbg.parse(text), {"x": np.ones(300, np.float32)}, backend="torch", statistics=statistics
        )
        debugger.catch("nan", "inf")
        stop = debugger.run()
        assert "%l" in str(stop), stop
        assert "first NaN" in str(stop), stop
        assert debugger.run().reason == "end"


@pytest.mark.parametrize(
    "step",
    [step for step in STEPS if not step.skip_reason and not step.heavy][::11],
    ids=lambda step: step.name,
)
def test_observing_changes_no_bit_of_a_training_step(step):
    training = step.build()
    with nncdbg.torch.record(training.models, training.optimizers) as recorded:
        training.run()
    outputs = []
    for statistics, kinds in ((False, ()), (True, ()), (False, ("nan", "inf")), (True, ("nan", "inf"))):
        debugger = nncdbg.Debugger(recorded.program, recorded.inputs, backend="torch", statistics=statistics)
        debugger.catch(*kinds)
        assert debugger.run(heed=False).reason == "end"
        outputs.append(dict(debugger.outputs or {}))
    assert outputs[0]
    for other in outputs[1:]:
        for name, value in outputs[0].items():
            assert value.tobytes() == other[name].tobytes(), name
