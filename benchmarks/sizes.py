"""Print lines per folder, the longest files and the longest functions; there is no limit."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    folders: Counter[str] = Counter()
    files = []
    functions = []
    tracked = subprocess.run(
        ["git", "ls-files", "nncdbg/*.py", "tests/*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for relative in map(Path, tracked.stdout.splitlines()):
        text = (ROOT / relative).read_text()
        folders["/".join(relative.parts[:3][:-1])] += text.count("\n")
        files.append((text.count("\n"), str(relative)))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                functions.append((length, f"{relative}:{node.lineno} {node.name}"))
    for top in ("nncdbg", "tests"):
        total = sum(lines for folder, lines in folders.items() if folder.split("/")[0] == top)
        print(f"{total:6} {top}, in total")
    for folder, lines in sorted(folders.items()):
        print(f"{lines:6} {folder}")
    for title, rows in (("longest files", files), ("longest functions", functions)):
        print(f"\n{title}")
        for lines, name in sorted(rows, reverse=True)[:12]:
            print(f"{lines:6} {name}")


if __name__ == "__main__":
    main()
