"""Checks a packaged VS Code extension for the Marketplace and Open VSX, without a network.

`python tools/check_extension.py FILE.vsix` prints one line per problem, and exits 1 if there is one.
With `--publish` it also requires links to the repository, and pictures by https.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

_PREFIX = "extension/"
_LARGEST_PACKAGE = 10 << 20
_LARGEST_PICTURE = 2 << 20
_ICON = 128
"""Pixels; the Marketplace shows no smaller icon."""
_CATEGORIES = {
    *("AI", "Azure", "Chat", "Data Science", "Debuggers", "Education", "Extension Packs", "Formatters"),
    *("Keymaps", "Language Packs", "Linters", "Machine Learning", "Notebooks", "Other"),
    *("Programming Languages", "SCM Providers", "Snippets", "Testing", "Themes", "Visualization"),
}
_REQUIRED = ("name", "displayName", "description", "version", "publisher", "license", "icon", "engines")
_LINKS = ("repository", "bugs", "homepage")
_MOST_KEYWORDS = 30
_LEFT_OUT = re.compile(
    r"(^|/)(node_modules|src|test|tests|\.git|\.env[^/]*|\.npmrc)(/|$)|\.(map|ts|pem|key)$"
)
_SECRETS = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bgh[pousr]_[A-Za-z0-9]{36}"
    rb"|\bAKIA[0-9A-Z]{16}\b|\bnpm_[A-Za-z0-9]{36}"
)
_IMAGE = re.compile(r"!\[[^\]]*\]\(\s*<?([^)\s>]+)|<img\b[^>]*\bsrc=[\"']([^\"']+)", re.IGNORECASE)
_MARKUP = re.compile(r"(?<!\*)\*(?!\*)|^#|`|<[a-z]|!\[", re.MULTILINE)
"""Markup that the description of a walkthrough step shows literally; it supports links and `**bold**`."""


@dataclass(frozen=True, slots=True)
class Package:
    """The files of a package by name, with the manifest."""

    files: Mapping[str, bytes]
    manifest: Mapping[str, Any]
    size: int

    @classmethod
    def read(cls, path: Path) -> Package:
        """Read a .vsix.  Raises OSError, BadZipFile, or ValueError without a manifest."""
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.startswith(_PREFIX)]
            files = {name.removeprefix(_PREFIX): archive.read(name) for name in names}
        if "package.json" not in files:
            raise ValueError(f"{path} has no {_PREFIX}package.json")
        return cls(files, json.loads(files["package.json"]), path.stat().st_size)

    def text(self, name: str) -> str:
        """Return a file as text, ignoring the case of its name; empty if it is not packaged."""
        found = next((each for each in self.files if each.lower() == name), None)
        return self.files[found].decode() if found else ""


def problems(package: Package, publish: bool = False) -> Iterator[str]:
    """Yield one line per problem; nothing if the package can be released."""
    yield from _fields(package)
    yield from _icon(package)
    yield from _versions(package)
    yield from _named_files(package)
    yield from _images(package, publish)
    yield from _walkthroughs(package)
    yield from _contents(package)
    if publish:
        yield from _links(package)


def _fields(package: Package) -> Iterator[str]:
    manifest = package.manifest
    yield from (f"package.json has no {key!r}" for key in _REQUIRED if not manifest.get(key))
    if not re.fullmatch(r"\d+\.\d+\.\d+", str(manifest.get("version"))):
        yield f"version {manifest.get('version')!r} is not MAJOR.MINOR.PATCH"
    categories = manifest.get("categories", [])
    yield from (f"unknown category {each!r}" for each in categories if each not in _CATEGORIES)
    if not categories:
        yield "package.json has no 'categories'"
    if len(manifest.get("keywords", [])) > _MOST_KEYWORDS:
        yield f"{len(manifest['keywords'])} keywords: the Marketplace takes {_MOST_KEYWORDS}"
    pages = ("readme.md", "changelog.md")
    yield from (f"{name} is missing or empty" for name in pages if not package.text(name))
    if not (package.text("license.txt") or package.text("license")):
        yield "the license is missing or empty"


def _icon(package: Package) -> Iterator[str]:
    name = str(package.manifest.get("icon", ""))
    content = package.files.get(name, b"")
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        yield f"icon {name!r} is not a packaged PNG"
        return
    width, height = struct.unpack(">II", content[16:24])
    if width != height or width < _ICON:
        yield f"icon {name!r} is {width}x{height}: it must be square, {_ICON}x{_ICON} or more"


def _versions(package: Package) -> Iterator[str]:
    engine = _minor(package.manifest.get("engines", {}).get("vscode", ""))
    types = _minor(package.manifest.get("devDependencies", {}).get("@types/vscode", ""))
    if engine is None:
        yield "engines.vscode is missing or is no version"
    elif types is not None and types > engine:
        yield f"@types/vscode 1.{types[1]} is newer than engines.vscode 1.{engine[1]}"


def _minor(text: str) -> tuple[int, int] | None:
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _named_files(package: Package) -> Iterator[str]:
    for name in sorted({*_names(package.manifest)}):
        if name not in package.files and f"{name}.js" not in package.files:
            yield f"{name} is named in package.json and not packaged"


def _names(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _names(each)
    elif isinstance(part, str) and re.fullmatch(r"(\./|media/)[\w./-]+", part):
        yield str(PurePosixPath(part))


def _images(package: Package, publish: bool) -> Iterator[str]:
    for document in ("readme.md", "changelog.md"):
        for link in (first or second for first, second in _IMAGE.findall(package.text(document))):
            if link.lower().split("?")[0].endswith(".svg") or link.startswith("data:image/svg"):
                yield f"{document}: {link[:60]}: the Marketplace shows no SVG"
            elif publish and not link.startswith("https://"):
                yield f"{document}: {link[:60]}: not https, which a published page needs"
            elif not link.startswith(("https://", "data:image/")):
                yield f"{document}: {link}: VS Code shows only https and data URLs"


def _walkthroughs(package: Package) -> Iterator[str]:
    for walkthrough in package.manifest.get("contributes", {}).get("walkthroughs", []):
        for step in walkthrough["steps"]:
            for key in ("title", "description"):
                if found := _MARKUP.search(step[key]):
                    yield f"walkthrough step {step['id']!r}: its {key} would show {found[0]!r} as it is"


def _contents(package: Package) -> Iterator[str]:
    if package.size > _LARGEST_PACKAGE:
        yield f"the package has {package.size >> 20} MiB: at most {_LARGEST_PACKAGE >> 20}"
    for name, content in package.files.items():
        if _LEFT_OUT.search(name):
            yield f"{name} is for development, and packaged"
        if name.endswith((".png", ".gif")) and len(content) > _LARGEST_PICTURE:
            yield f"{name} has {len(content) >> 10} KiB: at most {_LARGEST_PICTURE >> 10}"
        if _SECRETS.search(content):
            yield f"{name} contains what looks like a secret"


def _links(package: Package) -> Iterator[str]:
    for key in _LINKS:
        value = package.manifest.get(key)
        url = value.get("url", "") if isinstance(value, dict) else value or ""
        if not re.match(r"(git\+)?https://", url):
            yield f"{key!r} is missing or not https"


def main(arguments: list[str] | None = None) -> int:
    """Check a package, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("package", type=Path, metavar="FILE.vsix")
    parser.add_argument("--publish", action="store_true", help="require what a published extension needs")
    given = parser.parse_args(arguments)
    try:
        found = list(problems(Package.read(given.package), given.publish))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"error: cannot read {given.package}: {error}", file=sys.stderr)
        return 3
    for each in found:
        print(f"error: {each}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
