"""Memory for copies: no two parts overlap, and blocks are used again when no tensor needs them."""

import gc
import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402
from nncdbg.engine.memory.region import huge_pages  # noqa: E402
from nncdbg.torch import storages  # noqa: E402
from nncdbg.torch.storages import CopyMemory  # noqa: E402
from tests.torch.steps import STEPS  # noqa: E402

pytestmark = pytest.mark.skipif(storages._FREE is None, reason="this system cannot take unused pages back")

BLOCK = 1 << 20


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(storages, "_BLOCK", BLOCK)
    monkeypatch.setattr(storages, "_spare", {})


def spare():
    return {size: len(blocks) for size, blocks in storages._spare.items() if blocks}


@given(sizes=st.lists(st.integers(1, 2 * BLOCK), max_size=8))
def test_parts_do_not_overlap(sizes):
    memory = CopyMemory()
    parts = [memory.take(size) for size in sizes]
    for number, part in enumerate(parts):
        part.fill_(number)
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        assert part.numel() == part.untyped_storage().nbytes() == size
        assert part.data_ptr() % storages._ALIGNMENT == 0
        assert part.eq(number).all()


def test_a_block_is_used_again_when_no_tensor_needs_it():
    memory = CopyMemory()
    first, second = memory.take(1000).view(torch.float32), memory.take(1000)
    address = first.data_ptr()
    del memory, second
    assert spare() == {}
    other = CopyMemory().take(1000)
    assert other.data_ptr() != address
    del first
    assert spare() == {BLOCK: 1}
    assert CopyMemory().take(500).data_ptr() == address


def test_a_large_part_has_a_block_of_its_own():
    memory = CopyMemory()
    small = memory.take(10)
    large = memory.take(3 * BLOCK + 1)
    again = memory.take(10)
    assert again.data_ptr() - small.data_ptr() == storages._ALIGNMENT
    del large
    (size,) = spare()
    assert 3 * BLOCK < size <= 3 * BLOCK + mmap.PAGESIZE


def test_only_so_many_bytes_are_kept(monkeypatch):
    monkeypatch.setattr(storages, "_MOST_SPARE", 2 * BLOCK)
    held = [CopyMemory().take(10) for _ in range(5)]
    held.clear()
    assert spare() == {BLOCK: 2}


def test_no_block_is_kept_if_addresses_are_limited(monkeypatch):
    monkeypatch.setattr(storages, "address_space_limit", lambda: 1 << 40)
    part = CopyMemory().take(10)
    del part
    assert spare() == {}


def test_a_part_has_only_its_own_pages_if_a_block_does_not_fit(monkeypatch):
    def limited(size):
        if size >= BLOCK:
            raise OSError("Cannot allocate memory")
        return huge_pages(size)

    monkeypatch.setattr(storages, "huge_pages", limited)
    memory = CopyMemory()
    assert memory.take(BLOCK // 2).fill_(1).sum() == BLOCK // 2
    with pytest.raises(OSError, match="Cannot allocate"):
        memory.take(BLOCK)


def test_a_recorded_step_keeps_its_inputs_while_others_are_recorded(monkeypatch):
    monkeypatch.setattr(storages, "LEAST", 1)
    monkeypatch.setattr(nncdbg.torch.storages, "LEAST", 1)
    training = next(each for each in STEPS if each.name == "mlp").build()
    steps = []
    for _ in range(3):
        with nncdbg.torch.record(training.models, training.optimizers) as step:
            training.run()
        steps.append(step)
    before = [{name: each.copy() for name, each in step.inputs.items()} for step in steps]
    del step
    steps.pop(1)
    before.pop(1)
    gc.collect()
    with nncdbg.torch.record(training.models, training.optimizers):
        training.run()
    for step, inputs in zip(steps, before, strict=True):
        assert all((step.inputs[name] == each).all() for name, each in inputs.items())
