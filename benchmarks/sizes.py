"""Lines per room, the longest files and the longest functions: information, not a wall."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    rooms: Counter[str] = Counter()
    files = []
    functions = []
    for path in sorted([*ROOT.glob("nncdbg/**/*.py"), *ROOT.glob("tests/**/*.py")]):
        text = path.read_text()
        relative = path.relative_to(ROOT)
        rooms["/".join(relative.parts[:3][:-1])] += text.count("\n")
        files.append((text.count("\n"), str(relative)))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                functions.append((length, f"{relative}:{node.lineno} {node.name}"))
    for room, lines in sorted(rooms.items()):
        print(f"{lines:6} {room}")
    for title, rows in (("longest files", files), ("longest functions", functions)):
        print(f"\n{title}")
        for lines, name in sorted(rows, reverse=True)[:12]:
            print(f"{lines:6} {name}")


if __name__ == "__main__":
    main()
