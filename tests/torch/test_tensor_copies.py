"""Copies of tensors give back their bits in any layout, also after a tensor got other memory."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.torch import step_state  # noqa: E402
from nncdbg.torch.step_state import TensorCopies  # noqa: E402
from tests.torch.steps.training import same_bits  # noqa: E402

TENSORS = {
    "contiguous": lambda: torch.randn(4, 6),
    "transposed": lambda: torch.randn(4, 6).T,
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.randn(4, 6)[:, ::2],
    "offset": lambda: torch.randn(4, 6)[2],
    "scalar": lambda: torch.tensor(3),
    "empty": lambda: torch.ones(0, 3),
    "odd bytes": lambda: torch.tensor([True, False, True]),
    "half": lambda: torch.randn(5).half(),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "parameter": lambda: torch.nn.Parameter(torch.randn(4)),
    "f64": lambda: torch.randn(3, dtype=torch.float64),
}


@pytest.fixture(autouse=True, params=["without an operator", "with an operator"])
def _most_bytes_without_an_operator(request, monkeypatch):
    if request.param == "with an operator":
        monkeypatch.setattr(step_state, "_SMALL", -1)


def overwrite(tensors):
    """Change all elements of tensors."""
    with torch.no_grad():
        for each in tensors:
            each.copy_(~each if each.dtype is torch.bool else each + 1)


@pytest.mark.parametrize("left_out", [(), ("with gaps", "conjugated")], ids=["all layouts", "dense"])
def test_restored_tensors_have_the_bits_of_the_last_copy(left_out):
    tensors = [build() for name, build in TENSORS.items() if name not in left_out]
    copies = TensorCopies(tensors)
    for _ in range(2):
        overwrite(tensors)
        copies.update(tensors)
    expected = [each.detach().resolve_conj().clone() for each in tensors]
    versions = [each._version for each in tensors]
    overwrite(tensors)
    changed = [each._version - before for each, before in zip(tensors, versions, strict=True)]
    copies.restore()
    assert all(same_bits(one.resolve_conj(), other) for one, other in zip(tensors, expected, strict=True))
    after = [each._version - before for each, before in zip(tensors, versions, strict=True)]
    assert after == changed  # What autograd saved stays valid.


def test_tensor_with_other_memory_is_copied_from_there():
    tensor, other = torch.zeros(3), torch.zeros(2)
    copies = TensorCopies([tensor, other])
    tensor.data = torch.tensor([1.0, 2.0, 3.0])
    copies.update([tensor, other])
    tensor.zero_()
    copies.restore()
    assert tensor.tolist() == [1, 2, 3]


def test_tensor_that_has_shrunk_in_its_memory_keeps_its_shape():
    tensor = torch.arange(6.0)
    copies = TensorCopies([tensor])
    tensor.resize_(2)
    copies.update([tensor])
    tensor.zero_()
    copies.restore()
    assert tensor.tolist() == [0, 1]


def test_other_tensors_replace_the_first_ones():
    copies = TensorCopies([torch.zeros(3)])
    tensor = torch.ones(3)
    copies.update([tensor])
    tensor.zero_()
    copies.restore()
    assert tensor.tolist() == [1, 1, 1]
