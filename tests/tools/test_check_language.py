"""The check of language: the words and class names that it refuses, and the exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_language

TERMS = check_language.terms_of(
    [
        {"words": "gizmo|widget", "use": "reported"},
        {"words": "doodads?", "use": "is", "allow": ["doodads for"]},
    ]
)


def findings(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(check_language, "ROOT", folder)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return list(check_language.refused_words(path, TERMS))


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", '"""It is gizmo."""\n', ['a.py:1: "gizmo": use reported']),
        (
            "a.py",
            "x = 1\n# A row\ny = f'it {x} Gizmo'\n# doodad\n",
            ['a.py:3: "Gizmo": use reported', 'a.py:4: "doodad": use is'],
        ),
        ("a.py", "gizmo = widget(doodad)\n", []),
        ("a.py", "x = f'{gizmo} is {widget.gizmo!r} a widget'\n", ['a.py:1: "widget": use reported']),
        ("a.py", '"""First.\n\nIt doodads there.\n"""\n', ['a.py:3: "doodads": use is']),
        ("a.py", "# NaN doodads for not a number\n", []),
        ("a.py", '# "gizmo" is refused  (language: quoted)\n', []),
        (
            "a.md",
            "one\n\nwidgets are fine, a widget is not, nor widget-list\n",
            ['a.md:3: "widget": use reported'],
        ),
        (
            "a.ts",
            "const gizmo = 1; // gizmo\n/* a\n widget */\n",
            ['a.ts:1: "gizmo": use reported', 'a.ts:3: "widget": use reported'],
        ),
    ],
)
def test_refused_words_are_reported_with_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, found: list[str]
) -> None:
    assert findings(tmp_path, name, text, monkeypatch) == found


def test_ambiguous_names_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_language, "ROOT", tmp_path)
    (tmp_path / "nncdbg").mkdir()
    text = "class Place: ...\nclass Shared: ...\nclass _Part: ...\ndef _plain(): ...\ndef _escaped(): ...\n"
    for name in ("a", "b"):
        (tmp_path / "nncdbg" / f"{name}.py").write_text(text, encoding="utf-8")
    assert list(check_language.ambiguous_names({"Shared"}, {"_plain"})) == [
        "nncdbg/a.py:4: _plain: say what it returns or does",
        "nncdbg/b.py:4: _plain: say what it returns or does",
        "class Place is defined 2 times: nncdbg/a.py:1, nncdbg/b.py:1",
    ]
