"""`nncdbg listing`: write the listing that an editor shows that is no text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from nncdbg.engine.errors import UsageError
from nncdbg.engine.escaping import printable
from nncdbg.opening.command_line import ArgumentParser, add_model, configuration_of


def main(arguments: Sequence[str]) -> int:
    """Write the listing file of a debug session and print its path; graph text is its own listing."""
    from nncdbg.dap_server.sources.listing_file import listing_of_step, write_listing
    from nncdbg.engine.frontends.folder_files import PROGRAM
    from nncdbg.engine.frontends.listings import FOLDER
    from nncdbg.opening.programs import open_program
    from nncdbg.opening.python_programs import is_python_name, listing_stem

    parser = ArgumentParser(
        "nncdbg listing", f"Write a model's text below {FOLDER} in a workspace; print its path."
    )
    add_model(parser)
    parser.add_argument("--workspace", metavar="FOLDER", default=".", help="the editor's folder (.)")
    options = parser.parse_args(arguments)
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
