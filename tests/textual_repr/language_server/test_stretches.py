"""Incremental analysis of long texts equals a new analysis of the same text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from nncdbg.textual_repr.language_server.document import Document
from nncdbg.textual_repr.language_server.graph_reading import StatementEntry
from tests.laws import examples

SIZE = 150
"""Statements of each graph: enough for several stretches and the lines between them."""


def graph(name: str, head: str) -> str:
    """Return a graph of dependent statements: some typed, with constants, blanks, comments and blocks."""
    lines = [
        f"graph @{name}(%v0: f32[2,3], %c: bool[]) -> (%v{SIZE}: f32[2,3]) {{",
        "  %w: f32[3] = [1, 2, 3]",
    ]
    for n in range(1, SIZE + 1):
        before = f"%v{n - 1}"
        typed = f"%v{n}: f32[2,3]" if n % 4 == 0 else f"%v{n}"
        if n % 70 == 5:
            lines += [f"  if %c @then{n} {{", f"    %b{n} = Neg({before})", f"    yield %b{n}"]
            lines += ["  } else {", f"    yield {before}", f"  }} -> ({typed})"]
        elif n % 50 == 7:
            lines += [f"  {typed} = {head}({before})"]
        elif n % 45 == 9:
            lines += ["", f"  # {n}", f"  %k{n}: f32[] = {n}", f"  {typed} = Mul({before}, %k{n})"]
        elif n % 45 == 20:
            lines += [f"  ## kept {n}", f"  {typed} = Add({before}, %w)"]
        else:
            op = ("Relu(%s)", "Add(%s, %%w)", "Softmax(%s, axis=1)", "Mul(%s, 2)")[n % 4]
            lines.append(f"  {typed} = {op % before}")
    return "\n".join([*lines, f"  return %v{SIZE}", "}", ""])


LAYER = "graph @layer(%t: f32[2,3]) -> (%u: f32[2,3]) {\n  %u = Relu(%t)\n  return %u\n}\n"
TEXT = f"#nncdbg 1\nopset 18\n\n{graph('main', '@layer')}\n{graph('second', 'Tanh')}\n{LAYER}"

Lines = Sequence[str]
Edit = tuple[int, int, str]
"""A line, the number of lines replaced from it on, and the new text."""


def edits_of(lines: Lines, line: int, kind: str) -> Edit:
    text = lines[line]
    match kind:
        case "rename":
            return line, 1, text.replace("%v", "%vq", 1)
        case "mend":
            return line, 1, text.replace("%vq", "%v")
        case "break":
            return line, 1, text.replace("=", "", 1)
        case "other type":
            return line, 1, text.replace("f32[2,3]", "f64[2,3]", 1)
        case "other op":
            return line, 1, text.replace("Relu", "Size").replace("Add", "Concat")
        case "remove":
            return line, 1, ""
        case "remove many":
            return line, 40, ""
        case "twice":
            return line, 1, f"{text}\n{text}"
        case _:
            return line, 0, f"{kind}\n"


KINDS = ["rename", "mend", "break", "other type", "other op", "remove", "remove many", "twice"]
KINDS += ["", "  # a", "  ## b", "  ##! c", "}", "graph @g() -> () {", "if %c {", "opset 12", "  return %v3"]


def change(document: Document, edit: Edit) -> None:
    line, count, text = edit
    last = min(line + count, len(document.lines))
    if count == 1:
        document.change([((line, 0, line, len(document.lines[line])), text)])
    else:
        document.change([((line, 0, last, 0), text)])


def results_of(document: Document) -> list[object]:
    """Return all results of the analysis: values with types, problems, opsets, and graphs."""
    analysis = document.analysis
    values = [
        (d.name, d.span, d.role, d.type) for chunk in analysis.chunks for d in analysis.definitions(chunk)
    ]
    problems = [(p.span, p.message, p.code, p.severity, p.hint, p.related) for p in analysis.problems]
    return [values, problems, dict(analysis.opsets), list(analysis.graphs)]


def reopened(document: Document) -> Document:
    return Document("file:///a.nnc", "\n".join(document.lines))


@examples(60)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(KINDS), st.integers(0, 3)), min_size=1, max_size=8
    )
)
def test_the_analysis_after_any_edits_equals_a_new_analysis(
    edits: list[tuple[int, str, int]],
) -> None:
    document = Document("file:///a.nnc", TEXT)
    assert [p.code for p in document.analysis.problems] == ["unused"]
    for place, kind, steps in edits:
        change(document, edits_of(document.lines, place % len(document.lines), kind))
        # The next change may arrive before the analysis is complete.
        if steps == 0 or any(document.read_on(0) for _ in range(steps)):
            assert results_of(document) == results_of(reopened(document))
    assert results_of(document) == results_of(reopened(document))
    document.change([(None, TEXT)])
    assert [p.code for p in document.analysis.problems] == ["unused"]


def test_a_keystroke_reanalyzes_only_its_stretch() -> None:
    document = Document("file:///a.nnc", graph("main", "Tanh"))
    before = {id(each) for each in document.analysis.chunks[0].reading.stretches.values()}
    place = next(i for i, text in enumerate(document.lines) if "%v100" in text)
    change(document, (place, 1, document.lines[place] + " "))
    after = document.analysis.chunks[0].reading.stretches.values()
    assert len(before) >= 3
    assert sum(id(each) not in before for each in after) <= 1


def test_a_long_text_is_analyzed_in_steps() -> None:
    document = Document("file:///a.nnc", TEXT)
    steps = 1
    while not document.read_on(0):
        steps += 1
    assert steps > 2
    assert document.read_on(0)
    assert results_of(document) == results_of(reopened(document))


def test_the_fast_path_reads_a_line_like_the_parser() -> None:
    """A trailing blank disables the fast path and has no other effect."""
    plain, blank = (Document("file:///a.nnc", text) for text in (TEXT, TEXT.replace("\n", " \n")))
    entries = [
        [event for event in document.analysis.chunks[1].reading.events if isinstance(event, StatementEntry)]
        for document in (plain, blank)
    ]
    assert len(entries[0]) == len(entries[1]) > SIZE
    for ours, theirs in zip(*entries, strict=True):
        assert (ours.content, ours.names, ours.mark) == (theirs.content, theirs.names, theirs.mark)
