"""The arena's free list against a simple model of the allocated bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.memory.blocks import Heap, MemoryBlock, Owner
from nncdbg.engine.memory.buffers import GUARD, span_of

NO_CODE: Any = None


def owner(value: str) -> Owner:
    return Owner(value, Statement(NO_CODE, 0))


def taken(heap: Heap, size: int, value: str = "v") -> MemoryBlock:
    return heap.take(span_of(size), size, owner(value))


def extent(block: MemoryBlock) -> range:
    return range(block.start, block.start + block.span)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5000)), max_size=60))
def test_live_blocks_never_overlap_and_all_bytes_are_freed(requests: list[tuple[bool, int]]) -> None:
    heap = Heap()
    allocated: list[MemoryBlock] = []
    for is_free, number in requests:
        if is_free and allocated:
            heap.free(allocated.pop(number % len(allocated)), Statement(NO_CODE, number))
        else:
            allocated.append(taken(heap, number))
        assert heap.live_bytes == sum(block.span for block in allocated)
        ordered = sorted(allocated, key=lambda block: (block.number, block.start))
        for before, after in zip(ordered, ordered[1:], strict=False):
            assert before.number < after.number or before.start + before.span <= after.start
        for block in allocated:
            assert block.start % 64 == 0
            assert block.start >= GUARD
            assert block.span >= block.size + GUARD
            assert block.start + block.span <= len(block.segment)
    for block in allocated:
        heap.free(block, Statement(NO_CODE, 0))
    assert heap.live_bytes == 0
    # After all adjacent holes are merged, the first segment is one hole again.
    assert len([hole for hole in heap._holes if hole.number == 0]) == min(1, heap.peak_bytes)


def test_the_smallest_hole_that_fits_is_used() -> None:
    heap = Heap()
    large, _, small, _ = (taken(heap, size) for size in (1000, 64, 200, 64))
    heap.free(large, Statement(NO_CODE, 1))
    heap.free(small, Statement(NO_CODE, 2))
    assert taken(heap, 150).start == small.start
    assert taken(heap, 900).start == large.start


def test_adjacent_holes_merge_and_freed_blocks_store_their_successor() -> None:
    heap = Heap()
    first, second, third, _ = (taken(heap, 100, name) for name in "abcd")
    for block in (first, third, second):
        heap.free(block, Statement(NO_CODE, 7))
    assert first.successor is None
    joined = taken(heap, 500, "joined")
    assert joined.start == first.start
    assert [block.successor and block.successor.value for block in (first, second, third)] == ["joined"] * 3


def test_only_blocks_with_reused_bytes_have_a_successor() -> None:
    heap = Heap()
    first, second, _ = (taken(heap, 100, name) for name in "abc")
    heap.free(first, Statement(NO_CODE, 1))
    heap.free(second, Statement(NO_CODE, 2))
    taken(heap, 100, "new")
    assert first.successor == owner_of("new", first)
    assert second.successor is None


def owner_of(value: str, block: MemoryBlock) -> Owner:
    assert block.successor is not None
    return Owner(value, block.successor.statement)
