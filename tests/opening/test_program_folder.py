"""Program folders: what is written opens with the same bits, everywhere, and damage is explained."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.dtypes import NUMPY, name_of
from nncdbg.engine.frontends.program_folder import open_program_folder
from nncdbg.engine.frontends.tensor_file import STORABLE
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.records import Graph, Program, Value, type_of
from nncdbg.opening import folder_writing
from nncdbg.opening.folder_writing import check_folder, write_folder
from nncdbg.text.file_names import FILES
from tests.laws import examples

STEP = """#nncdbg 1
graph @main(%"fc.weight": f32[2,3], %x: f32[3]) -> (%y: f32[2]) {
  %h: f32[2] = MatMul(%"fc.weight", %x)
  %y: f32[2] = Log(%h)
  return %y
}
"""
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
INPUTS = {"fc.weight": WEIGHT, "x": np.ones(3, np.float32)}

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def step(tmp_path: Path) -> Path:
    write_folder(tmp_path / "step7", nncdbg.parse(STEP), INPUTS, title="recorded step 7 of train.py")
    return tmp_path / "step7"


# -- what is written reads back --------------------------------------------------------------------


def echo(inputs: dict[str, Any]) -> Program:
    """Return a program that returns its inputs."""
    values = tuple(Value(name, type_of(array)) for name, array in inputs.items())
    return Program({"main": Graph("main", values, values, ())}, "main")


def same(a: Any, b: Any) -> bool:
    return bool(a.tobytes() == b.tobytes() and a.dtype == b.dtype and a.shape == b.shape)


def bits(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Return an array with random bits: every NaN, denormals and both zeros can occur."""
    count = int(np.prod(shape)) * dtype.itemsize
    drawn = np.random.default_rng(0).integers(0, 256, count, np.uint8)
    return (drawn & 1 if dtype == np.bool_ else drawn).view(dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(), (0, 4), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", sorted(NUMPY.keys() - {"str", "u4", "i4", "u2", "i2", "f4e2m1fn"}))
def test_each_type_reads_back_bit_exactly(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    inputs = {"x": bits(NUMPY[dtype], shape)}
    write_folder(tmp_path / "f", echo(inputs), inputs)
    opened = open_program_folder(tmp_path / "f")
    assert same(opened.inputs["x"], inputs["x"])
    assert not opened.inputs["x"].flags.writeable
    assert same(nncdbg.Debugger(tmp_path / "f").value("%x"), inputs["x"])


NAMES = [
    "fc.weight",
    "layers.0.attn (1)",
    'a "quoted" \\ name',
    "%x",
    "__metadata__",
    " ",
    "ü\u202e",
    "a\nb",
]


@pytest.mark.parametrize("name", [*NAMES, "\udc80", "if", "0"])
def test_each_name_reads_back(tmp_path: Path, name: str) -> None:
    inputs = {name: WEIGHT, name + "~": WEIGHT + 1}
    write_folder(tmp_path / "f", echo(inputs), inputs)
    opened = open_program_folder(tmp_path / "f")
    assert [*opened.inputs] == [*inputs]
    assert all(same(opened.inputs[each], array) for each, array in inputs.items())
    assert [value.name for value in opened.program.graph.inputs] == [*inputs]


@examples(40)
@given(
    arrays=st.lists(
        st.tuples(
            st.sampled_from(sorted(STORABLE)),
            st.lists(st.integers(0, 3), max_size=3).map(tuple),
        ),
        max_size=6,
    )
)
def test_any_mixture_of_types_and_sizes_reads_back(tmp_path_factory: Any, arrays: Any) -> None:
    inputs = {f"v{i}": bits(NUMPY[dtype], shape) for i, (dtype, shape) in enumerate(arrays)}
    folder = tmp_path_factory.mktemp("mixture") / "f"
    write_folder(folder, echo(inputs), inputs)
    opened = open_program_folder(folder)
    assert all(same(opened.inputs[name], array) for name, array in inputs.items())
    assert [name_of(array.dtype) for array in opened.inputs.values()] == [dtype for dtype, _ in arrays]


def test_two_thousand_inputs_are_one_file_of_mapped_views(tmp_path: Path) -> None:
    inputs = {f"layers.{i}.weight": np.full((i % 7, 3), i, np.float32) for i in range(2000)}
    write_folder(tmp_path / "f", echo(inputs), inputs)
    opened = open_program_folder(tmp_path / "f")
    assert {path.name for path in (tmp_path / "f").iterdir()} <= {*FILES}
    assert all(same(opened.inputs[name], array) for name, array in inputs.items())
    assert not any(array.flags.owndata for array in opened.inputs.values())


def test_the_input_file_is_readable_by_the_safetensors_library(step: Path) -> None:
    from safetensors.numpy import load_file

    read = load_file(step / "inputs.safetensors")
    assert {name: array.tolist() for name, array in read.items()} == {
        name: array.tolist() for name, array in INPUTS.items()
    }


def test_weights_in_other_files_come_along(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    big = np.arange(64, dtype=np.float32)
    (tmp_path / "a").mkdir()
    save_file({"w": big}, tmp_path / "a" / "w.safetensors")
    (tmp_path / "a" / "net.nnc").write_text(
        '#nncdbg 1\nstore "w.safetensors"\ngraph @main(%x: f32[64]) -> (%y) {\n'
        '  %w: f32[64] = data("w")\n  %y = Add(%x, %w)\n  return %y\n}\n'
    )
    write_folder(tmp_path / "f", nncdbg.load(tmp_path / "a" / "net.nnc"), {"x": big})
    (tmp_path / "a" / "w.safetensors").unlink()
    assert same(nncdbg.run(tmp_path / "f")["y"], big + big)


def test_a_sequence_and_an_absent_optional_read_back(tmp_path: Path) -> None:
    program = nncdbg.parse(
        "#nncdbg 1\ngraph @main(%s: seq(f32[3]), %o: opt(f32[2])) -> (%n) {\n"
        "  %n = SequenceLength(%s)\n  return %n\n}\n"
    )
    write_folder(tmp_path / "f", program, {"s": [WEIGHT[0], WEIGHT[1]], "o": None})
    assert nncdbg.run(tmp_path / "f")["n"] == 2
    assert open_program_folder(tmp_path / "f").inputs["o"] is None


# -- how it opens ----------------------------------------------------------------------------------


def test_it_opens_on_entry_with_its_title_and_notes(step: Path, command: Command) -> None:
    write_folder(step, nncdbg.parse(STEP), INPUTS, title="recorded step 8", notes=["dropout is replayed"])
    code, out, err = command(str(step), typed="next\np %h\nq\n")
    assert code == 0
    assert out.splitlines()[0] == "recorded step 8"
    assert "-> " in out.split("2 statements in 1 graph")[1]
    assert err == "note: dropout is replayed\n"
    assert "12" in out
    debugger = nncdbg.Debugger(step)
    assert (debugger.stop.reason, [str(note) for note in debugger.notes]) == (
        "entry",
        ["dropout is replayed"],
    )


def test_each_command_uses_the_saved_inputs(step: Path, command: Command) -> None:
    for line in (["run", str(step), "--json"], ["watch", str(step), "--json"], ["print", str(step)]):
        code, out, err = command(*line)
        assert (code, err.count("note:")) == (0, 0), line
    assert json.loads(command("run", str(step), "--json")[1])["outputs"][0]["stats"]["max"] == pytest.approx(
        np.log(12.0)
    )


def test_a_given_input_replaces_the_saved_one(step: Path, command: Command) -> None:
    code, out, _ = command("watch", str(step), "--input", "x=zeros", "--json")
    finding = json.loads(out)["findings"][0]
    assert (code, finding["op"], finding["kind"]) == (1, "Log", "inf")
    for name in ("x", "%x"):
        report = nncdbg.watch(step, {name: np.zeros(3, np.float32)})
        assert [(each.kind, each.op) for each in report.findings if each.first] == [("inf", "Log")]
    assert nncdbg.watch(step).ok


def test_it_can_be_reduced(tmp_path: Path, command: Command) -> None:
    write_folder(tmp_path / "f", nncdbg.parse(STEP), {**INPUTS, "x": np.zeros(3, np.float32)})
    code, out, err = command("reduce", str(tmp_path / "f"), "-o", str(tmp_path / "small"))
    assert code == 0, err
    assert open_program_folder(tmp_path / "small").at_finding
    assert "Log" in out
    assert not (tmp_path / "small" / "data.safetensors").exists()
    nncdbg.reduce(tmp_path / "f", folder=tmp_path / "again")
    assert open_program_folder(tmp_path / "again").statements == 0


def test_two_folders_are_compared_with_their_own_inputs(tmp_path: Path, command: Command) -> None:
    for name, scale in (("a", 1), ("b", 2), ("c", 1)):
        x = np.full(3, scale, np.float32)
        write_folder(tmp_path / name, nncdbg.parse(STEP), {**INPUTS, "x": x})
    a, b, c = (str(tmp_path / name) for name in "abc")
    code, out, _ = command("diff", a, b, "--json")
    assert code == 1
    assert f"side B has the inputs saved in {b}" in json.loads(out)["notes"]
    assert command("diff", a, c)[0] == 0
    assert command("diff", a, b, "--input", "x=ones")[0] == 0
    assert not nncdbg.diff(a, b).equal
    assert nncdbg.diff(a, c).equal
    assert nncdbg.diff(a, b, {"x": np.ones(3, np.float32)}).equal


def test_a_model_beside_a_folder_gets_the_inputs_of_the_folder(step: Path, command: Command) -> None:
    model = step.parent / "net.nnc"
    model.write_text(STEP)
    assert command("diff", str(step), str(model))[0] == 0
    assert nncdbg.diff(step, model).equal


def test_the_saved_backend_runs_it_unless_another_is_given(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("onnxruntime", reason="needs a second backend")
    write_folder(tmp_path / "f", nncdbg.parse(STEP), INPUTS, settings={"backend": "onnxruntime"})
    folder = str(tmp_path / "f")
    assert nncdbg.Debugger(folder).backend.name == "onnxruntime"
    assert nncdbg.Debugger(folder, backend="numpy").backend.name == "numpy"
    assert nncdbg.watch(folder).ok
    sides = json.loads(command("diff", folder, folder, "--backend-b", "numpy", "--json")[1])["sides"]
    assert [sides[side]["backend"] for side in "ab"] == ["onnxruntime", "numpy"]
    sides = json.loads(command("diff", folder, folder, "--backend", "numpy", "--json")[1])["sides"]
    assert [sides[side]["backend"] for side in "ab"] == ["numpy", "numpy"]
    code, _, err = command("watch", folder, "--memory")
    assert code == 2
    assert "--memory needs the backend numpy" in err


def test_the_saved_seed_draws_random_ops(tmp_path: Path, command: Command) -> None:
    text = "#nncdbg 1\ngraph @main() -> (%r) {\n  %r = RandomNormal(shape=[4])\n  return %r\n}\n"
    write_folder(tmp_path / "f", nncdbg.parse(text), {}, settings={"seed": 5})
    drawn = nncdbg.run(tmp_path / "f")["r"]
    assert same(drawn, nncdbg.run(nncdbg.parse(text), seed=5)["r"])
    assert not same(drawn, nncdbg.run(tmp_path / "f", seed=6)["r"])


def test_another_installed_version_is_a_note(tmp_path: Path, command: Command) -> None:
    installed = importlib.metadata.version("numpy")
    versions = {
        "numpy": "0.9",
        "no-such-package": "1",
        "pytest": importlib.metadata.version("pytest") + "+cpu",
    }
    write_folder(tmp_path / "f", nncdbg.parse(STEP), INPUTS)
    document = json.loads((tmp_path / "f" / "nncdbg.json").read_text())
    document["versions"] |= versions
    (tmp_path / "f" / "nncdbg.json").write_text(json.dumps(document))
    note = f"written with numpy 0.9; installed: numpy {installed}; results may differ"
    assert [str(each) for each in nncdbg.Debugger(tmp_path / "f").notes] == [note]
    code, _, err = command("run", str(tmp_path / "f"))
    assert (code, err) == (0, f"note: {note}\n")


def test_needed_kernels_are_named_and_never_run(tmp_path: Path, command: Command) -> None:
    library = tmp_path / "kernels.py"
    library.write_text("raise SystemExit('it was run')\n")
    write_folder(tmp_path / "f", nncdbg.parse(STEP), INPUTS, settings={"op_libraries": [str(library)]})
    code, out, err = command(str(tmp_path / "f"))
    assert (code, out) == (2, "")
    assert "needs custom kernels" in err
    assert "nncdbg.load_op_library" in str(nncdbg.Debugger(tmp_path / "f").notes[0])


def test_the_text_alone_opens_with_a_note_on_its_folder(step: Path) -> None:
    assert any(f"open {step} to use them" in note for note in nncdbg.load(step / "program.nnc").notes)
    assert not nncdbg.load(step).notes


# -- writing ---------------------------------------------------------------------------------------


def test_a_folder_of_the_user_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "program.nnc").write_text("mine")
    with pytest.raises(UsageError, match="is not empty") as raised:
        write_folder(tmp_path / "f", nncdbg.parse(STEP), INPUTS)
    assert raised.value.hint == "use a new folder, or one that nncdbg wrote"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="the path is a file"):
        write_folder(tmp_path / "file", nncdbg.parse(STEP), INPUTS)
    assert (tmp_path / "f" / "program.nnc").read_text() == (tmp_path / "file").read_text() == "mine"


def test_the_current_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="it is the current folder"):
        check_folder(Path())


def test_an_empty_folder_a_link_and_an_older_folder_are_filled(step: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(step, target_is_directory=True)
    for name in ("empty", "link", "step7", "new/deeper"):
        write_folder(tmp_path / name, nncdbg.parse(STEP), INPUTS, title=name)
        assert open_program_folder(tmp_path / name).document.title == name
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link", "new", "step7"]


@pytest.mark.parametrize("failing", ["to_json", "write_tensors", "_move"])
def test_a_failed_write_leaves_the_older_folder(
    step: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = {path.name: path.read_bytes() for path in step.iterdir()}
    monkeypatch.setattr(folder_writing, failing, full)
    for folder in (step, step.parent / "new"):
        with pytest.raises(LoadError, match="No space left on device"):
            write_folder(folder, nncdbg.parse(STEP), INPUTS, title="later")
    assert {path.name: path.read_bytes() for path in step.iterdir()} == before
    assert [path.name for path in step.parent.iterdir()] == ["step7"]


@pytest.mark.parametrize("at", ["to_json", "write_tensors", "_move"])
def test_a_killed_writer_leaves_no_partial_folder(step: Path, at: str) -> None:
    script = f"""
import os, sys
import numpy as np
import nncdbg
from nncdbg.opening import folder_writing

folder_writing.{at} = lambda *_: os._exit(9)
program = nncdbg.parse("#nncdbg 1\\ngraph @main(%x: f32[2]) -> (%x) {{\\n  return %x\\n}}\\n")
folder_writing.write_folder(sys.argv[1], program, {{"x": np.ones(2, np.float32)}})
"""
    for folder in (step, step.parent / "new"):
        assert subprocess.run([sys.executable, "-c", script, str(folder)], check=False).returncode == 9
    assert open_program_folder(step).document.title == "recorded step 7 of train.py"
    assert not (step.parent / "new").exists()


def test_an_older_folder_returns_if_the_newer_cannot_take_its_place(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(LoadError, match="Input/output error"):
        write_folder(step, nncdbg.parse(STEP), INPUTS, title="later")
    assert open_program_folder(step).document.title == "recorded step 7 of train.py"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LoadError, match="Permission denied"):
        write_folder(tmp_path / "f", nncdbg.parse(STEP), INPUTS)


def test_inputs_that_do_not_fit_are_not_written(tmp_path: Path) -> None:
    for inputs, message in (
        ({"x": INPUTS["x"]}, "no data for the input %fc.weight"),
        ({**INPUTS, "z": WEIGHT}, "data for %z, which is no input"),
        ({**INPUTS, "x": WEIGHT}, r"the data of %x in .* is f32\[2,3\], but its program declares f32\[3\]"),
        ({**INPUTS, "x": np.ones(3)}, r"the data of %x in .* is f64\[3\], but its program declares f32\[3\]"),
    ):
        with pytest.raises(LoadError, match=message):
            write_folder(tmp_path / "f", nncdbg.parse(STEP), inputs)
    assert [*tmp_path.iterdir()] == []


# -- damage ----------------------------------------------------------------------------------------


def _change(folder: Path, **fields: Any) -> None:
    document = json.loads((folder / "nncdbg.json").read_text())
    (folder / "nncdbg.json").write_text(json.dumps(document | fields))


def _change_input(folder: Path, **entry: Any) -> None:
    inputs = json.loads((folder / "nncdbg.json").read_text())["inputs"]
    _change(folder, inputs={**inputs, "x": {**inputs["x"], **entry}})


def _cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:count])


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "program gone": (lambda f: (f / "program.nnc").unlink(), "is incomplete: it has no program.nnc"),
    "program wrong": (lambda f: (f / "program.nnc").write_text("#nncdbg 1\ngraph"), "program.nnc:2"),
    "inputs gone": (
        lambda f: (f / "inputs.safetensors").unlink(),
        "is incomplete: it has no inputs.safetensors",
    ),
    "inputs cut": (lambda f: _cut(f / "inputs.safetensors", -5), "truncated or damaged"),
    "inputs empty": (lambda f: _cut(f / "inputs.safetensors", 0), "inputs.safetensors"),
    "header cut": (lambda f: _cut(f / "inputs.safetensors", 20), "truncated or damaged"),
    "input gone": (lambda f: _change(f, inputs={}), "has no data for the input %"),
    "tensor gone": (
        lambda f: _change_input(f, tensor="q"),
        '%x in .* is damaged: the file has no tensor "q"',
    ),
    "other type": (lambda f: _change_input(f, dtype="f16"), "is f16[3], but its program declares f32[3]"),
    "unknown type": (lambda f: _change_input(f, dtype="f99"), "is f99[3], but"),
    "other sizes": (lambda f: _change_input(f, shape=[4]), "is f32[4], but its program declares f32[3]"),
    "other program": (
        lambda f: (f / "program.nnc").write_text(STEP.replace("%x: f32[3]", "%x: f32[1,3]")),
        "is f32[3], but its program declares f32[1,3]",
    ),
    "not JSON": (lambda f: _cut(f / "nncdbg.json", 40), "nncdbg.json is damaged"),
    "other JSON": (lambda f: (f / "nncdbg.json").write_text("[]"), "nncdbg.json is damaged"),
    "setting of another type": (lambda f: _change(f, settings={"seed": "x"}), "nncdbg.json is damaged"),
    "newer format": (lambda f: _change(f, format=99), "has format 99"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_one_clear_error(step: Path, command: Command, damage: str) -> None:
    damaged, message = DAMAGES[damage]
    damaged(step)
    for mode in ([], ["run"], ["watch"]):
        code, out, err = command(*mode, str(step))
        assert (code, out) == (3, "")
        assert err.count("error: ") == 1
        assert all(part in err for part in message.split(".* "))
        assert "hint: " in err or "at " in err
    with pytest.raises(nncdbg.NncdbgError):
        nncdbg.Debugger(step)


def test_a_folder_without_a_document_is_no_program_folder(step: Path, command: Command) -> None:
    (step / "nncdbg.json").unlink()
    code, out, err = command(str(step))
    assert (code, out) == (3, "")
    assert "is a directory" in err


@pytest.mark.parametrize(
    ("backend", "message"), [("tpu", "unknown backend 'tpu'"), ("cupy", "is not installed")]
)
def test_a_backend_that_is_unknown_or_not_installed_is_named(
    tmp_path: Path, command: Command, backend: str, message: str
) -> None:
    if importlib.util.find_spec(backend) is not None:
        pytest.skip(f"{backend} is installed")
    folder = tmp_path / "f"
    write_folder(folder, nncdbg.parse(STEP), INPUTS, settings={"backend": backend})
    code, out, err = command(str(folder))
    assert (code, out) == (2, "")
    assert f"{folder} is saved for the backend {backend}: " in err
    assert message in err
    with pytest.raises(UsageError, match=message):
        nncdbg.watch(folder)
    assert command("run", str(folder), "--backend", "numpy")[0] == 0
    assert nncdbg.watch(folder, backend="numpy").ok
