"""The declared operators that move elements contain those that torch declares as views."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.engine.ops.aten.internals import all_operator_names  # noqa: E402
from nncdbg.engine.ops.aten.operators import FACTS, MOVED_BY_EXPERIMENT, torch_operator  # noqa: E402
from nncdbg.engine.ops.aten.signatures import signature_of  # noqa: E402

NOT_MOVED = {
    *("real", "imag", "conj", "mH", "matrix_H", "adjoint", "view_as_real", "view_as_complex"),
    *("values", "indices", "row_indices", "col_indices", "crow_indices", "ccol_indices"),
}
"""Views of complex numbers, and of the parts of sparse tensors.  Operators with a _ are internal."""


def test_each_view_moves_elements_and_keeps_finite_ones_finite():
    operators = {
        name.partition("::")[2].partition(".")[0] for name in all_operator_names() if "aten::" in name
    }
    packets = [getattr(torch.ops.aten, name) for name in operators - NOT_MOVED if not name.startswith("_")]
    views = {
        signature_of(getattr(packet, overload)).name
        for packet in packets
        for overload in packet.overloads()
        if signature_of(getattr(packet, overload)).moves_only
    }
    assert len(views) > 50
    declared = {name: torch_operator(name) for name in views}
    assert {name for name, op in declared.items() if op.influence is not MOVED_BY_EXPERIMENT} == set()
    assert {name for name, op in declared.items() if not op.keeps_finite} == set()


def test_abs_of_finite_complex_numbers_overflows():
    numbers = torch.tensor([3e38 + 3e38j])
    assert torch.isfinite(numbers).all()
    assert torch.isinf(numbers.abs()).all()
    assert not torch_operator("aten.abs.default").keeps_finite


def test_operators_that_the_native_observer_need_not_read_keep_finite_numbers_finite():
    """The observer applies its table to real numbers only, for which `abs` keeps finite numbers finite."""
    unread = {name: facts for name, facts in FACTS.items() if facts.keeps_real_finite or facts.selects}
    assert {name for name, facts in unread.items() if not facts.keeps_finite} == {"abs"}
