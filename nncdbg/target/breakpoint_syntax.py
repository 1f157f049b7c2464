"""Syntax of breakpoint locations: `PLACE [stream N] [if EXPR] [hits N]`.

PLACE is LINE, NAME, @graph, %value, node NODE or FILE:LINE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError
from nncdbg.ir.streams import HOST, THE_HOST, stream_name, streams_of
from nncdbg.text.lexemes import integer_of
from nncdbg.text.places import place_text

if TYPE_CHECKING:
    from nncdbg.engine.stopping.breakpoints import Breakpoint
    from nncdbg.ir.records import Program

_PLACE = re.compile(
    r"""\s*(?P<sigil>[%@]|node\s+(?!(?:if|hits|stream)\b))?(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[A-Za-z_][\w.]*::"(?:[^"\\]|\\.)*"|[^\s"%@][^\s"]*))(?=\s|$)"""
)
_HITS = re.compile(r"(?:^|\s)hits\s+(?P<rule>(?:==|>=|<=|>|<|%)?\s*\w+)\s*$")
_STREAM = re.compile(r"\s*stream\s+(?P<stream>\S+)(?=\s|$)")
_IF = re.compile(r"\s*if(?=[\s(%]|$)(?P<condition>.*)", re.DOTALL)

_VALUE = re.compile(r"""\s*(%?(?:"(?:[^"\\]|\\.)*"|[^\s"\[]+)(?:\[[^\]]*\])?)(?:\s+(.*)|$)""", re.DOTALL)
"""Matches a value with an optional index, and the rest."""

PLACES = "LINE, OP, @graph, %value, node NAME or FILE:LINE"
FORMS = f"{PLACES}, then [stream N] [if EXPR] [hits N]"


@dataclass(frozen=True, slots=True)
class StopSpec:
    """A parsed location: `kind` is line, graph, value, node, source (`net.py:11`) or name, for any of them.

    `name` has no sigil and no quotes.  `stream` is the stream of a schedule, as written.
    """

    kind: str
    name: str
    when: str | None = None
    hits: str | None = None
    stream: str | None = None


def parse_stop(text: str, *, streams: bool = True) -> StopSpec:
    """Parse a complete location, with `stream N` if `streams`. Raises UsageError if it is invalid."""
    kind, name, rest = split_place(text)
    found = _STREAM.match(rest)
    if found is not None and not streams:
        raise UsageError(
            f'unexpected "{found[0].strip()}" after the place: a running script has no schedule',
            hint="record the step, and add a schedule: `nncdbg print STEP.nnc --streams 4`",
        )
    when, hits = _conditions(rest[found.end() :] if found is not None else rest)
    return StopSpec(kind, name, when, hits, found["stream"] if found is not None else None)


def parse_place(text: str) -> tuple[str, str]:
    """Return (kind, name) of a place.  Raises UsageError for other texts."""
    kind, name, rest = split_place(text)
    if rest:
        raise UsageError(f'unexpected "{rest}" after the place', hint=PLACES)
    return kind, name


def split_place(text: str) -> tuple[str, str, str]:
    """Return (kind, name, rest) of a text that starts with a location. Raises UsageError for others."""
    match = _PLACE.match(text)
    if match is None:
        raise UsageError(f'"{text.strip()}" is not a place for a breakpoint', hint=FORMS)
    sigil, rest = match["sigil"], text[match.end() :].strip()
    name = _unquoted(match["quoted"]) if match["quoted"] else match["bare"]
    if sigil:
        return {"@": "graph", "%": "value"}.get(sigil, "node"), name, rest
    if not match["quoted"] and re.fullmatch(r"[+-]?\d+", name):
        if integer_of(name) is None:
            raise UsageError(f"there is no line {name}", hint=FORMS)
        return "line", name, rest
    return ("name" if match["quoted"] or split_source(name) is None else "source"), name, rest


def breakpoint_commands(found: Breakpoint) -> Iterator[str]:
    """Yield the commands of the prompt that set an equal breakpoint."""
    place = _place(found)
    when = found.condition.text if found.condition is not None else None
    if place is None:
        yield f"note a breakpoint was set that the prompt cannot set: {found}"
    elif found.log is not None:
        yield f"log {place} {' '.join(found.log.split())}"
        if when is not None:
            yield f"condition $bpnum {when}"
    else:
        verb = {"data": "watch", "binding": "watch", "watch": "watch", "assert": "assert"}.get(
            found.kind, "break"
        )
        verb = "tbreak" if found.temporary else verb
        terms = (f" if {when}" if when else "") + (f" hits {found.hits}" if found.hits else "")
        yield f"{verb} {place}{terms}"


def _place(found: Breakpoint) -> str | None:
    """Return the place of a breakpoint as the prompt spells it; None for a place in a micro program."""
    if found.expression is not None:
        return found.expression.text
    if found.kind == "site":
        return str(found.lines[0]) if found.lines else None
    return place_text(found.kind, found.target)


def stream_number(program: Program, text: str) -> int:
    """Return the number of a stream of a program, from `2`, `s2` or `host`.

    Raises UsageError for a program without a schedule and for a stream that it does not use.
    """
    known = streams_of(program)
    if not known:
        raise UsageError(
            "the program has no schedule", hint="`nncdbg print MODEL --streams 4 -o MODEL.nnc` makes one"
        )
    digits = text.removeprefix("s")
    number = int(digits) if re.fullmatch("[0-9]{1,9}", digits) else HOST if text == "host" else None
    if number not in known:
        names = ", ".join(stream_name(each).removeprefix("s") for each in known)
        raise UsageError(f"there is no stream {text}", hint=f"use one of: {names}")
    return number


def stream_words(number: int) -> str:
    """Return `stream s2`, or `stream the host`."""
    return f"stream {stream_name(number, THE_HOST)}"


def split_source(text: str) -> tuple[str, int] | None:
    """Return ("net.py", 11) for `net.py:11`, a line of the user's model; None for anything else."""
    file, colon, line = text.rpartition(":")
    number = integer_of(line)
    return (file, number) if file and colon and line[:1].isdigit() and number is not None else None


def split_watched(text: str) -> tuple[str, str | None, str | None]:
    """Return the expression, the condition and the hit rule of `EXPR [if EXPR] [hits N]`."""
    found = _HITS.search(text)
    hits, rest = (found["rule"], text[: found.start()]) if found is not None else (None, text)
    expression, mark, when = re.sub(r"\sif(?=[\s(]|$)", "\0", rest, count=1).partition("\0")
    if mark and not when.strip():
        raise UsageError(
            "there is no condition after `if`", hint="add a condition: `watch %h if max(%h) > 100`"
        )
    return expression.strip(), when.strip() or None, hits


def plain_name(text: str) -> str | None:
    """Return the name in `%h`, `%"odd name"` or `h`, without sigil and quotes; None for other texts."""
    match = _PLACE.fullmatch(text)
    if match is None or match["sigil"] == "@":
        return None
    return _unquoted(match["quoted"]) if match["quoted"] else match["bare"]


def is_computed(text: str) -> bool:
    """Return True if a text without spaces contains signs of an expression, such as an index or a call."""
    return '"' not in text and re.search(r"[\[(<>=*+]", text) is not None


def split_value(text: str) -> tuple[str, str]:
    """Return (value as written, rest) of a text that starts with a value; (text, "") for others."""
    match = _VALUE.fullmatch(text)
    return (match[1], (match[2] or "").strip()) if match else (text, "")


def _unquoted(quoted: str) -> str:
    from nncdbg.text.lexemes import Flaw, unquote

    try:
        return unquote(quoted, 0)
    except Flaw as flaw:
        raise UsageError(f"the name {quoted} is quoted incorrectly: {flaw.message}", hint=flaw.hint) from None


def _conditions(rest: str) -> tuple[str | None, str | None]:
    hits = None
    found = _HITS.search(rest)
    if found is not None:
        hits, rest = found["rule"], rest[: found.start()]
    if not rest.strip():
        return None, hits
    match = _IF.fullmatch(rest)
    if match is None:
        raise UsageError(f'unexpected "{rest.strip()}" after the place', hint=FORMS)
    when = match["condition"].strip()
    if not when:
        raise UsageError("there is no condition after `if`", hint=FORMS)
    return when, hits
