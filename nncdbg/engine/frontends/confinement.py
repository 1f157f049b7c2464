"""Confine the files named in a model to its folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath


def path_inside(location: str, folder: Path) -> Path | None:
    """Return the resolved path of the file that a model in `folder` names; None if it is not below `folder`.

    Raises OSError, ValueError or RuntimeError for an invalid path.
    """
    # Both flavours, since a model made on one system may be read on the other.
    flavours = (PurePosixPath(location), PureWindowsPath(location))
    if any(flavour.anchor or ".." in flavour.parts for flavour in flavours):
        return None
    path = (folder / location).resolve()
    return path if path.is_relative_to(folder.resolve()) else None
