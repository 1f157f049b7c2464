"""A dispatch mode of nncdbg is entered and left as one of torch's is, in any nesting."""

from contextlib import ExitStack
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils import _python_dispatch as modes  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from nncdbg.engine.ops.aten.internals import DispatchMode, innermost_mode  # noqa: E402


def dispatch(self, func, types, args=(), kwargs=None):
    self.seen.append(str(func))
    return func(*args, **(kwargs or {}))


class Own(DispatchMode):
    seen: list[str] = []
    __torch_dispatch__ = dispatch


class OfTorch(TorchDispatchMode):  # type: ignore[misc]
    seen: list[str] = []
    __torch_dispatch__ = dispatch


class Ignored(OfTorch):
    """A mode that the compiler need not respect."""

    @classmethod
    def ignore_compile_internals(cls):
        return True


def flags():
    """Return the flags that torch has for the modes that are entered now."""
    return {name: value for name, value in vars(modes).items() if name.startswith("_is_in_")}


@pytest.mark.parametrize("outer", [(), (OfTorch,), (Ignored,), (Ignored, OfTorch), (Ignored, Ignored)])
def test_torch_holds_the_same_flags_for_both_kinds_of_modes(outer):
    found = []
    kinds: tuple[Any, Any]
    for kinds in product((Own, OfTorch), (Own, OfTorch)):
        seen = [flags()]
        with ExitStack() as entered:
            for kind in outer:
                entered.enter_context(kind())
            seen.append(flags())
            for kind in kinds:
                mode: Any = kind()
                assert entered.enter_context(mode) is mode
                assert innermost_mode() is mode
                seen.append(flags())
        seen.append(flags())
        assert innermost_mode() is None
        found.append(seen)
    assert flags()
    assert all(each == found[-1] for each in found)


def test_mode_sees_operators_until_a_block_raises():
    mode = Own()
    mode.seen = []
    before = flags()
    for _ in range(2):
        with pytest.raises(TypeError), mode:
            torch.ones("a text")
        torch.zeros(1)
        with mode:
            torch.ones(1)
    assert mode.seen == ["aten.ones.default"] * 2
    assert flags() == before


def test_mode_is_entered_inside_of_itself():
    mode = Own()
    mode.seen = []
    before = flags()
    with mode:
        with mode:
            torch.ones(1)
        torch.zeros(1)
    assert mode.seen == ["aten.ones.default", "aten.ones.default", "aten.zeros.default"]
    assert flags() == before


@pytest.mark.parametrize("kind", [Own, OfTorch])
def test_compiled_function_runs_eagerly_inside(kind):
    ran = []

    def backend(graph, inputs):
        def run(*args):
            ran.append(len(args))
            return graph.forward(*args)

        return run

    torch._dynamo.reset()
    mode = kind()
    mode.seen = []
    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    x = torch.ones(2)
    outside = compiled(x)
    assert ran == [1]
    with mode:
        inside = compiled(x)
    assert mode.seen == ["aten.sin.default", "aten.add.Tensor"]
    assert ran == [1]
    assert torch.equal(inside, outside)
