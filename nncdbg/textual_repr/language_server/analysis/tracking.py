"""The ``track`` lines of a text: their problems, and the values that they use."""

from __future__ import annotations

from collections.abc import Iterator

from nncdbg.textual_repr.language_server.analysis.analysis import Analysis
from nncdbg.textual_repr.language_server.document.records import Problem, Span
from nncdbg.textual_repr.resolution import shown, wrong_tracks


def tracked_definitions(analysis: Analysis) -> set[Span]:
    """Return the spans of the definitions of values that tracks use."""
    return {
        found.span
        for line in analysis.track_lines()
        for mention in analysis.mentions(line)
        if (found := analysis.definition_of(line, mention)) is not None
    }


def track_problems(analysis: Analysis) -> Iterator[Problem]:
    """Yield the tracks that do not parse, and notes on names that no graph of the step computes."""
    for chunk in analysis.chunks:
        for track in chunk.reading.tracks:
            line = chunk.line_of(track.line)
            names = _known(analysis, line)
            flaws = [flaw for _, flaw in wrong_tracks([track], names.copy, analysis.prefixes)]
            for flaw in flaws:
                span = Span(line, flaw.start, flaw.start + max(1, flaw.width))
                yield Problem(span, flaw.message, flaw.code, hint=flaw.hint)
            if not flaws:
                yield from _data(analysis, line, names)


def _known(analysis: Analysis, line: int) -> set[str]:
    """Return the states, and the values of the graphs of a step."""
    found = set(analysis.chunks[0].reading.states)
    for chunk in analysis.tracked_graphs(line):
        if chunk.block is not None:
            found.update(chunk.block.names)
    return found


def _data(analysis: Analysis, line: int, known: set[str]) -> Iterator[Problem]:
    for mention in analysis.mentions(line):
        if mention.name and mention.name not in known and not _is_longer(mention.name, known):
            message = f"{shown(mention.name)} is data: no graph of the step computes it"
            hint = f"give the data with --input {mention.name}=FILE.npy"
            yield Problem(Span(line, mention.start, mention.end), message, "data", "information", hint)


def _is_longer(name: str, known: set[str]) -> bool:
    """Return whether a name begins with a known one, as in `%h.T` and `%h/2`."""
    return any(name[at] in "/." and name[:at] in known for at in range(1, len(name)))
