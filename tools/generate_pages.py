"""Writes the generated files under docs/ (`make docs`), or compares them (`make generated-check`).

`python tools/generate_pages.py` writes what changed; with `--check` it writes nothing, and exits 1 if a file
is stale, missing or left over. `--only PATH` limits both to one file or folder.

To add files, add a function to `SOURCES`. It returns the text of each file by its path below the repository.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

Pages = dict[str, str]


def commands() -> Pages:
    """The index of the prompt's commands, from their table."""
    from tools.command_pages import prompt_index

    return {"docs/COMMANDS.md": prompt_index()}


def command_pages() -> Pages:
    """A page per command of the prompt."""
    from tools.command_pages import prompt_pages

    return {f"docs/commands/{name}": text for name, text in prompt_pages().items()}


def command_line() -> Pages:
    """The index of the shell's commands."""
    from tools.command_pages import command_line_index

    return {"docs/COMMAND_LINE.md": command_line_index()}


def command_line_pages() -> Pages:
    """A page per command of the shell, from its options."""
    from tools.command_pages import command_line_pages

    return {f"docs/command-line/{name}": text for name, text in command_line_pages().items()}


def expressions() -> Pages:
    """The language of expressions, from its table of functions."""
    from tools.expression_page import page

    return {"docs/EXPRESSIONS.md": page()}


def familiar() -> Pages:
    """The commands of gdb, pdb and delve at the prompt, from their table."""
    from tools.familiar_page import page

    return {"docs/FAMILIAR.md": page()}


def gradients() -> Pages:
    """How the gradient of each op is computed, from the declarations of the ops."""
    from tools.gradient_page import page

    return {"docs/GRADIENTS.md": page()}


def influence() -> Pages:
    """The influence of operand elements on results, from the declarations of the ops."""
    from tools.influence_page import page

    return {"docs/INFLUENCE.md": page()}


def requests() -> Pages:
    """The page of the debug adapter, with the tables of its requests."""
    from tools.request_tables import page

    return {"docs/DAP.md": page()}


def launch_schema() -> Pages:
    """The extension's manifest, with the keys of a launch configuration."""
    from tools.launch_schema import manifest

    return {"vscode-extension/package.json": manifest()}


def pictures() -> Pages:
    """Pictures of a terminal session that finds a NaN, corrects it and continues."""
    from tools.terminal_picture import picture

    commands = [
        "catch nan",
        "continue",
        "why",
        "set %q = maximum(%q, 1e-7)",
        "print any(isnan(%terms))",
    ]
    return {"docs/pictures/session.svg": picture("examples/nan_softmax.nnc", commands)}


SOURCES: dict[str, Callable[[], Pages]] = {
    "docs/COMMANDS.md": commands,
    "docs/commands/": command_pages,
    "docs/COMMAND_LINE.md": command_line,
    "docs/command-line/": command_line_pages,
    "docs/DAP.md": requests,
    "docs/EXPRESSIONS.md": expressions,
    "docs/FAMILIAR.md": familiar,
    "docs/GRADIENTS.md": gradients,
    "docs/INFLUENCE.md": influence,
    "docs/pictures/": pictures,
    "vscode-extension/package.json": launch_schema,
}
"""Path of a file, or of a folder of only generated files (ends in `/`), to its generator."""


def main(arguments: list[str]) -> int:
    """Write or compare the generated files, and return the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated files under docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    parser.add_argument("--only", metavar="PATH", choices=SOURCES, help="one file or folder of the table")
    options = parser.parse_args(arguments)
    stale = [
        path
        for target in ([options.only] if options.only else SOURCES)
        for path in _refresh(target, options.check)
    ]
    for path in stale:
        print(f"{path} is stale: run `make docs`" if options.check else f"wrote {path}", file=sys.stderr)
    return 1 if stale and options.check else 0


def _refresh(target: str, check: bool) -> list[str]:
    """Write the files of one entry unless `check`, and return the paths that differed."""
    pages = SOURCES[target]()
    leftover = _files_in(target) - set(pages) if target.endswith("/") else set()
    changed = [path for path, text in pages.items() if _read(ROOT / path) != text]
    if not check:
        for path in changed:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(pages[path], encoding="utf-8")
        for path in leftover:
            (ROOT / path).unlink()
    return sorted([*changed, *leftover])


def _files_in(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
