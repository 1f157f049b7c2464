"""Every name that a command prints is accepted back, as a value and as a place, and means the same.

`python -m tests.commands.test_names MODEL...` prints a table for other programs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import pytest
from rich.text import Text

import nncdbg
from nncdbg.commands.session import CommandSession
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Program
from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.reports.text import lines as text_lines
from nncdbg.presentation.divergence import report_text
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget
from nncdbg.text.short_names import names_of

ROOT = Path(__file__).parents[2]
STRING = r'"(?:[^"\\]|\\.)*"'
VALUE = re.compile(rf"(?<![\w\"'])%(?:{STRING}|(?:[\w.]+::)?(?:{STRING}|[^\s,()=\[\]{{}}\"]+))")
GRAPH = re.compile(rf"(?<![\w\"'])@(?:{STRING}|[^\s,(){{}}\"]+)")
NODE = re.compile(rf"\bnode ({STRING})")

HERE = [
    *("list", "ll", "where", "info values all", "info args", "info locals", "info constants", "info line"),
    *("info frames", "info inputs", "info memory", "info program", "info kernels", "stats", "why", "why -v"),
]
MOVES = ["next", "step 3", "step 9", "finish", "next 5", "until return", "step 40"]


@dataclass
class Tried:
    """The names that were printed, and those that were not accepted or had a second name."""

    values: set[str] = field(default_factory=set)
    graphs: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    doubled: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def refusing(self, token: str) -> Iterator[None]:
        """Note a name that is refused, or has another meaning."""
        try:
            yield
        except (NncdbgError, AssertionError) as error:
            self.refused[token] = str(error)


def session_of(program: Program) -> tuple[CommandSession, StringIO]:
    """Return a session on a screen with short names, on which lines are not cropped."""
    out = StringIO()
    debugger = nncdbg.Debugger(program)
    return CommandSession(ProgramTarget(debugger), "model", Screen(out, out, width=100, color=False)), out


def tried(program: Program, moves: Sequence[str] = MOVES) -> Tried:
    """Return the names that commands print at some stops, and which of them are not accepted back."""
    session, out = session_of(program)
    found = Tried()
    for move in ["", *moves]:
        for line in [move, *HERE]:
            out.seek(0)
            out.truncate()
            if line and not session.target.python_names()["debugger"].ended:
                session.execute(line)
            try_names(session, out.getvalue(), found, shortened=True)
        if (
            not session.target.python_names()["debugger"].ended
            and (node := session.target.python_names()["debugger"].stop.node) is not None
        ):
            name = next((value.name for value in node.outputs if value.name), None)
            if name is not None:
                session.target.python_names()["debugger"].break_at(value=name, temporary=True)
                session.target.python_names()["debugger"].watch_value(name)
        out.truncate(0)
        session.execute("info breakpoints")
        session.execute("run")
        try_names(session, out.getvalue(), found, shortened=True)
    try_names(session, "\n".join(program.as_listing().full_lines()), found, shortened=False)
    for text in printed(program):
        try_names(session, text, found, shortened=True)
    return found


def try_names(session: CommandSession, text: str, found: Tried, *, shortened: bool) -> None:
    """Try the names of an output, except those of excerpts, which show a text as it was written."""
    debugger, names = (
        session.target.python_names()["debugger"],
        names_of(session.target.python_names()["debugger"].program),
    )
    known = debugger.breakpoints.placement.named.known
    lines = "\n".join(line for line in text.split("\n") if not re.match(r" *\d+ \| |prefix ", line))
    for token in tokens(VALUE, lines):
        found.values.add(token)
        if (
            any(name.startswith(f"{token[1:]}.") for name in known["value"])
            and token[1:] not in known["value"]
        ):
            # `saved %s` of a call is a place, and the first part of the names of its values.
            assert session.target.lines(token)[1]
            continue
        with found.refusing(token):
            read = [*debugger.values.read(token).names]
            assert len(read) == 1, f"it names {read}"
            if token[1] != '"':
                assert debugger.values.resolve(token) == read[0]
            if shortened and token != names.spelled(read[0]) and names.has(read[0]):
                found.doubled[token] = names.spelled(read[0])
            if read[0] in known["value"]:
                place = session.target.lines(token)[1]
                assert place == debugger.breakpoints.lines("value", read[0]), f"another place: {place}"
    for token in tokens(GRAPH, lines):
        found.graphs.add(token)
        with found.refusing(token):
            session.target.lines(token)
    for quoted in dict.fromkeys(NODE.findall(lines)):
        found.nodes.add(quoted)
        with found.refusing(f"node {quoted}"):
            session.target.lines(f"node {quoted}")
            session.target.lines(quoted)


def tokens(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    for token in dict.fromkeys(pattern.findall(text)):
        yield token if token.endswith('"') else re.sub(r"('s)?[.:;?'`]*$", "", token)


def printed(program: Program) -> Iterator[str]:
    """Yield what `watch` and `diff` print, as on a screen."""
    reports: list[Iterable[str | Text]] = [text_lines(nncdbg.watch(program), ReportContext.of(program))]
    if not program.runs:
        reports.append(report_text(nncdbg.diff(program, dtype_b="f16")).split("\n"))
    for lines in reports:
        out = StringIO()
        screen = Screen(out, out, width=100, color=False)
        screen.name_values(program)
        for line in lines:
            screen.put_wrapped(line if isinstance(line, Text) else Text(line))
        yield out.getvalue()


HEADS = ("values", "graphs", "nodes", "refused", "doubled")


def row(path: str, found: Tried) -> str:
    counts = [len(getattr(found, head)) for head in HEADS]
    return f"{Path(path).name:32}" + "".join(f"{count:>9}" for count in counts)


def main(paths: list[str]) -> None:
    print(f"{'program':32}" + "".join(f"{head:>9}" for head in HEADS))
    for path in paths:
        found = tried(nncdbg.load(path))
        print(row(path, found))
        for token, why in [*found.refused.items(), *found.doubled.items()][:20]:
            print(f"    {token}: {why}")


ODD = """#nncdbg 1
graph @main(%x: f32[2]) -> (%"conv:0": f32[2]) {
  %"a name": f32[2] = Relu(%x) loc(node "a node: 1")
  %"größe": f32[2] = Log(%"a name") loc("net.py":7, node "/model/encoder/layer.0/Log")
  %/model/encoder/layer.0/MatMul_output_0: f32[2] = @"layer 0"(%"größe")
  %"/model/encoder/layer.1/MatMul:0": f32[2] = Neg(%/model/encoder/layer.0/MatMul_output_0)
  %c: bool[] = Less(1.0, 2.0)
  if %c @then {
    yield %x
  } else @other {
    yield %"/model/encoder/layer.1/MatMul:0"
  } -> (%"conv:0": f32[2])
  return %"conv:0"
}

graph @"layer 0"(%a: f32[2]) -> (%b: f32[2]) {
  %b: f32[2] = Sqrt(%a) loc(node "sqrt")
  return %b
}
"""
FILES = [
    *(f"tests/models/exported/{name}.onnx" for name in ("attention_script", "attention_dynamo")),
    *(f"examples/{name}.nnc" for name in ("refine_loop", "train_mlp_nan")),
]


@pytest.mark.parametrize("file", [*FILES, "odd names"])
def test_every_printed_name_is_accepted_and_is_the_only_one(file: str) -> None:
    program = nncdbg.parse(ODD) if file == "odd names" else nncdbg.load(ROOT / file)
    found = tried(program, ["next", "step 9", "finish"])
    assert (found.refused, found.doubled) == ({}, {})
    assert len(found.values) > 5


if __name__ == "__main__":
    main(sys.argv[1:])
