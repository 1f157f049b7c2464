"""Puts the pictures of a packaged extension into its README: `python tools/embed_pictures.py FILE.vsix`.

VS Code resolves no relative picture on the page of an installed extension, and `vsce` packages no data URLs.
A published package has https links instead, so this is for packages that are installed from a file.
"""

from __future__ import annotations

import base64
import re
import sys
import zipfile
from pathlib import Path

_PREFIX = "extension/"
_README = f"{_PREFIX}readme.md"
_PICTURE = re.compile(r"(!\[[^\]]*\]\()((?!https:|data:)[^)\s]+\.(png|gif))\)")


def embed(path: Path) -> int:
    """Rewrite the package with its README's pictures as data URLs, and return their number.

    Raises KeyError if a picture is not packaged.
    """
    with zipfile.ZipFile(path) as archive:
        files = {each.filename: archive.read(each) for each in archive.infolist()}

    def data_url(found: re.Match[str]) -> str:
        content = base64.b64encode(files[_PREFIX + found[2]]).decode()
        return f"{found[1]}data:image/{found[3]};base64,{content})"

    text, count = _PICTURE.subn(data_url, files[_README].decode())
    files[_README] = text.encode()
    draft = path.with_suffix(".draft")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    draft.replace(path)
    return count


if __name__ == "__main__":
    print(f"{embed(Path(sys.argv[1]))} pictures embedded")
