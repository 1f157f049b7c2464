"""The commands of the README work as printed, in order, in a fresh HOME at 80 columns."""

from __future__ import annotations

import shutil
import site
import venv
from pathlib import Path

import pytest

from tools import install
from tools.try_readme import commands, environment, installations, play

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a `.venv` that uses the packages of the tests, so that nothing is downloaded."""
    folder = tmp_path / "nncdbg"
    for name in ("tools", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("demo", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    prepared = folder / ".venv"
    venv.create(prepared, symlinks=True)
    packages = next(prepared.glob("lib/*/site-packages"))
    (packages / "shared.pth").write_text("\n".join([str(ROOT), *site.getsitepackages()]))
    script = prepared / "bin" / "nncdbg"
    script.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m nncdbg "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(install, "ROOT", folder)
    install.stamp_of(prepared, "").write_text(install.fingerprint(prepared))
    return folder


def test_commands_of_the_readme_work_in_order(checkout: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    tried = play(checkout, environment(home), commands(README), 60)
    assert [(each.command, each.output) for each in tried if not each.as_printed] == []
    demo, activated, version, *rest = tried
    assert "(nncdbg) next" in demo.output
    assert (activated.command, version.command) == ("source .venv/bin/activate", "nncdbg --version")
    assert len(rest) == 5


def test_the_install_commands_of_the_readme_are_found() -> None:
    assert installations(README) == [
        "python3 -m venv env",
        "env/bin/pip install .",
        "pipx install .",
        "uv tool install .",
        "pipx install git+URL",
    ]


def test_the_readme_has_the_sizes_of_the_installer() -> None:
    download, disk = install.SIZES[""]
    sizes = f"downloads about {download} MB, once, and needs {disk} MB on disk"
    assert sizes in " ".join(README.split())
