"""The source of recorded steps from unusual files, without source, and from damaged folders."""

import json
import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.errors import LoadError  # noqa: E402
from nncdbg.ir.source_trace import SourceOrder  # noqa: E402
from nncdbg.opening.folder_writing import write_folder  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.text.file_names import TRACE  # noqa: E402

MODULE = """import torch
def step(x):
    y = x * 2
    sum = y.sin()
    return sum + 1
"""


def recorded(step, *arguments):
    arguments = arguments or (torch.ones(3),)
    with nncdbg.torch.record() as found:
        step(*arguments)
    return found


def trace_of(program):
    trace = program.saved.trace
    assert trace is not None
    return trace


def executed_lines(program):
    """Return (function, line, names) of each execution of a line, innermost call only."""
    trace = trace_of(program)
    found = []
    for number, run in groupby(enumerate(trace.statements), key=lambda pair: pair[1]):
        first, _ = next(run)
        visit = next(trace.stack(number))
        call = trace.calls[visit.call]
        found.append((call.function, visit.line, [*trace.names_of(visit.call, first)]))
    return found


LINES = [("step", 3, ["x"]), ("step", 4, ["x", "y"]), ("step", 5, ["x", "y", "sum"])]


def compiled(file, text=MODULE):
    names: dict[str, object] = {}
    exec(compile(text, file, "exec"), names)
    return names["step"]


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(MODULE)
    return compiled(str(tmp_path / "train.py"))


def test_file_that_is_gone_or_changed_after_the_recording_has_the_text_of_then(script):
    first, second = recorded(script), recorded(script)
    Path("train.py").write_text("# new\n" + MODULE)
    assert first.program.saved.sources["train.py"].lines["3"] == "    y = x * 2"
    Path("train.py").unlink()
    second.save("step")
    program = nncdbg.load("step")
    assert program.saved.sources["train.py"].lines["4"] == "    sum = y.sin()"
    assert executed_lines(program) == LINES


@pytest.mark.parametrize("file", ["<string>", "<stdin>", "<ipython-input-1-abc>", "missing.py", ""])
def test_code_without_a_file_has_lines_and_names(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = recorded(compiled(file))
    assert executed_lines(step.program) == LINES
    assert not [each for each in step.program.saved.sources if not each.endswith(Path(__file__).name)]
    step.save("step")
    assert executed_lines(nncdbg.load("step")) == LINES


def test_module_of_an_archive_has_its_text(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "library.zip", "w") as archive:
        archive.writestr("zipped_training.py", MODULE)
    monkeypatch.syspath_prepend(str(tmp_path / "library.zip"))
    zipped = __import__("zipped_training")
    program = recorded(zipped.step).program
    assert executed_lines(program) == LINES
    sources = {Path(file).name: text for file, text in program.saved.sources.items()}
    assert sources["zipped_training.py"].lines["3"] == "    y = x * 2"


def test_files_that_are_not_utf_8(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    latin = "# coding: latin-1\n" + MODULE.replace("y", "\N{LATIN SMALL LETTER E WITH ACUTE}")
    Path("latin.py").write_bytes(latin.encode("latin-1"))
    Path("broken.py").write_bytes(MODULE.encode() + b"# \xff\n")
    step = recorded(compiled("latin.py", latin.encode("latin-1")))
    assert step.program.saved.sources["latin.py"].lines["4"] == "    é = x * 2"
    assert executed_lines(step.program)[1][2] == ["x", "é"]
    step.save("step")
    assert executed_lines(nncdbg.load("step"))[1][2] == ["x", "é"]
    step = recorded(compiled("broken.py"))
    assert "broken.py" not in step.program.saved.sources
    assert executed_lines(step.program) == LINES


def test_file_and_keys_whose_names_are_not_utf_8(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = compiled("tr\udcffain.py", MODULE.replace("x * 2", 'x["\\udcff"] * x["a\\"b"] * x[1]'))
    found = recorded(step, {"\udcff": torch.ones(2), 'a"b': torch.ones(2), 1: torch.ones(2)})
    found.save("step")
    program = nncdbg.load("step")
    assert executed_lines(program)[-1][2] == ['x["a\\"b"]', "x[1]", "y", "sum"]
    assert trace_of(program).calls[-1].file.encode("utf-8", "surrogateescape") == b"tr\xffain.py"


@pytest.mark.parametrize("way", ["-c", "-"])
def test_step_of_a_command_line_or_of_standard_input(way, tmp_path):
    text = f"""{MODULE}
import nncdbg.torch
x = torch.ones(3)
with nncdbg.torch.record() as found:
    step(x)
found.save("step")
"""
    command = [sys.executable, "-c", text] if way == "-c" else [sys.executable, "-"]
    environment = {"PYTHONPATH": str(Path(nncdbg.__file__).parents[1]), "PATH": ""}
    given = text if way == "-" else None
    run = subprocess.run(
        command, cwd=tmp_path, input=given, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    program = nncdbg.load(tmp_path / "step")
    assert [each[:2] for each in executed_lines(program)][-3:] == [each[:2] for each in LINES]
    stack = [*trace_of(program).stack(trace_of(program).statements[-1])]
    assert trace_of(program).calls[stack[-1].call].function == "<module>"


# -- without source ------------------------------------------------------------------------


def test_save_without_source_keeps_only_digests(script):
    step = recorded(script)
    step.save("whole")
    step.save("step", source=False)
    program = nncdbg.load("step")
    assert program.saved.trace is None
    assert not Path("step", TRACE).exists()
    whole = nncdbg.load("whole").saved.sources["train.py"]
    assert program.saved.sources["train.py"] == replace(whole, lines={})
    assert "sin()" not in Path("step/nncdbg.json").read_text()
    # The file itself is shown while it has this digest.
    listing = nncdbg.execute(nncdbg.Debugger("step"), "list train.py:4")
    assert "sum = y.sin()" in listing
    Path("train.py").write_text("# new\n" + MODULE)
    assert "sum" not in nncdbg.execute(nncdbg.Debugger("step"), "list train.py:4")


SCRIPT = """import torch
private_model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(private_model.parameters(), 0.1)
for secret in torch.ones(2, 3, 2):
    loss = private_model(secret).mean()  # confidential
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("arguments", [["--no-source", "train.py"], ["train.py", "--no-source"]])
def test_command_without_source(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert main(["record", *arguments]) == 0
    written = b"".join(each.read_bytes() for each in Path("step1").iterdir())
    assert b"secret" not in written
    assert b"confidential" not in written
    assert len(nncdbg.load("step1").saved.sources["train.py"].digest) == 64
    assert main(["record", "-o", "whole", "train.py"]) == 0
    written = b"".join(each.read_bytes() for each in Path("whole").iterdir())
    assert b"secret" in written


# -- folders -------------------------------------------------------------------------------


def test_step_of_an_earlier_version_has_no_trace():
    program = nncdbg.load(Path(__file__).parent / "golden" / "recorded_step")
    assert program.saved.trace is None


def test_edited_program_has_no_trace(script):
    recorded(script).save("step")
    program = nncdbg.load("step")
    text = program.text().replace("aten.sin.default", "aten.cos.default")
    same = replace(nncdbg.parse(text), saved=program.saved, readers=program.readers)
    write_folder("same", same, program.saved.inputs)
    assert executed_lines(nncdbg.load("same")) == LINES
    lines = [line for line in program.text().splitlines() if "aten.mul" not in line]
    shorter = nncdbg.parse("\n".join(lines).replace("%mul", "%input"))
    write_folder("shorter", replace(shorter, saved=program.saved), program.saved.inputs)
    assert nncdbg.load("shorter").saved.trace is None


DAMAGES = [
    "",
    "{",
    "[]",
    "null",
    '{"calls": 1}',
    '{"statements": [0, 0, 0]}',
    '{"calls": [{"file": 1, "function": ""}]}',
    "[" * 100_000,
    "\udcff",
    '{"statements": [1e400]}',
]


@pytest.mark.parametrize("text", DAMAGES)
def test_damaged_trace_is_an_error(text, script):
    recorded(script).save("step")
    Path("step", TRACE).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(LoadError, match=r"source\.json is damaged"):
        nncdbg.load("step")


def test_random_damages_are_errors_or_harmless(script):
    recorded(script).save("step")
    whole = json.loads(Path("step", TRACE).read_text())
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = json.loads(json.dumps(whole))
        part = damaged[draw.choice([key for key in damaged if isinstance(damaged[key], list)])]
        position = draw.randrange(len(part))
        number = draw.choice([-2, -1, 0, 1, 2, 3, 10**30])
        if isinstance(part[position], dict):
            part[position][draw.choice([*part[position]])] = draw.choice([number, "", "%mul", None])
        elif draw.random() < 0.5:
            part[position] = number
        else:
            del part[position]
        Path("step", TRACE).write_text(json.dumps(damaged))
        try:
            trace = trace_of(nncdbg.load("step"))
        except LoadError:
            refused += 1
            continue
        order = SourceOrder(nncdbg.load("step"), trace)
        assert len(order.places) == len(trace.statements)
        for first, visit in enumerate(trace.statements):
            trace.file(visit)
            for each in trace.stack(visit):
                trace.names_of(each.call, first)
    assert 100 < refused < 300
