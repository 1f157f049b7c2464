"""The key `track` of a launch configuration, and the command `info tracks` in the debug console."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.dap_server.client import Client
from tests.engine.tracking.programs import LABELED, TRAIN


def test_tracks_of_a_launch_configuration(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "train.nnc"
    file.write_text(TRAIN, encoding="utf-8")
    for name, data in LABELED.items():
        np.save(tmp_path / f"{name}.npy", data)
    client.start(
        file,
        inputs={name: str(tmp_path / f"{name}.npy") for name in LABELED},
        track={"acc": "mean(argmax(%z, 1) == %labels)"},
    )
    line = TRAIN[: TRAIN.index("update")].count("\n") + 1
    where = {"source": {"path": str(file)}, "breakpoints": [{"line": line, "condition": "$step == 4"}]}
    client.request("setBreakpoints", where)
    client.move("continue", "breakpoint")
    row = client.evaluate("info tracks", "repl").splitlines()[1].split()
    assert row[:3] == ["acc", "train", "4"]
    client.move("stepBack")
    assert client.evaluate("info tracks", "repl").splitlines()[1].split()[:3] == ["acc", "train", "4"]
