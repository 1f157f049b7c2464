"""Parse program text to a Program; all errors of a file are found in one pass and raised together.

A line is a statement, so a line that fails is reported and skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial

from nncdbg.engine.errors import GraphError, ParseError, UsageError
from nncdbg.engine.process.collector import collector_paused
from nncdbg.engine.text.driver import driver_lines
from nncdbg.engine.text.lexemes import STRING, Flaw
from nncdbg.engine.text.listing import Listing
from nncdbg.ir.records import (
    Program,
)
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.plain import read_plain
from nncdbg.textual_repr.program_lines import ProgramLines
from nncdbg.textual_repr.reading import salvaged
from nncdbg.textual_repr.resolution import (
    Suggestions,
    backward_signatures,
    wrong_calls,
    wrong_tracks,
)

VERSION = 1
"""The version of the text format that this package parses and prints."""


def parse(text: str, *, file: str | None = None) -> Program:
    """Parse `text` and return the Program with the listing of its lines; `file` is its path, for errors.

    Raises ParseError; its `errors` are all errors of the text in line order.
    """
    if not isinstance(text, str):
        message = f"graph text must be a string, not {type(text).__name__}"
        raise UsageError(message, hint='open a file with nncdbg.load("graph.nnc")')
    program, listing = parse_with_listing(text, file=file)
    return replace(program, listing=listing)


def parse_with_listing(text: str, *, file: str | None = None) -> tuple[Program, Listing]:
    """Return the program and the lines of its statements in `text` itself."""
    with collector_paused():
        return TextParser(split_lines(text), file).program()


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, without line ends and byte order mark."""
    return [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]


class TextParser(ProgramLines):
    """Selects the reader of each line by its first word."""

    @cached_property
    def readers(self) -> Mapping[str, Callable[[Cursor, int], None]]:
        """The reader of a line by its first word."""
        return {
            "opset": self.opset,
            "store": self.store,
            "prefix": self.prefix,
            "state": self.state,
            "run": self.run,
            "evaluate": self.evaluate,
            "track": self.track,
            "backward": self.backward,
            "stream": self.stream,
            "update": self.update,
            "graph": self.graph,
            "if": self.branches,
            "while": self.loop,
            "break": self.leave,
            "return": partial(self.last, "return"),
            "yield": partial(self.last, "yield"),
            "next": partial(self.last, "next"),
        }

    def program(self) -> tuple[Program, Listing]:
        lines = self.lines
        index = 0
        while index < len(lines):
            block = self.block
            if block is not None and not block.end and not self.comment and not self.too_deep:
                index = read_plain(lines, index, block, self.prefixes, self.state_lines)
            if index < len(lines):
                self.line(lines[index], index + 1)
                index += 1
        self.finish()
        program = Program(
            self.graphs,
            next(iter(self.graphs)),
            tuple(self.stores),
            self.opsets,
            tuple(self.states),
            tuple(self.runs),
            tuple(self.backwards),
            self.streams,
            self.file,
            prefixes=self.prefixes.declared,
            notes=tuple(self.notes),
        )
        statements, headers = driver_lines(program, self.state_lines, self.run_lines, self.headers)
        statements, headers = {**self.statements, **statements}, {**self.headers, **headers}
        return program, Listing(tuple(lines), statements, headers, self.file, self.prefixes)

    def finish(self) -> None:
        """Finish the text: check open blocks and calls, and raise the errors found."""
        self.close_unclosed(len(self.lines))
        graphs = {**self.graphs, **backward_signatures(self.backwards, self.graphs)}
        for line, flaw in wrong_calls(self.calls, graphs, self.broken, Suggestions()):
            self.report(line, flaw)
        for line, flaw in wrong_tracks(self.tracks, self.value_names, self.prefixes):
            self.report(line, flaw)
        if not self.graphs and not self.errors:
            hint = "add a graph: graph @main() -> () {"
            self.report(len(self.lines), Flaw("the text has no graph", 0, 1, hint))
        if not self.errors:
            return
        errors = sorted(self.errors, key=_error_position)
        if len(errors) == 1:
            only = errors[0]
            raise ParseError(only.message, errors=errors, excerpt=only.excerpt, hint=only.hint)
        message = f"{len(errors)} errors in {self.file or 'the text'}"
        raise ParseError(message, errors=errors, excerpt=errors[0].excerpt, hint=errors[0].hint)

    def value_names(self) -> set[str]:
        """Return the names of the states and of all values in the graphs."""
        found = {state.value.name for state in self.states}
        waiting = [*self.graphs.values()]
        while waiting:
            graph = waiting.pop()
            found.update(value.name for value in graph.inputs)
            found.update(constant.value.name for constant in graph.constants)
            for node in graph.nodes:
                found.update(value.name for value in node.outputs)
                waiting.extend(node.subgraphs)
        return found - {""}

    def line(self, text: str, number: int) -> None:
        """Parse one line of any kind."""
        cursor = Cursor(text, prefixes=self.prefixes)
        if self.too_deep and cursor.peek_word() != "graph":
            return
        try:
            start = cursor.blank()
            if text.startswith("#", start):
                self.remark(text, start, number)
            elif text.startswith("}", start):
                self.close(cursor, number)
            elif start < len(text):
                reader = self.readers.get(cursor.peek_word())
                if reader is None:
                    self.statement(cursor, number)
                else:
                    cursor.position += len(cursor.peek_word())
                    reader(cursor, number)
        except Flaw as flaw:
            self.report(number, flaw)
            self.salvage(text, number)
        for passed in cursor.flaws:
            self.report(number, passed)
        self.notes += [f"line {number}: {words}" for words in cursor.notes]

    def remark(self, text: str, start: int, number: int) -> None:
        """Skip ``#``, keep ``##`` for the next statement, and ``##!`` for the enclosing block."""
        version = re.match(r"#nncdbg[ \t]+([0-9]+)", text) if number == 1 else None
        if version is not None and version[1] != str(VERSION):
            hint = f"use version {VERSION}"
            raise Flaw(
                f"version {version[1]} of the text is not supported", version.start(1), len(version[1]), hint
            )
        if text.startswith("##!", start) and self.block is not None:
            self.block.comment.append(_comment(text[start + 3 :]))
        elif text.startswith("##", start):
            self.comment.append(_comment(text[start + 2 :]))


def _error_position(error: GraphError) -> tuple[int, int]:
    assert error.excerpt is not None
    return error.excerpt.line, error.excerpt.column


def _comment(rest: str) -> str:
    """Return the text of a ``##`` line: after one space, or quoted."""
    return salvaged(rest) if re.fullmatch(STRING, rest) else rest.removeprefix(" ")
