"""The generated files under docs/ are current, and the check reports stale files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import generate_pages
from tools.generate_pages import SOURCES, Pages, main


@pytest.mark.parametrize("target", SOURCES)
def test_a_generated_file_is_current(target: str) -> None:
    assert main(["--check", "--only", target]) == 0, "run `make docs`"


def two_pages() -> Pages:
    return {"docs/made/a.md": "a\n", "docs/made/b.md": "b\n"}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of generated files of a small repository; the files do not exist yet."""
    monkeypatch.setattr(generate_pages, "ROOT", tmp_path)
    monkeypatch.setattr(generate_pages, "SOURCES", {"docs/made/": two_pages})
    return tmp_path / "docs" / "made"


def test_the_check_reports_missing_files_and_writes_nothing(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"]) == 1
    assert "docs/made/a.md is stale: run `make docs`" in capsys.readouterr().err
    assert not made.exists()


def test_stale_and_leftover_files_are_replaced(made: Path) -> None:
    assert main([]) == 0
    (made / "a.md").write_text("old\n")
    (made / "renamed.md").write_text("c\n")
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert {path.name: path.read_text() for path in made.iterdir()} == {"a.md": "a\n", "b.md": "b\n"}
    assert main(["--check"]) == 0
