"""The tool that tests other versions of torch: what it installs, and which line it keeps of a run."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.try_torch_versions import requirements, run


def test_only_torch_has_another_version() -> None:
    assert [each for each in requirements("2.15.0") if each.startswith("torch=")] == ["torch==2.15.0"]
    assert {*requirements("2.15.0")} ^ {*requirements("2.10.0")} == {"torch==2.15.0", "torch==2.10.0"}


def test_a_run_is_its_last_line_without_the_time(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text("def test_it():\n    pass\n\ndef test_other():\n    assert 0\n")
    python = Path(sys.executable)
    assert run(python, (str(file), "-n", "0", "-k", "it")) == (False, "1 failed, 1 passed")
    assert run(python, (f"{file}::test_it", "-n", "0")) == (True, "1 passed")
