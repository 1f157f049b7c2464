"""docs/INFLUENCE.md: the influence of operand elements on results, from the declarations (`make docs`)."""

from __future__ import annotations

from collections.abc import Iterator

from nncdbg.engine.ops import Op, declared, names
from nncdbg.engine.ops.influence import EVERYTHING, Influence

HEAD = """# Influence of operand elements on results

`nncdbg watch` uses this table to follow NaN and Inf. An output depends on a bad element if the influence
of the element reaches the output through a chain of statements. `make docs` generates the table from the
declarations of the ops (`Op.influence`). `tests/engine/ops/test_influence.py` verifies each row: the test
changes an element and checks which results change. A rough row may list too many influenced elements,
but every row lists all influenced elements.

For an op that is not in the table, influence follows the statements of the op's formula. If the op has no
formula, every operand element influences every result.

| influenced elements | operand elements without influence | intentional infinities are | rough | ops |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the page as Markdown."""
    return HEAD + "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    rows: dict[tuple[str, str, str, bool], list[str]] = {}
    for name in names():
        for op in declared(name):
            if op.foreign or op.influence is EVERYTHING:
                continue
            label = _label(op)
            same = rows.setdefault(_key(op.influence), [])
            if label not in same:
                same.append(label)
    for (words, discards, infinities, rough), ops in sorted(rows.items()):
        yield f"| {words} | {discards} | {infinities} | {'yes' if rough else ''} | {', '.join(ops)} |"


def _label(op: Op) -> str:
    """Return the name of an op, with the first opset of its declaration if it has several."""
    return op.name if len(declared(op.name)) == 1 else f"{op.name} ({op.since})"


def _key(row: Influence) -> tuple[str, str, str, bool]:
    where = "" if row.masks is None else f" in operand {', '.join(map(str, row.masks))}"
    return row.words, row.discards, row.infinities.value + where, not row.exact
