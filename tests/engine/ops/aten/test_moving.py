"""The declared operators that move elements contain those that torch declares as views."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.engine.ops.aten.influence import MOVED_BY_EXPERIMENT  # noqa: E402
from nncdbg.engine.ops.aten.operators import torch_operator  # noqa: E402
from nncdbg.engine.ops.aten.signatures import signature_of  # noqa: E402

NOT_MOVED = {"real", "imag", "conj", "view_as_real", "view_as_complex", "_nested_view_from_buffer"}
"""Views with elements of another type, and of nested tensors."""


def test_each_view_moves_elements_and_keeps_finite_ones_finite():
    packets = {name: getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)}
    views = {
        signature_of(getattr(packet, overload)).name
        for name, packet in packets.items()
        if hasattr(packet, "overloads") and name not in NOT_MOVED
        for overload in packet.overloads()
        if signature_of(getattr(packet, overload)).moves_only
    }
    assert len(views) > 30
    declared = {name: torch_operator(name) for name in views}
    assert {name for name, op in declared.items() if op.influence is not MOVED_BY_EXPERIMENT} == set()
    assert {name for name, op in declared.items() if not op.keeps_finite} == set()
