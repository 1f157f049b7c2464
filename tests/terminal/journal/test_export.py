"""`nncdbg export`: runs for TensorBoard and MLflow, read back with their own readers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg import journal

Command = Callable[..., tuple[int, str, str]]


# -- TensorBoard -----------------------------------------------------------------------------------


@pytest.fixture
def events(tmp_path: Path) -> Callable[[str], Any]:
    """`events(folder)` reads the event files of a folder below `board` with TensorBoard's reader."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, TENSORS, EventAccumulator

    def read(folder: str) -> Any:
        # All events: by default the reader keeps a sample.
        found = EventAccumulator(str(tmp_path / "board" / folder), {SCALARS: 0, TENSORS: 0})
        return found.Reload()

    return read


def test_event_files_have_the_values_of_each_run_and_part(
    command: Command, overnight: str, tmp_path: Path, events: Callable[[str], Any]
) -> None:
    code, out, err = command("export", overnight, "--tensorboard", "board")
    assert (code, err) == (0, "note: show them: tensorboard --logdir board\n")
    names = [
        *("1-train_mlp/test", "1-train_mlp/train", "2-train_mlp/test", "2-train_mlp/train"),
        *("3-train_mlp/test", "3-train_mlp/train", "4-train.py/train"),
    ]
    assert out.splitlines() == [f"wrote {Path('board', name)}" for name in names]
    with journal.open(overnight) as opened:
        for number, name in ((1, "train_mlp"), (2, "train_mlp"), (3, "train_mlp"), (4, "train.py")):
            for track, part in opened.tracks(number):
                steps, values = opened.values(number, track, part)
                scalars = events(f"{number}-{name}/{part}").Scalars(track)
                assert [event.step for event in scalars] == steps.tolist()
                np.testing.assert_array_equal([event.value for event in scalars], values.astype(np.float32))


def test_the_times_of_events_are_those_of_the_steps(
    command: Command, overnight: str, events: Callable[[str], Any]
) -> None:
    assert command("export", overnight + "#1", "--tensorboard", "board")[0] == 0
    times = [event.wall_time for event in events("1-train_mlp/train").Scalars("loss")]
    with journal.open(overnight) as opened:
        started = opened.run(1).started.timestamp()
    np.testing.assert_allclose(np.array(times) - started, 0.25 * np.arange(1, 101), atol=1e-5)


def test_notes_program_and_configuration_are_texts(
    command: Command, overnight: str, events: Callable[[str], Any]
) -> None:
    assert command("export", overnight + "#1", "--tensorboard", "board")[0] == 0
    found = events("1-train_mlp/train")
    texts = {
        tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]
    }
    assert set(texts) == {"run", "program", "notes", "events", "edits"}
    assert "%y = Mul(%x, 0.5)" in texts["program"]
    assert '"lr": 0.1' in texts["run"]
    assert texts["notes"] == "- step 12: is the learning rate too high?\n- first try"
    assert texts["events"] == "- step 80: nan: %loss has 1 NaN, from Log at line 12"
    metadata = found.SummaryMetadata("notes")
    assert metadata.plugin_data.plugin_name == "text"


def test_a_second_export_to_the_same_folder_is_refused(
    command: Command, overnight: str, tmp_path: Path, events: Callable[[str], Any]
) -> None:
    assert command("export", overnight + "#2", "--tensorboard", "board")[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("events*")}
    code, _, err = command("export", overnight, "--tensorboard", "board")
    assert code == 2
    assert "2-train_mlp/test already has event files" in err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("events*")}


# -- MLflow ----------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of MLflow on a folder, without its telemetry."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=str(tmp_path / "flow"))


def test_runs_of_mlflow(command: Command, overnight: str, client: Any) -> None:
    code, out, err = command("export", overnight, "--mlflow", client.tracking_uri, "--experiment", "night")
    assert (code, err) == (0, f"note: exported 4 runs to {client.tracking_uri}\n")
    identifiers = [line.split()[4] for line in out.splitlines()]
    assert [line.split()[:4] for line in out.splitlines()] == [
        ["run", f"{n}", "is", "run"] for n in range(1, 5)
    ]
    runs = [client.get_run(identifier) for identifier in identifiers]
    assert {run.info.experiment_id for run in runs} == {client.get_experiment_by_name("night").experiment_id}
    assert [run.info.status for run in runs] == ["FAILED", "FINISHED", "KILLED", "FINISHED"]
    assert [run.info.run_name for run in runs] == ["1-train_mlp", "2-train_mlp", "3-train_mlp", "4-train.py"]
    assert runs[1].data.tags["mlflow.parentRunId"] == identifiers[0]
    assert runs[1].data.tags["nncdbg.parent_step"] == "60"
    assert runs[0].data.params["lr"] == "0.1"
    assert runs[0].data.params["command"] == "nncdbg run train_mlp.nnc --journal run.db"
    with journal.open(overnight) as opened:
        for number, identifier in enumerate(identifiers, 1):
            for name, part in opened.tracks(number):
                steps, values = opened.values(number, name, part)
                metric = name if part == "train" else f"{part}/{name}"
                history = client.get_metric_history(identifier, metric)
                assert [each.step for each in history] == steps.tolist()
                np.testing.assert_array_equal([each.value for each in history], values)


def test_artifacts_of_mlflow(command: Command, overnight: str, client: Any) -> None:
    _, out, _ = command("export", overnight + "#1", "--mlflow", client.tracking_uri)
    identifier = out.split()[4]
    assert client.get_experiment_by_name("run") is not None
    artifacts = [each.path for each in client.list_artifacts(identifier)]
    assert sorted(artifacts) == ["edits.txt", "events.txt", "notes.txt", "program.nnc"]
    path = Path(client.download_artifacts(identifier, "notes.txt"))
    assert path.read_text() == "step 12: is the learning rate too high?\nfirst try\n"


def test_an_error_of_mlflow_is_one_line(command: Command, overnight: str, client: Any) -> None:
    code, out, err = command("export", overnight, "--mlflow", "nonsense://here")
    assert (code, out) == (2, "")
    assert err.startswith("error: cannot export to MLflow at nonsense://here: ")
    assert err.count("\n") <= 2


BAD_INPUT = """
export run.db                            2  add --tensorboard DIR or --mlflow URI
export run.db --experiment x             2  there is no target
export run.db --tensorboard b --experiment x  2  add --mlflow URI
export run.db --mlflow=                  2  --mlflow is empty: URI is missing
export run.db --tensorboard=             2  --tensorboard is empty: DIR is missing
export run.db#9 --tensorboard b          2  no run 9
export run.db@3 --tensorboard b          2  a whole run, not a step
export missing.db --tensorboard b        3  there is no file missing.db
export model.nnc --tensorboard b         2  nncdbg print model.nnc -o FILE.onnx
export run.db --tensorboard model.nnc    2  cannot write event files in model.nnc
"""


@pytest.mark.parametrize("row", BAD_INPUT.strip("\n").split("\n"))
def test_bad_input(command: Command, overnight: str, tmp_path: Path, row: str) -> None:
    (tmp_path / "model.nnc").write_text("#nncdbg 1\n")
    words, message = row.split("  ", 1)
    code, message = message.strip().split("  ", 1)
    found, out, err = command(*words.split())
    assert (found, out, message.strip() in err) == (int(code), "", True), err


@pytest.mark.parametrize(("option", "package"), [("--tensorboard", "tensorboard"), ("--mlflow", "mlflow")])
def test_without_the_library(
    command: Command, overnight: str, monkeypatch: pytest.MonkeyPatch, option: str, package: str
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, out, err = command("export", overnight, option, "target")
    assert (code, out) == (2, "")
    assert err.splitlines()[1] == f"  hint: pip install nncdbg[{package}]"
