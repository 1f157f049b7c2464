"""The check of language: what it refuses, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_language

TERMS = check_language.terms_of(
    [{"words": "told|wish", "use": "reported"}, {"words": "stands?", "use": "is", "allow": ["stands for"]}]
)


def findings(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(check_language, "ROOT", folder)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return list(check_language.refused_words(path, TERMS))


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", '"""It is told."""\n', ['a.py:1: "told": use reported']),
        (
            "a.py",
            "x = 1\n# A row\ny = f'it {x} Told'\n# stand\n",
            ['a.py:3: "Told": use reported', 'a.py:4: "stand": use is'],
        ),
        ("a.py", "told = wish(stand)\n", []),
        ("a.py", "x = f'{told} is {wish.told!r} a wish'\n", ['a.py:1: "wish": use reported']),
        ("a.py", '"""First.\n\nIt stands there.\n"""\n', ['a.py:3: "stands": use is']),
        ("a.py", "# NaN stands for not a number\n", []),
        ("a.py", '# "told" is refused  (language: quoted)\n', []),
        ("a.md", "one\n\nwishes are fine, a wish is not, nor wish-list\n", ['a.md:3: "wish": use reported']),
        (
            "a.ts",
            "const told = 1; // told\n/* a\n wish */\n",
            ['a.ts:1: "told": use reported', 'a.ts:3: "wish": use reported'],
        ),
    ],
)
def test_refused_words_are_named_with_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, found: list[str]
) -> None:
    assert findings(tmp_path, name, text, monkeypatch) == found


def test_a_class_with_two_definitions_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_language, "ROOT", tmp_path)
    (tmp_path / "nncdbg").mkdir()
    for name in ("a", "b"):
        (tmp_path / "nncdbg" / f"{name}.py").write_text(
            "class Place: ...\nclass Other: ...\n", encoding="utf-8"
        )
    assert list(check_language.ambiguous_classes({"Place"})) == [
        "class Place is defined 2 times: nncdbg/a.py:1, nncdbg/b.py:1"
    ]
