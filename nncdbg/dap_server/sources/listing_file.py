"""The listing file of a binary model or of a step of a run, the same from run to run.

Its last line names the model, so that two models with one name do not overwrite each other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError
from nncdbg.escaping import printable, printable_line
from nncdbg.opening.command_line import add_model, configuration_of, one_shot, option
from nncdbg.text.file_names import FOLDER, OWNER, owner_of
from nncdbg.text.listing import Listing

if TYPE_CHECKING:
    from nncdbg.opening.journal.forking import Fork
    from nncdbg.opening.journal.reopening import Restart

_OF_STEP = re.compile(r"(?P<journal>.+?)(?P<run>#[0-9]+)?@[^@]*")
"""The last line of a listing of a step, after `OWNER`.  Earlier versions left out the run."""


def write_listing(
    model: Path, listing: Listing, workspace: Path, stem: str | None = None
) -> tuple[Path, str | None]:
    """Write a model's listing file if necessary; return its path, and a note for the user or None.

    The name of the file is `stem`, or that of the model.  Listings of steps of journals that are gone are
    removed.

    Raises OSError if it cannot be written: its folder is a symbolic link, or another file has its name.
    """
    workspace = workspace.resolve()
    folder = _made(workspace / FOLDER)
    # A newline in the name of a file would end the last line.
    owner = printable_line(Path(os.path.relpath(model.resolve(), workspace)).as_posix())
    stem = stem or model.stem
    _remove_outdated(folder, workspace)
    file, note = folder / f"{stem}.nnc", None
    taken = _taken(file, owner, workspace)
    if taken is not None:
        digest = hashlib.blake2b(owner.encode(), digest_size=4).hexdigest()
        file, first = file.with_name(f"{stem}-{digest}.nnc"), file
        note = f"{first} {taken}; the listing of {owner} is in {file}"
        if (taken := _taken(file, owner, workspace)) is not None:
            raise FileExistsError(errno.EEXIST, f"{file} {taken}")
    _write(file, "\n".join((*listing.lines, f"{OWNER}{owner}", "")))
    return file, note


def listing_of_step(start: Restart | Fork) -> tuple[Path, str]:
    """Return the address of the step at which a program was opened, and the stem of its listing.

    They have the number of the run: a step of another run has another program.
    """
    place = start.place
    fork = "-fork" if start.parent is not None else ""
    return Path(str(place)), f"{Path(place.file).stem}-{place.run}@{place.step}{fork}"


def _made(folder: Path) -> Path:
    """Create the folder with a `.gitignore` for all its content; a link, possibly foreign, is refused."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, f"{folder} is a symbolic link")
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError), (folder / ".gitignore").open("x", encoding="utf-8") as file:
        file.write("*\n")
    return folder


def _taken(file: Path, owner: str, workspace: Path) -> str | None:
    """Describe a file that must not be overwritten; None if it is free, or a listing of `owner`."""
    if not file.is_symlink() and not file.exists():
        return None
    if file.is_symlink() or not file.is_file():
        return "is not a listing"
    other = owner_of(file.read_text(encoding="utf-8", errors="replace"))
    if other is None:
        return "is not a listing"
    step = _OF_STEP.fullmatch(other)
    exists = (workspace / other).exists() or (step is not None and (workspace / step["journal"]).exists())
    return f"shows {other}" if other != owner and exists else None


def _remove_outdated(folder: Path, workspace: Path) -> None:
    """Remove the listings of steps whose journal is gone, and those of earlier versions, without a run."""
    for file in folder.glob("*.nnc"):
        if file.is_symlink() or not file.is_file():
            continue
        owner = owner_of(file.read_text(encoding="utf-8", errors="replace"))
        step = None if owner is None or (workspace / owner).exists() else _OF_STEP.fullmatch(owner)
        if step is not None and (step["run"] is None or not (workspace / step["journal"]).exists()):
            file.unlink(missing_ok=True)


def _write(file: Path, text: str) -> None:
    """Write a file atomically: an editor or another session may read or write it meanwhile."""
    data = text.encode()
    if file.is_file() and file.read_bytes() == data:
        return
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@one_shot(
    "nncdbg listing",
    f"Write a model's text below {FOLDER} in a workspace; print its path.",
    add_model,
    option("--workspace", metavar="FOLDER", default=".", help="the editor's folder (.)"),
)
def main(options: Namespace) -> int:
    """Write the listing file of a debug session and print its path; graph text is its own listing."""
    from nncdbg.opening.programs import open_program
    from nncdbg.opening.python_programs import is_python_name, listing_stem
    from nncdbg.text.file_names import PROGRAM

    model, workspace = Path(options.model), Path(options.workspace)
    opened = open_program(configuration_of(options))
    program = opened.program
    if is_python_name(options.model):
        model = Path(listing_stem(options.model))
    stem = None
    if opened.restart is not None:
        model, stem = listing_of_step(opened.restart)
    file, note = (model / PROGRAM if opened.folder is not None else model).resolve(), None
    if program.listing is None or not file.is_file():
        try:
            file, note = write_listing(model, program.as_listing(), workspace, stem)
        except OSError as error:
            raise UsageError(
                f"cannot write the listing to {workspace}: {error.strerror}",
                hint="set --workspace to a writable folder",
            ) from None
    if note is not None:
        print(printable(note), file=sys.stderr)
    print(printable(str(file)))
    return 0
