"""The check of a packaged extension reports each defect that the Marketplace or Open VSX reports."""

from __future__ import annotations

import base64
import copy
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.check_extension import main
from tools.embed_pictures import embed

Files = dict[str, bytes]
Change = Callable[[dict[str, Any], Files], None]

MANIFEST: dict[str, Any] = {
    "name": "example",
    "displayName": "Example",
    "description": "An example.",
    "version": "1.2.3",
    "publisher": "example",
    "license": "Apache-2.0",
    "icon": "media/icon.png",
    "engines": {"vscode": "^1.100.0"},
    "categories": ["Debuggers"],
    "main": "./out/extension.js",
    "devDependencies": {"@types/vscode": "1.100.0"},
    "contributes": {
        "walkthroughs": [{"steps": [{"id": "one", "title": "One", "description": "Press **F5**."}]}]
    },
}


def png(side: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", side, side)


def package(folder: Path, change: Change) -> Path:
    manifest = copy.deepcopy(MANIFEST)
    files: Files = {
        "readme.md": b"![a picture](data:image/png;base64,AAAA)",
        "changelog.md": b"# Changelog",
        "LICENSE.txt": b"the license",
        "media/icon.png": png(128),
        "out/extension.js": b"",
    }
    change(manifest, files)
    path = folder / "example.vsix"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("extension/package.json", json.dumps(manifest))
        for name, content in files.items():
            archive.writestr(f"extension/{name}", content)
    return path


def test_a_complete_package_has_no_problem(tmp_path: Path) -> None:
    assert main([str(package(tmp_path, lambda manifest, files: None))]) == 0


def step(description: str) -> Change:
    def change(manifest: dict[str, Any], files: Files) -> None:
        manifest["contributes"]["walkthroughs"][0]["steps"][0]["description"] = description

    return change


def key(name: str, value: Any) -> Change:
    return lambda manifest, files: manifest.update({name: value})


def file(name: str, content: bytes) -> Change:
    return lambda manifest, files: files.update({name: content})


DEFECTS: dict[str, tuple[Change, str]] = {
    "no license": (key("license", ""), "package.json has no 'license'"),
    "version": (key("version", "1.2"), "version '1.2' is not MAJOR.MINOR.PATCH"),
    "category": (key("categories", ["Debugger"]), "unknown category 'Debugger'"),
    "keywords": (key("keywords", ["a"] * 31), "31 keywords"),
    "small icon": (file("media/icon.png", png(64)), "is 64x64"),
    "icon not PNG": (key("icon", "media/icon.svg"), "is not a packaged PNG"),
    "newer types": (key("devDependencies", {"@types/vscode": "1.101.0"}), "newer than engines.vscode"),
    "main": (key("main", "./out/other.js"), "out/other.js is named in package.json and not packaged"),
    "relative picture": (file("readme.md", b"![x](media/x.png)"), "media/x.png: VS Code shows only https"),
    "SVG": (file("readme.md", b'<img src="https://example.org/a.svg">'), "no SVG"),
    "http": (file("readme.md", b"![x](http://example.org/a.png)"), "VS Code shows only https"),
    "empty readme": (file("readme.md", b""), "readme.md is missing or empty"),
    "raw markup": (step("Tick *NaN*."), "would show '*' as it is"),
    "source map": (file("out/extension.js.map", b"{}"), "is for development"),
    "large picture": (file("media/a.gif", bytes(3 << 20)), "media/a.gif has 3072 KiB"),
    "secret": (file("out/a.js", b"ghp_" + b"a" * 36), "what looks like a secret"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_reported(defect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = DEFECTS[defect]
    assert main([str(package(tmp_path, change))]) == 1
    reported = capsys.readouterr().err.splitlines()
    assert [each for each in reported if message in each]
    assert all(each.startswith("error: ") for each in reported)


def test_publishing_needs_links_and_https_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = package(tmp_path, lambda manifest, files: None)
    assert main([str(path), "--publish"]) == 1
    reported = capsys.readouterr().err
    assert "data:image/png;base64,AAAA: not https" in reported
    assert all(f"{each!r} is missing" in reported for each in ("repository", "bugs", "homepage"))


def test_a_publishable_package_passes_the_check(tmp_path: Path) -> None:
    def change(manifest: dict[str, Any], files: Files) -> None:
        url = "https://example.org/example"
        manifest.update(repository={"type": "git", "url": f"{url}.git"}, bugs={"url": url}, homepage=url)
        files["readme.md"] = b"![a picture](https://example.org/a.png)"

    assert main([str(package(tmp_path, change)), "--publish"]) == 0


def test_embedded_pictures_pass_the_check(tmp_path: Path) -> None:
    path = package(
        tmp_path, file("readme.md", b"![one](media/icon.png) and ![two](https://example.org/a.png)")
    )
    assert main([str(path)]) == 1
    assert embed(path) == 1
    assert main([str(path)]) == 0
    with zipfile.ZipFile(path) as archive:
        readme = archive.read("extension/readme.md").decode()
        icon = archive.read("extension/media/icon.png")
    assert f"![one](data:image/png;base64,{base64.b64encode(icon).decode()})" in readme
    assert "![two](https://example.org/a.png)" in readme


def test_an_unreadable_package_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "example.vsix"
    path.write_bytes(b"no zip")
    assert main([str(path)]) == 3
    assert "cannot read" in capsys.readouterr().err
