"""The check of a release reports files that are missing, unreadable or of different versions."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.check_release import main, problems

CHANGELOG = "# Changelog\n\n## 1.2.3 (unreleased)\n\n- A change.\n"


def write_wheel(folder: Path, version: str) -> None:
    with zipfile.ZipFile(folder / f"nncdbg-{version}-py3-none-any.whl", "w") as archive:
        metadata = f"Metadata-Version: 2.4\nName: nncdbg\nVersion: {version}\n\nVersion: 9\n"
        archive.writestr(f"nncdbg-{version}.dist-info/METADATA", metadata)


def write_sdist(folder: Path, version: str) -> None:
    content = f"Metadata-Version: 2.4\nName: nncdbg\nVersion: {version}\n".encode()
    with tarfile.open(folder / f"nncdbg-{version}.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(f"nncdbg-{version}/PKG-INFO")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))


def write_extension(folder: Path, version: str) -> None:
    with zipfile.ZipFile(folder / "nncdbg.vsix", "w") as archive:
        archive.writestr("extension/package.json", json.dumps({"version": version}))


WRITERS = {"*.whl": write_wheel, "*.tar.gz": write_sdist, "*.vsix": write_extension}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for write in WRITERS.values():
        write(tmp_path, "1.2.3")
    return tmp_path


def test_a_release_of_one_version_has_no_problem(release: Path) -> None:
    assert list(problems(release, CHANGELOG)) == []


@pytest.mark.parametrize("pattern", WRITERS)
def test_a_missing_file_is_reported(release: Path, pattern: str) -> None:
    next(release.glob(pattern)).unlink()
    assert list(problems(release, CHANGELOG)) == [f"{release} has 0 files {pattern}: a release has one"]


@pytest.mark.parametrize(("pattern", "write"), WRITERS.items())
def test_a_different_version_is_reported(
    release: Path, pattern: str, write: Callable[[Path, str], None]
) -> None:
    next(release.glob(pattern)).unlink()
    write(release, "1.2.4")
    differ, unlisted = problems(release, CHANGELOG)
    assert differ.startswith("versions differ: ")
    assert f"{next(release.glob(pattern)).name} has 1.2.4" in differ
    assert unlisted == "the changelog has no section for 1.2.4"


@pytest.mark.parametrize("pattern", WRITERS)
def test_an_unreadable_file_is_reported(release: Path, pattern: str) -> None:
    path = next(release.glob(pattern))
    path.write_bytes(b"not an archive")
    (found,) = problems(release, CHANGELOG)
    assert found.startswith(f"cannot read the version of {path.name}: ")


def test_a_changelog_with_only_a_longer_version_is_reported(release: Path) -> None:
    assert list(problems(release, "## 1.2.30\n")) == ["the changelog has no section for 1.2.3"]


def test_problems_are_errors_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("error: ") == len(WRITERS)
