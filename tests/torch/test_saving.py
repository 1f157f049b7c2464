"""Save a recorded step as a program folder, open it again, and pass steps to functions that take programs."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.frontends.program_folder import open_program_folder  # noqa: E402
from nncdbg.engine.ops.aten.arrays import host_array  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def training(dtype=torch.float32):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(), torch.nn.Linear(7, 2)).to(dtype)
    return model, torch.optim.AdamW(model.parameters())


def recorded(model, optimizer, scale=1.0):
    batch = torch.randn(4, 5, dtype=next(model.parameters()).dtype) * scale
    with nncdbg.torch.record(model, optimizer) as step:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_saved_step_runs_to_the_bits_of_the_training(tmp_path, dtype):
    model, optimizer = training(dtype)
    step = recorded(model, optimizer)
    step.save(tmp_path / "step")

    outputs = nncdbg.run(tmp_path / "step")
    for name, parameter in model.named_parameters():
        assert outputs[step.changed[name]].tobytes() == host_array(parameter).tobytes(), name


def test_a_saved_step_has_the_program_its_inputs_title_and_versions(tmp_path):
    step = recorded(*training())
    step.save(tmp_path / "step", notes=["a note of the user"])
    folder = open_program_folder(tmp_path / "step")
    assert folder.program == step.program
    states = nncdbg.Debugger(folder.program).states
    assert folder.inputs.keys().isdisjoint(states)
    assert {*folder.inputs, *states} == step.inputs.keys()
    assert all(np.array_equal({**states, **folder.inputs}[name], each) for name, each in step.inputs.items())
    assert folder.sentence() == "recorded step of test_saving.py"
    assert "a note of the user" in folder.program.notes
    assert folder.document.versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]


def test_a_folder_of_another_torch_opens_with_a_note(tmp_path):
    recorded(*training()).save(tmp_path / "step")
    path = tmp_path / "step" / "nncdbg.json"
    document = json.loads(path.read_text())
    document["versions"]["torch"] = "2.11.0"
    path.write_text(json.dumps(document))
    installed = torch.__version__.partition("+")[0]
    (note,) = (each for each in open_program_folder(tmp_path / "step").program.notes if "torch" in each)
    assert note.startswith("written with torch 2.11.0; installed: torch ")
    assert installed in note
    assert nncdbg.run(tmp_path / "step")


def test_a_step_before_the_end_of_its_block_is_not_saved(tmp_path):
    with nncdbg.torch.record() as step, pytest.raises(UsageError, match="not complete"):
        step.save(tmp_path / "step")
    assert not (tmp_path / "step").exists()


def test_a_folder_of_the_user_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("work")
    with pytest.raises(UsageError, match="not empty"):
        recorded(*training()).save(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "work"


def test_functions_that_take_a_program_take_a_step():
    model, optimizer = training()
    first, second = recorded(model, optimizer), recorded(model, optimizer, scale=np.inf)
    assert nncdbg.load(first) is first.program
    debugger = nncdbg.Debugger(first)
    assert debugger.backend.name == "torch"
    assert debugger.run().reason == "end"

    assert nncdbg.watch(first).findings == []
    report = nncdbg.watch(second)
    assert report.findings

    same = nncdbg.diff(first, first)
    assert same.equal
    different = nncdbg.diff(first, second)
    assert not different.equal


def test_inputs_that_are_given_replace_those_of_the_step():
    step = recorded(*training())
    debugger = nncdbg.Debugger(step, {"input": np.zeros((4, 5), np.float32)})
    assert not debugger.inputs["input"].any()
    assert np.array_equal(debugger.states["0.weight"], step.inputs["0.weight"])


def test_a_state_that_is_given_replaces_its_data():
    step = recorded(*training())
    debugger = nncdbg.Debugger(step, {"%0.weight": "zeros"})
    assert not debugger.states["0.weight"].any()
    assert np.array_equal(debugger.states["0.bias"], step.inputs["0.bias"])
