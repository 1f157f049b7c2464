"""Reports are written atomically; a file that cannot be written does not stop the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nncdbg.nan_watch.reports import FORMS, write
from tests.nan_watch.reports.made_reports import WATCHED, plain

FULL = """
import resource, signal, sys
from pathlib import Path
from nncdbg.nan_watch.reports import write
from tests.nan_watch.reports.made_reports import plain

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
for problem in write(plain(), {"sarif": Path(sys.argv[1]), "text": Path(sys.argv[2])}):
    print(problem.exit_code, problem.message.replace(sys.argv[1], "FILE").replace(sys.argv[2], "OTHER"))
"""
"""A process that can write at most 64 bytes to a file, as on a full disk."""


def test_each_format_is_written_to_its_file(tmp_path: Path) -> None:
    forms = {form: tmp_path / "new" / "folder" / form for form in FORMS}
    assert write(plain(), forms, WATCHED) == []
    for form, file in forms.items():
        assert file.read_text(encoding="utf-8") == FORMS[form](plain(), WATCHED)
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(FORMS)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, repository: Path) -> None:
    old, new = tmp_path / "old.sarif", tmp_path / "new.txt"
    old.write_text("what was there")
    done = subprocess.run(
        [sys.executable, "-c", FULL, old, new], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "3 the sarif report could not be written to FILE: File too large",
        "3 the text report could not be written to OTHER: File too large",
    ]
    assert old.read_text() == "what was there"
    assert [path.name for path in tmp_path.iterdir()] == ["old.sarif"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file/report", "Not a directory"),
        ("folder", "Is a directory"),
        ("n" * 300, "File name too long"),
        ("/dev/full", "No space left on device"),
    ],
)
def test_an_unwritable_path_is_an_error_and_the_others_are_written(
    path: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    (problem,) = write(plain(), {"junit": path, "json": "net.json"}, WATCHED)
    assert problem.message == f"the junit report could not be written to {path}: {reason}"
    assert problem.exit_code == 3
    assert "standard output" in (problem.hint or "")
    assert Path("net.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "net.json"]


def test_a_link_stays_a_link_and_a_file_has_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    mask = os.umask(0o027)
    try:
        write(plain(), {"text": tmp_path / "link"}, WATCHED)
    finally:
        os.umask(mask)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o640


def test_the_summary_of_a_step_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, other = tmp_path / "summary.md", tmp_path / "other.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for _ in range(2):
        assert write(plain(), {"markdown": summary}, WATCHED) == []
        assert write(plain(), {"markdown": other}, WATCHED) == []
    assert summary.read_text() == other.read_text() * 2


def test_a_report_can_be_written_to_a_pipe(repository: Path) -> None:
    code = (
        "from nncdbg.nan_watch.reports import write\n"
        "from tests.nan_watch.reports.made_reports import plain\n"
        "assert write(plain(), {'json': '/dev/stdout'}) == []"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout == FORMS["json"](plain(), WATCHED)
