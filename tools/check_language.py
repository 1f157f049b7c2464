"""Check the language of prose: refuse words of a list in docstrings, comments, strings and documents.

The list is `tools/language.toml`.  `python tools/check_language.py [PATH...]` prints one line per word
found and exits with 1 if there is any.  Each public class of the package has a name of its own, except for
`shared_class_names`; no function has a name in `refused_function_names`.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "language.toml"
QUOTED = "language: quoted"
SUFFIXES = {".py", ".md", ".ts"}
_PYTHON_PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_REPLACED = re.compile(r"\{[^{}\n]*\}")
"""The code in an f-string, which is one token before Python 3.12."""
_TYPESCRIPT_PROSE = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Term:
    """Words that are refused, and what to use instead."""

    words: re.Pattern[str]
    use: str
    allowed: re.Pattern[str] | None

    def found_in(self, text: str) -> Iterator[re.Match[str]]:
        """Return the matches outside of allowed phrases."""
        fine = [match.span() for match in self.allowed.finditer(text)] if self.allowed else []
        for match in self.words.finditer(text):
            if not any(start <= match.start() < end for start, end in fine):
                yield match


def terms_of(table: list[dict[str, object]]) -> list[Term]:
    """Return the terms of the list."""
    terms = []
    for row in table:
        allowed = row.get("allow", [])
        assert isinstance(allowed, list)
        phrases = "|".join(map(re.escape, allowed))
        terms.append(
            Term(
                re.compile(rf"(?<![\w-])(?:{row['words']})(?![\w-])", re.IGNORECASE),
                str(row["use"]),
                re.compile(phrases, re.IGNORECASE) if phrases else None,
            )
        )
    return terms


def prose_of(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Return (first line, text) of each piece of prose in a file."""
    if path.suffix == ".md":
        yield 1, text
    elif path.suffix == ".ts":
        for match in _TYPESCRIPT_PROSE.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match.group()
    else:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _PYTHON_PROSE:
                is_formatted = re.match("[rR]?[fF]", token.string) is not None
                yield token.start[0], _REPLACED.sub("", token.string) if is_formatted else token.string


def refused_words(path: Path, terms: list[Term]) -> Iterator[str]:
    """Return a message per refused word in a file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for first, prose in prose_of(path, text):
        for term in terms:
            for match in term.found_in(prose):
                number = first + prose.count("\n", 0, match.start())
                if QUOTED not in lines[number - 1]:
                    yield f'{path.relative_to(ROOT)}:{number}: "{match.group()}": use {term.use}'


def ambiguous_names(shared: set[str], refused: set[str]) -> Iterator[str]:
    """Return a message per public class with the name of another one, and per function with a refused name.

    Classes with a name in `shared` may have several definitions.  A record of the target may have the name of
    the engine's class that it describes.
    """
    places = defaultdict(list)
    for path in sorted(ROOT.glob("nncdbg/**/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            records = path.is_relative_to(ROOT / "nncdbg" / "target")
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not records:
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
        for inner in ast.walk(tree):
            if isinstance(inner, ast.FunctionDef) and inner.name in refused:
                yield f"{path.relative_to(ROOT)}:{inner.lineno}: {inner.name}: say what it returns or does"
    for name, found in sorted(places.items()):
        if len(found) > 1 and name not in shared:
            yield f"class {name} is defined {len(found)} times: {', '.join(found)}"


def tracked_files(paths: list[str]) -> list[Path]:
    """Return the files of the repository below these paths that hold prose."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *paths], cwd=ROOT, check=True, capture_output=True, text=True
    )
    files = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in files if path.suffix in SUFFIXES and path.is_file()]


def main(paths: list[str]) -> int:
    """Print the findings in these paths (default: those of the list), and return the exit code."""
    table = tomllib.loads(LIST.read_text(encoding="utf-8"))
    terms = terms_of(table["term"])
    found = [line for path in tracked_files(paths or table["paths"]) for line in refused_words(path, terms)]
    found += ambiguous_names(set(table["shared_class_names"]), set(table["refused_function_names"]))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
