"""Nothing of a training is kept when a block of nncdbg ends: memory becomes free as without it."""

import gc
import weakref
from contextlib import contextmanager, nullcontext

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402
from nncdbg.torch import recording  # noqa: E402


@contextmanager
def recorded_flight(model, optimizer, folder):
    with nncdbg.torch.flight_recorder(model, optimizer, path=folder / "run.nncdbg", keep=1):
        yield


def watched(tier, *, named):
    def block(model, optimizer, folder):
        objects = (model, optimizer) if named else ()
        return nncdbg.torch.watch(*objects, tier=tier)

    return block


TIERS = ("guard", "hooks", "native", "live")

BLOCKS = {
    "nothing": lambda model, optimizer, folder: nullcontext(),
    "record": lambda model, optimizer, folder: nncdbg.torch.record(model, optimizer),
    "flight_recorder": recorded_flight,
    **{f"watch, {tier}": watched(tier, named=True) for tier in TIERS},
    **{f"watch of all, {tier}": watched(tier, named=False) for tier in TIERS},
}


def trained(block, folder):
    """Train a model in a block, drop it, and return weak references to its parts and its gradients."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with block(model, optimizer, folder):
        for _ in range(1 if block is BLOCKS["record"] else 3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    tensors = [*model.parameters(), *model.buffers(), *(each.grad for each in model.parameters())]
    moments = [each["exp_avg"] for each in optimizer.state.values()]
    return [*map(weakref.ref, (model, *model, optimizer, *tensors, *moments))]


@pytest.mark.parametrize("name", BLOCKS)
def test_objects_of_a_training_are_gone_without_a_collection(name, tmp_path):
    trained(
        BLOCKS[name], tmp_path
    )  # The first update of a process imports modules, which leaves some behind.
    (tmp_path / "again").mkdir()
    gc.collect()
    gc.disable()
    try:
        kept = trained(BLOCKS[name], tmp_path / "again")
        assert [each() for each in kept if each() is not None] == []
    finally:
        gc.enable()


def test_a_recorder_and_its_copies_are_gone_without_a_collection():
    gc.collect()
    before = {*recording._RECORDERS}
    gc.disable()
    try:
        trained(BLOCKS["record"], None)
        assert {*recording._RECORDERS} == before
    finally:
        gc.enable()


@pytest.mark.parametrize("tier", ["guard", "hooks", "native"])
def test_steps_under_a_watch_leave_no_cycles(tier):
    """Otherwise the collector runs more often than in the training alone, and finds more each time."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    with nncdbg.torch.watch(model, optimizer, tier=tier):
        steps(3)
        gc.collect()
        gc.disable()
        try:
            steps(5)
            assert gc.collect() == 0
        finally:
            gc.enable()
