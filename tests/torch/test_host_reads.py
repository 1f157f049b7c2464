"""A number that Python read in the recorded run is compared with the number in each later run."""

import json

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402


def recorded(*numbers, dtype=torch.float32):
    x = torch.tensor(numbers, dtype=dtype)
    with nncdbg.torch.record() as step:
        total = x.sum() * 1
        if total.item():
            total = total + 1
        total * 2
    return step


def messages(debugger):
    debugger.run()
    return debugger.control.messages


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ((0.1, 0.2), torch.float64),
        ((0.1, 0.2), torch.bfloat16),
        ((float("nan"), 1.0), torch.float32),
        ((float("inf"), 1.0), torch.float32),
        ((1 + 2j, 3.5j), torch.complex64),
        ((2**62, 1), torch.int64),
        ((True, False), torch.bool),
    ],
    ids=str,
)
def test_recorded_numbers_are_the_same_when_the_program_runs_again(numbers, dtype):
    step = recorded(*numbers, dtype=dtype)
    assert messages(nncdbg.Debugger(step)) == []
    assert messages(nncdbg.Debugger(nncdbg.parse(str(step.program)), step.inputs, backend="torch")) == []


def test_a_changed_number_is_reported_once_with_statement_and_source_line():
    debugger = nncdbg.Debugger(recorded(1.0, 2.0))
    read = next(node for node in debugger.program.graphs["forward"].nodes if node.op == "torch.read")
    debugger.set_value("input", [5.0, 2.0])
    (said,) = messages(debugger)
    assert read.location is not None
    place = f"{read.location.file}:{read.location.line}"
    assert said.endswith(
        f"Python read 3.0 from %mul at {place} in the recorded run, and would read 7.0 now: "
        "it might take another path"
    )
    line = int(said.split()[1].rstrip(":"))
    assert "torch.read(%mul, value=3.0)" in debugger.program.as_listing().lines[line - 1]
    debugger.step_back()
    assert messages(debugger) == [said]
    debugger.restart()
    assert sum(each == said for each in messages(debugger)) == 1


def test_each_branch_reports_its_own_numbers():
    debugger = nncdbg.Debugger(recorded(1.0, 2.0))
    debugger.set_value("input", [5.0, 2.0])
    debugger.run()
    debugger.restart()
    debugger.control.messages.clear()
    debugger.set_value("input", [6.0, 2.0])
    assert ["8.0" in each for each in messages(debugger)] == [True]


def test_an_edit_after_the_read_reports_it_at_once(tmp_path, command):
    recorded(1.0, 2.0).save(tmp_path / "step")
    typed = "break aten.add.Tensor\ncontinue\nset %sum = 4\nset %mul = 9\ncontinue\n"
    _, out, _ = command("step", typed=typed)
    said = [line for line in out.splitlines() if "might take another path" in line]
    assert [line.split(" now:")[0].rpartition(" ")[2] for line in said] == ["4.0", "9.0"]


def test_the_commands_report_changed_numbers_on_standard_error(tmp_path, command):
    recorded(1.0, 2.0).save(tmp_path / "step")
    other = ("--input", "input=[5.0, 2.0]")
    for arguments in (("run", "step"), ("watch", "step"), ("diff", "step", "step")):
        _, out, err = command(*arguments, "--json", *other)
        assert isinstance(json.loads(out), dict)
        assert "would read 7.0 now" in err
        assert "would read" not in command(*arguments, "--json")[2]
