"""Choose prefixes for a program that declares none: those that save the most columns, with labels."""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from nncdbg.engine.text.short_names import LONG, folder, folders
from nncdbg.ir.records import Program, Value

_MOST = 64
"""Maximum number of prefixes of a program."""

_LEAST = 100
"""Minimum number of columns that a prefix saves in total."""

_LEAST_EACH = 5
"""Minimum number of columns that a prefix saves in each counted name."""

_LONGEST_LABEL = 16

_WORD = 6
"""Columns of a label for the word that distinguishes equal last components."""


def chosen_prefixes(program: Program) -> dict[str, str]:
    """Return prefixes of long names by their labels, in alphabetical order of the prefixes; often none.

    They depend on the names alone, so a model has the same text in every run.
    """
    uses = Counter(name for name in _names(program) if len(name) > LONG)
    return _labeled(_best(uses))


def _names(program: Program) -> Iterator[str]:
    """Yield each name about as often as it occurs in the text."""
    waiting = [*program.graphs.values()]
    while waiting:
        graph = waiting.pop()
        yield from _of_values(graph.inputs)
        yield from _of_values(constant.value for constant in graph.constants)
        for node in graph.nodes:
            yield from _of_values(node.outputs)
            for operand in node.inputs:
                if operand.__class__ is str:
                    yield operand
            waiting.extend(node.subgraphs)


def _of_values(values: Iterable[Value]) -> Iterator[str]:
    for value in values:
        yield value.name


def _best(uses: Counter[str]) -> list[str]:
    """Return the prefixes, chosen greedily by the additional columns that each saves."""
    inside: Counter[str] = Counter()
    for name, count in uses.items():
        inside[folder(name)] += count
    below: defaultdict[str, list[str]] = defaultdict(list)
    for innermost in inside:
        for prefix in folders(innermost + "x"):
            below[prefix].append(innermost)
    for prefix in list(below):
        if len(prefix) * sum(inside[each] for each in below[prefix]) < _LEAST:
            del below[prefix]  # It saves too little in the best case.
    for prefix in sorted(below):
        shorter = prefix.rstrip("/:|.")
        if shorter != prefix and shorter in below:
            # One of `a__` and `a__/` is enough.
            below[shorter].extend(below.pop(prefix))
    saved = dict.fromkeys(inside, 0)
    last = {prefix: _last(prefix) for prefix in below}
    shared = Counter(last.values())
    unlike = {
        (last[prefix], tuple(_label_candidates(prefix))) for prefix in below if shared[last[prefix]] > 1
    }
    same = Counter(name for name, _ in unlike)
    columns = {p: len(p) - len(last[p]) - len("::") - _WORD * (same[last[p]] > 1) for p in below}

    def gain(prefix: str) -> int:
        more = ((inside[each], columns[prefix] - saved[each]) for each in below[prefix])
        return sum(count * each for count, each in more if each >= _LEAST_EACH)

    # The gain of a prefix only decreases as others are chosen, so only the top needs an update.
    waiting = [(-gain(prefix), prefix) for prefix in below]
    heapq.heapify(waiting)
    chosen: list[str] = []
    while waiting and len(chosen) < _MOST:
        prefix = heapq.heappop(waiting)[1]
        now = gain(prefix)
        if waiting and now < -waiting[0][0]:
            heapq.heappush(waiting, (-now, prefix))
            continue
        if now < _LEAST:
            break
        chosen.append(prefix)
        for each in below[prefix]:
            saved[each] = max(saved[each], columns[prefix])
    return chosen


# -- labels ----------------------------------------------------------------------------------------


def _labeled(prefixes: Sequence[str]) -> dict[str, str]:
    """Label each prefix by its last component, after a word that distinguishes equal components.

    Remaining duplicates are numbered, except for the first.
    """
    last = {prefix: _last(prefix) for prefix in prefixes}
    words = {prefix: _label_candidates(prefix) for prefix in prefixes}
    labels: dict[str, str] = {}
    for prefix in prefixes:
        labels[_free(_wanted(prefix, last, words), labels)] = prefix
    return dict(sorted(labels.items(), key=lambda pair: pair[1]))


def _wanted(prefix: str, last: Mapping[str, str], words: Mapping[str, list[str]]) -> str:
    """Return the preferred label of a prefix; `last` and `words` are those of all prefixes."""
    others = [words[other] for other in last if other != prefix and last[other] == last[prefix]]
    if not others:
        return last[prefix]
    count, word = min((sum(word in other for other in others), word) for word in words[prefix])
    if count == len(others):
        return last[prefix]
    having = [other for other in words if word in words[other]]
    is_folder = len(having) > 1 and all(other.startswith(prefix) for other in having)
    return word if is_folder else f"{word}.{last[prefix]}"


def _free(label: str, labels: dict[str, str]) -> str:
    if label not in labels:
        return label
    number = 2
    while f"{label}{number}" in labels:
        number += 1
    return f"{label}{number}"


def _last(prefix: str) -> str:
    """Return the last component of a prefix as a label."""
    return _as_label(prefix[len(folder(prefix.rstrip("/:|._"))) :])


_word = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[^A-Za-z0-9]+[0-9][A-Za-z0-9]*)*")


def _label_candidates(prefix: str) -> list[str]:
    """Return the words of a prefix that are valid labels, each with the number after it."""
    return [_as_label(word) for word in _word.findall(prefix)] or ["p"]


@lru_cache(maxsize=4096)
def _as_label(text: str) -> str:
    """Reduce a text to ASCII words and dots of limited length."""
    words = re.sub(r"[^A-Za-z0-9_]+", ".", text[:_LONGEST_LABEL]).strip("._").lstrip("0123456789._")
    return words or "p"
