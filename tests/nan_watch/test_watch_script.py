"""`nncdbg watch train.py`: a script runs unchanged under the watch."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from nncdbg.engine.diagnosis.nan_tracker import NanTracker
from nncdbg.terminal.main import main

pytest.importorskip("torch", reason="needs torch")

TRAINING = """
import sys
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(1, 5):
    output = net(torch.randn(8, 3))
    target = output.detach() if number == 3 and "--bad" in sys.argv else torch.randn(8, 2)
    loss = (output - target).abs().sqrt().mean()  # origin
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", number)
"""
ORIGIN = 1 + TRAINING.split("\n").index(next(line for line in TRAINING.split("\n") if "# origin" in line))
STEPS = [f"step {number}" for number in range(1, 5)]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def script(text: str = TRAINING, name: str = "train.py") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_training_without_nan_runs_to_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", script()]) == 0
    assert capfd.readouterr().out.splitlines() == [*STEPS, "training: ok, 4 updates"]


def test_origin_is_reported_and_the_script_ends(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", script(), "--bad", "--on-nan", "raise"]) == 1
    output = capfd.readouterr().out
    assert output.splitlines()[:2] == STEPS[:2]
    assert "step 3: NaN or Inf before the update: weight.grad (6 NaN of 6)" in output
    assert f'from train.py:{ORIGIN}, node "SqrtBackward0"' in output
    assert "step 3\n" not in output


def test_skip_leaves_out_the_update_and_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--on-nan", "skip", script(), "--bad"]) == 1
    output = capfd.readouterr().out
    assert [line for line in output.splitlines() if line in STEPS] == STEPS


def test_bundle_holds_the_step_and_json_its_report(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--bundle", "step", "--json", "--on-nan", "raise"]
    assert main(["watch", script(), "--bad", *options]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document["bad_steps"][0]["report"]["findings"][0]["location"]["line"] == ORIGIN
    assert main(["watch", "step"]) == 1
    assert f"train.py:{ORIGIN}" in capfd.readouterr().out


def test_module_is_watched_as_a_script(capfd: pytest.CaptureFixture[str]) -> None:
    script(name="training_module.py")
    assert main(["watch", "--on-nan", "raise", "-m", "training_module", "--bad"]) == 1
    assert "SqrtBackward0" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "options", "code", "message"),
    [
        ("1 / 0", [], 4, "train.py failed: ZeroDivisionError: division by zero"),
        ("def (", [], 3, "train.py cannot be compiled: invalid syntax"),
        ("raise SystemExit(3)", [], 4, "train.py exited with code 3"),
        ("pass", [], 2, "train.py ended without a step of an optimizer"),
        ("pass", ["--tier", "hook"], 2, "there is no tier 'hook': use guard, hooks, native, live"),
        ("pass", ["--on-nan", "rise"], 2, "rise"),
    ],
)
def test_failures_are_explained(
    capfd: pytest.CaptureFixture[str], text: str, options: list[str], code: int, message: str
) -> None:
    assert main(["watch", script(text), *options]) == code
    assert message in capfd.readouterr().err


def test_the_origin_is_named_although_anomaly_mode_ends_the_backward_pass(
    capfd: pytest.CaptureFixture[str],
) -> None:
    backward = "    loss.backward()"
    anomaly = TRAINING.replace(backward, "    with torch.autograd.detect_anomaly(): loss.backward()")
    assert main(["watch", "--on-nan", "raise", script(anomaly), "--bad"]) == 1
    error = capfd.readouterr().err
    assert f"train.py:{ORIGIN}" in error
    assert "RuntimeError: Function 'AbsBackward0' returned nan values" in error


def test_missing_script_and_module_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "missing.py"]) == 3
    assert main(["watch", "-m", "missing_module"]) == 2
    errors = capfd.readouterr().err
    assert "there is no file missing.py" in errors
    assert "there is no module missing_module" in errors


INTERRUPTED = TRAINING.replace(
    "    loss.backward()\n",
    """    loss.backward()
    if number == 4:
        import signal
        signal.raise_signal(signal.SIGINT)
""",
)


def test_interrupt_ends_the_script_after_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--on-nan", "report", script(INTERRUPTED), "--bad"]) == 130
    output, error = capfd.readouterr()
    assert output.splitlines()[-2] == "training: tripped: NaN or Inf in 1 step, 3 updates"
    assert f"train.py:{ORIGIN}" in error
    assert error.splitlines()[-1] == "note: train.py was interrupted after 3 updates"
    assert main(["watch", "--on-nan", "raise", "--json", script(INTERRUPTED)]) == 130
    assert json.loads(capfd.readouterr().out)["steps"] == 3


@pytest.mark.parametrize("reaction", ["raise", "report"])
def test_interrupt_of_the_search_ends_the_script_after_the_report(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reaction: str
) -> None:
    followed = NanTracker.trace

    def interrupt(*given: Any, **named: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        followed(*given, **named)

    monkeypatch.setattr(NanTracker, "trace", interrupt)
    assert main(["watch", "--on-nan", reaction, "--bundle", "step", script(), "--bad"]) == 130
    output, error = capfd.readouterr()
    assert "step 3: NaN or Inf before the update: weight.grad (6 NaN of 6)" in error
    assert "note: Ctrl-C has ended the search for the origin" in error
    assert output.splitlines()[-3:] == [
        "training: tripped: NaN or Inf in 1 step, 2 updates",
        "not checked: origin: step 3: Ctrl-C has ended the search for the origin",
        "not checked: steps after 2: the training was interrupted",
    ]
    assert Path("step", "program.nnc").exists()


SKIPPING = """
import torch
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
{begin}
for step in range(1, 7):
    x = torch.ones(4, 3)
    if step in (2, 4):
        x[0, 0] = float("nan")
    opt.zero_grad()
    {step}
"""

PLAIN = SKIPPING.format(begin="", step="model(x).mean().backward(); opt.step()")
SCALED = SKIPPING.format(
    begin='scaler = torch.amp.GradScaler("cpu", init_scale=2.0)',
    step="scaler.scale(model(x).mean()).backward(); scaler.step(opt); scaler.update()",
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [(PLAIN, "because of the reaction skip"), (SCALED, "because the gradient scaler found NaN or Inf")],
    ids=["plain", "scaled"],
)
def test_summary_counts_updates_without_the_skipped_ones_and_all_steps_with_nan(
    capfd: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    Path("skipping.py").write_text(text)
    assert main(["watch", "--on-nan", "skip", "skipping.py"]) == 1
    assert capfd.readouterr().out.splitlines() == [
        "training: tripped: NaN or Inf in 2 steps, 4 updates",
        "1 more step with an origin or parameters that are reported above",
        f"2 steps without an update, {reason}",
    ]
