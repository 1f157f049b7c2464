"""Programs that torch.export saved: the same results as in eager mode, modules as layers, clear refusals."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

import torch  # noqa: E402
import torch.nn.attention.flex_attention  # noqa: E402

import nncdbg  # noqa: E402
from nncdbg.errors import GraphError, LoadError  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return torch.relu(self.norm(self.fc(x)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Block()
        self.second = Block()
        self.shift = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x, scale=None):
        h = self.second(self.first(x)) + self.shift
        values, _ = h.max(dim=1)
        return {"h": h.log() if scale is None else h * scale, "values": values}


def export(module, *arguments, **options):
    torch.manual_seed(0)
    return torch.export.export(module, arguments, **options)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def example():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def test_a_saved_program_gives_the_results_of_eager_mode(net, example, tmp_path):
    torch.export.save(export(net, example), tmp_path / "net.pt2")
    program = nncdbg.load(tmp_path / "net.pt2")
    assert nncdbg.Program.parse(program.text()) == program
    debugger = nncdbg.Debugger(program)  # the backend and the example inputs come with the program
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    expected = net(example)
    h, values = debugger.outputs.values()
    assert np.array_equal(h, expected["h"].detach().numpy())
    assert np.array_equal(values, expected["values"].detach().numpy())


def test_modules_are_layers_with_their_class_and_the_users_lines(net, example):
    program = nncdbg.load(export(net, example))
    assert list(program.graphs) == ["main", "first", "second"]
    assert program.graphs["first"].comment == "Block"
    location = program.graphs["first"].nodes[0].location
    assert location is not None
    assert location.name == "first.fc"
    assert str(location.file).endswith("test_exported.py")
    assert list(nncdbg.load(export(net, example), flat=True).graphs) == ["main"]


def test_other_inputs_can_be_given(net, example):
    program = nncdbg.load(export(net, example, torch.tensor(2.0)))
    assert [value.name for value in program.graph.inputs] == ["x", "scale"]
    debugger = nncdbg.Debugger(program, {"scale": np.float32(3)})
    debugger.run()
    assert debugger.outputs is not None
    expected = net(example, torch.tensor(3.0))["h"].detach().numpy()
    assert np.array_equal(next(iter(debugger.outputs.values())), expected)


def test_new_values_of_buffers_are_outputs_with_their_names(example):
    norm = torch.nn.BatchNorm1d(4)
    program = nncdbg.load(export(norm, example))
    debugger = nncdbg.Debugger(program)
    debugger.run()
    assert debugger.outputs is not None
    norm(example)
    assert np.array_equal(debugger.outputs["running_mean.1"], norm.running_mean.numpy())
    assert np.array_equal(debugger.outputs["running_var.1"], norm.running_var.numpy())


def test_a_nan_in_an_exported_program_is_found(net, example):
    report = nncdbg.watch(nncdbg.load(export(net, example)), {"x": np.full((3, 4), np.nan, np.float32)})
    assert not report.ok


class DividedBySize(torch.nn.Module):
    def forward(self, x):
        return x / (x.shape[0] - 4)


def test_a_division_by_a_size_has_its_cause():
    size = {0: torch.export.Dim("size", min=2)}
    program = nncdbg.load(export(DividedBySize(), torch.ones(6, 2), dynamic_shapes={"x": size}))
    report = nncdbg.watch(program, {"x": np.ones((4, 2), np.float32)})
    assert report.error is None
    (finding,) = [each for each in report.findings if each.first]
    assert (finding.site.op, finding.cause) == ("aten.div.Tensor", "division by zero")
    assert finding.evidence.startswith("1 / 0 at [0, 0]")


class Branching(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


def test_a_module_that_cannot_be_exported_is_an_error_with_its_line():
    with pytest.raises(LoadError, match="cannot export Branching") as caught:
        nncdbg.load((Branching(), (torch.ones(2),)))
    line = Branching.forward.__code__.co_firstlineno + 1
    assert str(caught.value.source) == f"{__file__}:{line}"


class Flexible(torch.nn.Module):
    def forward(self, x):
        return torch.nn.attention.flex_attention.flex_attention(x, x, x)


def test_an_operation_without_a_statement_is_refused_with_its_line():
    exported = export(Flexible(), torch.randn(1, 2, 16, 8))
    with pytest.raises(GraphError, match="flex_attention = flex_attention: this operation") as caught:
        nncdbg.load(exported)
    assert "test_exported.py:" in str(caught.value.source)
    assert caught.value.hint == "record a run instead: nncdbg.torch.record"


class HalfComplex(torch.nn.Module):
    def forward(self, x):
        return torch.view_as_complex(x).to(torch.complex32)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_dtype_that_a_program_cannot_hold_is_refused_with_its_line():
    with pytest.raises(GraphError, match="a program cannot hold a tensor of complex32") as caught:
        nncdbg.load(export(HalfComplex(), torch.randn(3, 2)))
    assert "test_exported.py:" in str(caught.value.source)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_a_damaged_file_is_one_error(tmp_path, content, caplog):
    path = tmp_path / "damaged.pt2"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"is not an archive of torch\.export\.save") as caught:
        nncdbg.load(path)
    assert "\n" not in caught.value.message
    assert not caplog.records


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(LoadError, match="does not exist"):
        nncdbg.load(tmp_path / "missing.pt2")
