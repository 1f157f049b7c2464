"""Exported programs with symbolic sizes and control flow: for several inputs, the bits of torch's own run."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

import torch  # noqa: E402
from torch._higher_order_ops.map import map as torch_map  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.export import Dim  # noqa: E402

import nncdbg  # noqa: E402
from nncdbg.errors import NncdbgError  # noqa: E402


def program_of(module, *arguments, **options):
    """Return the exported program, and the same as a program of nncdbg, through a file."""
    exported = torch.export.export(module, arguments, **options)
    program = nncdbg.load(exported)
    assert nncdbg.Program.parse(program.text()).text() == program.text()
    with TemporaryDirectory() as folder:
        torch.export.save(exported, Path(folder, "program.pt2"))
        read = nncdbg.load(Path(folder, "program.pt2"))
    assert read.graph.inputs == program.graph.inputs
    assert [node.op for node in read.graph.nodes] == [node.op for node in program.graph.nodes]
    assert read.notes == program.notes
    return exported, read


def started(program, *arguments):
    names = [value.name for value in program.graph.inputs]
    return nncdbg.Debugger(program, dict(zip(names, map(np.asarray, arguments), strict=True)))


def check(exported, program, *arguments):
    """Compare the outputs with those of the exported module, bit by bit."""
    expected = torch.utils._pytree.tree_leaves(exported.module()(*arguments))
    debugger = started(program, *arguments)
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    for got, wanted in zip(debugger.outputs.values(), expected, strict=True):
        assert np.array_equal(got, torch.as_tensor(wanted).detach().numpy())


def operations(program):
    return {node.op for graph in program.graphs.values() for node in graph.nodes}


class Sizes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x, y):
        n = x.shape[0]
        h = self.fc(x).reshape(n // 2, 2, -1)
        position = torch.arange(n, dtype=torch.float32)
        z = torch.cat([x, y]).sum(0) / (n * 3 + 1)
        return h * position[: n // 2, None, None] * (n * 0.1) + z, x[: n - 1], n * 2


def test_symbolic_sizes_and_their_arithmetic_are_statements():
    pairs = [(torch.randn(n, 4), torch.randn(k, 4)) for n, k in ((8, 8), (4, 3), (64, 100))]
    sizes = {"x": {0: 2 * Dim("m", min=2, max=32)}, "y": {0: Dim("k", min=2)}}
    exported, program = program_of(Sizes(), *pairs[0], dynamic_shapes=sizes)
    text = program.text()
    assert 'torch.number(%sym_size_int, 2, function="floordiv")' in text
    assert 'shape=["?",2,-1]' in text
    assert program.notes == (
        "the program was exported for sizes 2*s2 from 4 to 64",
    ) or "from 4 to 64" in str(program.notes)
    for pair in pairs:
        check(exported, program, *pair)


class Number(torch.nn.Module):
    def forward(self, x, n: int):
        return x.new_zeros(n + 1).add_(x.sum()) * n


def test_an_integer_argument_is_an_input():
    exported, program = program_of(Number(), torch.randn(3), 5, dynamic_shapes={"x": None, "n": Dim.DYNAMIC})
    assert [str(value.type) for value in program.graph.inputs] == ["f32[3]", "i64[]"]
    check(exported, program, torch.randn(3), 7)


class Read(torch.nn.Module):
    def forward(self, x):
        n = x.max().item()
        torch._check(n >= 0)
        torch._check(n < 10)
        return torch.zeros(n) + 1, n * 2, x.nonzero()


def test_sizes_that_depend_on_data_are_asserted():
    exported, program = program_of(Read(), torch.tensor([3, 4]))
    for given in ([3, 4], [0, 4], [0, 0]):
        check(exported, program, torch.tensor(given))
    stop = started(program, torch.tensor([3, 11])).run()
    assert stop.reason == "exception"
    assert "u0 <= 9" in str(stop.error)


class Nested(torch.nn.Module):
    def forward(self, x):
        def larger(x):
            return torch.cond(x.max() > 2, lambda x: x * 2, lambda x: x * 3, (x,))

        def sums(x):
            return x.cumsum(0)

        by_size = torch.cond(x.shape[0] > 4, larger, sums, (x,))
        return by_size, torch.cond(x.sum() > 0, larger, sums, (x,)) + by_size


def test_cond_is_an_if():
    exported, program = program_of(Nested(), torch.randn(3), dynamic_shapes={"x": {0: Dim("n", min=2)}})
    for given in (torch.randn(3), torch.full((7,), 3.0), torch.full((7,), 0.3), torch.full((7,), -0.3)):
        check(exported, program, given)


class Loop(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(3))

    def forward(self, x):
        def test(i, x):
            return (i < 5) & (x.abs().sum() < 100)

        def body(i, x):
            return i + 1, x * self.w + i

        return while_loop(test, body, (torch.tensor(0), x))


def test_while_loop_is_a_loop_that_tests_first():
    torch.manual_seed(0)
    exported, program = program_of(Loop(), torch.randn(3))
    for given in (torch.randn(3), torch.full((3,), 90.0), torch.full((3,), 20.0)):
        check(exported, program, given)
    debugger = started(program, torch.randn(3))
    debugger.break_at(op="aten.mul.Tensor", hits=3)
    assert debugger.run().reason == "breakpoint"
    assert debugger.frames[0].iteration == 2
    assert "while @while_loop (" in program.text()
    debugger.step_back()


class Sequences(torch.nn.Module):
    def forward(self, x, y):
        carried, products = scan(lambda c, a: (c + a, c * a), y, x)
        return torch_map(lambda a, b: a.sin() + b, x, y), carried, products


def test_map_and_scan_are_loops_over_slices():
    exported, program = program_of(Sequences(), torch.randn(4, 3), torch.randn(3))
    check(exported, program, torch.randn(4, 3), torch.randn(3))
    assert "while" in operations(program)


class Modes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.fc(x)
        with torch.no_grad():
            z = self.fc(x) * 2
        return y.float() + z


def test_blocks_with_autocast_and_without_gradients_are_statements():
    exported, program = program_of(Modes(), torch.randn(3, 4))
    assert "aten._to_copy.default" in operations(program)
    check(exported, program, torch.randn(3, 4))


class WithoutGradients(torch.nn.Module):
    def forward(self, x):
        with torch.no_grad():
            z = x * 2
        return z + x


def test_a_block_without_gradients_keeps_its_place():
    exported, program = program_of(WithoutGradients(), torch.randn(3))
    assert [node.op for node in program.graph.nodes] == ["aten.mul.Tensor", "aten.add.Tensor"]
    check(exported, program, torch.randn(3))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ('torch.number(%x, function="hypot")', "'hypot' is not a function of numbers"),
        (
            'aten.narrow.default(%x, dim=0, start="?", length=1)',
            "the operator needs 2 operands, one for each",
        ),
        ("aten.relu.default(%x, %x)", "aten.relu.default takes"),
    ],
)
def test_wrong_numbers_in_a_text_are_one_error(statement, message):
    text = f"graph @main(%x: i64[2]) -> (%y) {{\n  %y = {statement}\n  return %y\n}}\n"
    with pytest.raises(NncdbgError, match=message):
        finished(text)


def finished(text):
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": np.array([1, 2])}, backend="torch")
    raise debugger.run().error or AssertionError("no error")
