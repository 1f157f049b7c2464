"""The states of random generators are read again exactly when they changed."""

import random

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
np = pytest.importorskip("numpy")

from nncdbg.torch import step_state  # noqa: E402
from nncdbg.torch.step_state import RandomState  # noqa: E402

pytestmark = pytest.mark.usefixtures("either_kernels")


def draws():
    """Return numbers from each generator, among them one of a pair."""
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.random(),
        np.random.standard_normal(),
        torch.rand(()).item(),
        torch.randn(()).item(),
    )


CHANGES = {
    "no draw": lambda: None,
    "draw": draws,
    "one of a pair": lambda: (random.gauss(0, 1), np.random.standard_normal(), torch.randn(())),
    "seed": lambda: (random.seed(7), np.random.seed(7), torch.manual_seed(7)),
    "the same seed": lambda: (random.seed(5), np.random.seed(5), torch.manual_seed(5)),
    "624 draws of 32 bits": lambda: (
        random.getrandbits(624 * 32),
        np.random.bytes(624 * 4),
        torch.empty(624, dtype=torch.int32).random_(),
    ),
    "another seed after equal draws": lambda: (random.seed(8), np.random.seed(8), draws()),
}


@pytest.mark.parametrize("second", CHANGES)
@pytest.mark.parametrize("first", CHANGES)
def test_restored_state_draws_the_same_numbers(first, second):
    for generator in (random, np.random):
        generator.seed(5)
    for name in (first, second):
        CHANGES[name]()
        RandomState()
        state = RandomState()
        expected = draws()
        state.restore()
        assert draws() == expected


def test_unchanged_state_is_not_read_again(either_kernels):
    assert step_state._python_address()
    assert step_state._numpy_address(np.random.get_bit_generator())
    random.seed(5)
    np.random.seed(5)
    first = RandomState()
    again = RandomState()
    assert (again.python is first.python, again.numpy is first.numpy) == (True, True)
    random.random()
    drawn = RandomState()
    assert (drawn.python is first.python, drawn.numpy is first.numpy) == (False, True)
    np.random.random()
    assert RandomState().numpy is not first.numpy
    if either_kernels == "library":
        assert drawn.torch is first.torch
        torch.rand(())
        assert RandomState().torch is not first.torch


@pytest.mark.filterwarnings("error")
def test_another_generator_of_numpy_is_read_each_time():
    given = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    try:
        for _ in range(3):
            np.random.random()
            state = RandomState()
            expected = draws()
            state.restore()
            assert draws() == expected
    finally:
        np.random.set_bit_generator(given)
    np.random.seed(5)
    state = RandomState()
    expected = draws()
    state.restore()
    assert draws() == expected
