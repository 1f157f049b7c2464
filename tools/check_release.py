"""Checks that the files of a release have one version, and that the changelog describes it.

`python tools/check_release.py DIST` prints one line per problem, and exits 1 if there is one.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"


def wheel_version(path: Path) -> str:
    """Return the version in the metadata of a wheel.  Raises ValueError if a wheel has none."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        if len(names) != 1:
            raise ValueError(f"{path.name} has {len(names)} METADATA files")
        return _version(archive.read(names[0]).decode())


def sdist_version(path: Path) -> str:
    """Return the version in the metadata of a source distribution.  Raises KeyError if it has none."""
    with tarfile.open(path) as archive:
        member = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        return _version(member.read().decode()) if member else ""


def extension_version(path: Path) -> str:
    """Return the version in the manifest of a packaged VS Code extension."""
    with zipfile.ZipFile(path) as archive:
        return str(json.loads(archive.read("extension/package.json"))["version"])


def _version(metadata: str) -> str:
    return HeaderParser().parsestr(metadata)["Version"] or ""


KINDS = {"*.whl": wheel_version, "*.tar.gz": sdist_version, "*.vsix": extension_version}


def problems(folder: Path, changelog: str) -> Iterator[str]:
    """Yield one line per problem of the files in `folder`; nothing if they are one release."""
    versions: dict[str, str] = {}
    for pattern, version_of in KINDS.items():
        found = sorted(folder.glob(pattern))
        if len(found) != 1:
            yield f"{folder} has {len(found)} files {pattern}: a release has one"
        for path in found:
            try:
                versions[path.name] = version_of(path)
            except (OSError, ValueError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
                yield f"cannot read the version of {path.name}: {error}"
    if len({*versions.values()}) > 1:
        yield "versions differ: " + ", ".join(f"{name} has {version}" for name, version in versions.items())
    for version in sorted({*versions.values()}):
        if not re.search(rf"^## {re.escape(version)}( |$)", changelog, re.MULTILINE):
            yield f"the changelog has no section for {version}"


def main(arguments: list[str]) -> int:
    """Check the folder of a release, and return the exit code."""
    if len(arguments) != 1:
        print("usage: check_release.py DIST", file=sys.stderr)
        return 2
    found = list(problems(Path(arguments[0]), CHANGELOG.read_text(encoding="utf-8")))
    for each in found:
        print(f"error: {each}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
