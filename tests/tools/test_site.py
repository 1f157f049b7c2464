"""The documentation site builds without a warning, and every page is in its navigation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages_in_navigation(docs: Path) -> set[str]:
    """Return the pages that the toctrees below `docs` list, as paths without the ending."""
    listed = {"index"}
    for page in docs.rglob("*.md"):
        for tree in TREE.findall(page.read_text(encoding="utf-8")):
            for line in tree.splitlines():
                if line and not line.startswith(":"):
                    found = docs.glob(f"{line}.md")
                    listed |= {path.relative_to(docs).with_suffix("").as_posix() for path in found}
    return listed


def test_every_page_is_in_the_navigation(repository: Path) -> None:
    docs = repository / "docs"
    pages = {path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md")}
    assert pages - pages_in_navigation(docs) == set(), "add the page to a toctree in docs/index.md"


def test_the_site_builds_without_warnings(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="needs the extra nncdbg[docs]")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
        + ["-d", str(tmp_path / "doctrees"), str(repository / "docs"), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (built.returncode, built.stderr) == (0, "")
    assert (tmp_path / "site" / "commands" / "break.html").is_file()
