"""The prompt over all ranks of a job: its commands, and the stops that it shows."""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nncdbg.commands import find
from nncdbg.commands.table import TABLE, Command, resolve
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.escaping import printable, printable_styled
from nncdbg.presentation.ranks import TOPICS, rank_names, topic_lines
from nncdbg.presentation.screen import Screen
from nncdbg.process.rank_notes import RankReport, read_digests, reports_of_job
from nncdbg.process.threads import BackgroundThread
from nncdbg.terminal.ranks.connection import Message, RankConnection
from nncdbg.terminal.ranks.stops import RankStops, split_rank

_TOPICS = (*TOPICS, "breakpoints")

_MOVES = {
    "continue": "continue",
    "c": "continue",
    "next": "next",
    "n": "next",
    "step": "stepIn",
    "s": "stepIn",
    "finish": "stepOut",
    "back": "stepBack",
}
"""Requests of the commands that move a rank."""

_OF_ONE_RANK = ("break", "watch", "catch")

_NOTED = 1.0
"""Seconds within which a rank notes that it has stopped."""

_HELP = """\
break PLACE [if EXPR] [hits N] [rank N]   stop all ranks, or one, at an operator, module, line ...
watch %PARAMETER [if EXPR] [rank N]       stop where a parameter or gradient is written
catch nan inf [if EXPR] [rank N]          stop the rank where a NaN or Inf originates
delete [N ...], clear PLACE, uncatch      delete breakpoints, catches
condition N [EXPR], disable, enable       change breakpoints
continue, next, step, finish, back        move the selected ranks that are stopped; also `next rank 1`
pause                                     stop the selected ranks at their next operator
wait [SECONDS]                            wait until one more rank stops or ends
rank N, rank all                          select a rank, or all
info ranks, info collectives              where the ranks are; which is missing at a collective
info divergence                           the first step at which gradients or parameters of a rank differ
info breakpoints                          list breakpoints
compare EXPR                              compare a value across the ranks that are stopped
quit                                      leave; the ranks run on
All other commands, such as `print %h`, run on the selected ranks that are stopped."""


class RanksPrompt:
    """One prompt over the ranks of a job.  Raises UsageError if a rank cannot be reached."""

    def __init__(self, folder: Path) -> None:
        self.over = False
        self.selected: int | None = None
        """The selected rank; None for all."""
        self.source = None
        """Scripts move by operators."""
        self._folder = folder
        self.stops = RankStops(lambda: [each for each in self._ranks.values() if not each.ended])
        self.scripts: dict[int, object] = {}
        """The commands of breakpoints: none, as `collect` refuses them."""
        self._events: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        """Notified when a stop or an end was shown."""
        self._shown = 0
        """The number of stops and ends shown."""
        self._closed = 0
        """The number of ranks that have ended."""
        self._awaited = 0
        """The number of stops and ends that `wait` has waited for."""
        self._leaving = False
        """Whether this prompt detaches."""
        reports = [each for each in reports_of_job(folder) if each.exists]
        self._total = reports[0].process.ranks
        self._ranks: dict[int, RankConnection] = {}
        for each in reports:
            self._ranks[each.process.rank] = RankConnection(each, self._hear)
        for connection in self._ranks.values():
            connection.attach()
        BackgroundThread(target=self._show_events, name="nncdbg-ranks").start()

    @property
    def text(self) -> str:
        """The text of the prompt, with the selected rank."""
        return f"(nncdbg rank {'all' if self.selected is None else self.selected}) "

    def close(self) -> None:
        """Detach from all ranks."""
        self._leaving = True
        for each in self._ranks.values():
            each.close()

    def execute(self, line: str) -> bool:
        """Execute a line; return whether it succeeded."""
        try:
            self._dispatch(line.strip())
        except NncdbgError as error:
            print(printable(f"error: {error}"), file=sys.stderr, flush=True)
            return False
        return True

    def _dispatch(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        own = _COMMANDS.get(word)
        if not line or line.startswith("#"):
            return
        if own is not None:
            own(self, rest.strip())
        elif word in _MOVES:
            self._move(_MOVES[word], rest)
        elif word.isidentifier() and _is_stopping(word):
            self._change_stops(*resolve(word, rest.strip()))
        else:
            self._evaluate(line)

    def _change_stops(self, command: Command, text: str) -> None:
        """Run a command about breakpoints or catches, which a ``rank N`` at its end may limit to a rank."""
        rest, self.stops.rank = split_rank(text, self._total)
        if rest != text and command.name not in _OF_ONE_RANK:
            raise UsageError(f"`{command.name}` takes no rank", hint=command.usage)
        command.run(self, rest.strip())

    @property
    def screen(self) -> Screen:
        """The present standard output, which the prompt replaces while it reads a line."""
        return Screen()

    def sure(self, question: str, otherwise: str = "") -> bool:
        """Proceed: breakpoints are deleted without confirmation."""
        return True

    def collect(self, name: str, take: object, *, holds_commands: bool = False) -> None:
        """Refuse commands at breakpoints."""
        raise UsageError(
            "the prompt over ranks runs no commands at breakpoints", hint="debug one rank: --rank N"
        )

    # -- the ranks ---------------------------------------------------------------------------

    def _chosen(self, text: str = "") -> tuple[str, list[RankConnection]]:
        """Return a text without its ``rank N``, and the connections to the ranks that it selects."""
        rest, rank = split_rank(text, self._total)
        selected = rank if rank is not None else None if rest != text else self.selected
        chosen = [each for number, each in self._ranks.items() if selected in (None, number)]
        return rest.strip(), [each for each in chosen if not each.ended]

    def _stopped(self, text: str = "") -> tuple[str, list[RankConnection]]:
        """Return the same for the ranks that are stopped.  Raises UsageError if none is."""
        rest, chosen = self._chosen(text)
        stopped = [each for each in chosen if each.stopped]
        if not stopped:
            who = "no rank" if len(chosen) != 1 else f"rank {chosen[0].rank}"
            verb = "is stopped" if who == "no rank" else "is not stopped"
            raise UsageError(f"{who} {verb}", hint="`pause` stops ranks, `wait` waits for a stop")
        return rest, stopped

    def _move(self, command: str, text: str) -> None:
        rest, ranks = self._chosen(text)
        waiting = [each for each in ranks if each.waiting]
        if not waiting:
            rest, ranks = self._stopped(text)
        if rest:
            raise UsageError(f'unexpected "{rest}"', hint="name ranks as in `next rank 1`")
        if waiting and command != "continue":
            raise UsageError("the script has not started", hint="`continue` starts it")
        for each in waiting:
            each.start()
        for each in [each for each in ranks if each.stopped]:
            each.stopped = False
            each.request(command, {"threadId": 1})

    def _evaluate(self, line: str) -> None:
        """Run a command on the selected ranks that are stopped, and print what each answers."""
        for each in self._stopped()[1]:
            try:
                found = each.request("evaluate", {"expression": line, "context": "repl"})["result"]
            except NncdbgError as error:
                found = f"error: {error}"
            _say(each.rank, found)

    def pause(self) -> None:
        """Stop the selected ranks at their next operator."""
        for each in self._chosen()[1]:
            if not (each.stopped or each.waiting):
                each.request("pause", {"threadId": 1})

    # -- commands ----------------------------------------------------------------------------

    def _select(self, text: str) -> None:
        _, rank = split_rank(f"rank {text or 'all'}", self._total)
        if text not in ("", "all") and rank is None:
            raise UsageError(f'"{text}" is not a rank', hint="rank 1, or rank all")
        self.selected = rank

    def _info(self, text: str) -> None:
        topics = [each for each in _TOPICS if each.startswith(text or "?")]
        if len(topics) != 1:
            raise UsageError(f'there is no topic "{text}"', hint=f"info {', info '.join(_TOPICS)}")
        if topics == ["breakpoints"]:
            TABLE["info"].run(self, "breakpoints")
            return
        print(*map(printable, self._topic_lines(topics[0])), sep="\n", flush=True)

    def _topic_lines(self, topic: str) -> list[str]:
        return topic_lines(topic, self._reports(), read_digests(self._folder, [*self._ranks]), time.time())

    def _reports(self) -> list[RankReport]:
        """Return the notes of the ranks; a stop is known here before it is noted."""
        found = []
        for each in reports_of_job(self._folder):
            connection = self._ranks.get(each.process.rank)
            stopped = connection is not None and connection.stopped
            status = replace(each.status, state="stopped") if stopped else each.status
            found.append(replace(each, status=status))
        return found

    def ranks_lines(self) -> list[str]:
        return self._topic_lines("ranks")

    def _compare(self, text: str) -> None:
        if not text:
            raise UsageError("`compare` needs a value", hint="compare %fc.weight.grad")
        ranks = [each for each in self._ranks.values() if each.stopped]
        if len(ranks) < 2:
            raise UsageError(
                f"`compare` needs two ranks that are stopped: {len(ranks)} is", hint="`pause` stops ranks"
            )
        found = {}
        for each in ranks:
            [answer] = each.request("nncdbg/stats", {"expressions": [text]})["statistics"]
            if "error" in answer:
                raise UsageError(f"rank {each.rank}: {answer['error']}")
            found[each.rank] = answer["stats"]
        print(*map(printable, _comparison_lines(text, found)), sep="\n", flush=True)

    def _wait(self, text: str) -> None:
        """Wait for a stop or an end: each `wait` for one more of them."""
        try:
            seconds = float(text) if text else None
        except ValueError:
            raise UsageError(f'"{text}" is not a number of seconds', hint="wait 10") from None
        with self._changed:
            if not self._changed.wait_for(lambda: self.over or self._shown > self._awaited, seconds):
                raise UsageError(f"no rank has stopped within {seconds} s", hint="info collectives")
            self._awaited += 1

    def _quit(self, text: str) -> None:
        self.over = True

    def _help(self, text: str) -> None:
        print(_HELP, flush=True)

    # -- events ------------------------------------------------------------------------------

    def _hear(self, rank: int, message: Message) -> None:
        self._events.put((rank, message))

    def _show_events(self) -> None:
        """Print what the ranks report, on a thread of its own."""
        while True:
            rank, message = self._events.get()
            try:
                self._show(rank, message)
            except NncdbgError as error:
                print(printable(f"error: rank {rank}: {error}"), file=sys.stderr, flush=True)

    def _show(self, rank: int, message: Message) -> None:
        body: Mapping[str, Any] = message.get("body") or {}
        kind = message["event"]
        if kind == "output" and body.get("category") != "telemetry":
            _say(rank, body["output"].rstrip("\n"))
        elif kind == "stopped":
            self._show_stop(rank, body)
        elif kind == "closed" and not self._leaving:
            self._closed += 1
            print(f"rank {rank} has ended", flush=True)
        if kind in ("stopped", "closed"):
            self.over |= self._closed == len(self._ranks)
            with self._changed:
                self._shown += 1
                self._changed.notify_all()

    def _show_stop(self, rank: int, body: Mapping[str, Any]) -> None:
        connection = self._ranks[rank]
        step = connection.request("evaluate", {"expression": "$step", "context": "watch"})["result"]
        words = body.get("text") or body.get("description") or body["reason"]
        why = self.stops.reason(rank, words, body.get("hitBreakpointIds") or ())
        running = [number for number, each in self._ranks.items() if not each.stopped and not each.ended]
        print(printable(f"rank {rank}, step {step}{self._place(rank)}: {why}"), flush=True)
        shown = connection.request("evaluate", {"expression": "list", "context": "repl"})["result"]
        print(printable_styled(shown), flush=True)
        if running:
            verb = "runs on, and waits at its" if len(running) == 1 else "run on, and wait at their"
            print(f"{rank_names(running)} {verb} next collective", flush=True)

    def _place(self, rank: int) -> str:
        """Return the line of the user at which a rank has stopped; empty if it does not note it in time."""
        ending = time.monotonic() + _NOTED
        while time.monotonic() < ending:
            noted = [each.status for each in reports_of_job(self._folder) if each.process.rank == rank]
            if noted and noted[0].state == "stopped":
                return f", {noted[0].place}" if noted[0].place else ""
            time.sleep(_NOTED / 20)
        return ""


def _is_stopping(word: str) -> bool:
    """Return whether a word is a command about breakpoints or catches."""
    try:
        return find(word).group == "stopping"
    except UsageError:
        return False


def _say(rank: int, text: str) -> None:
    """Print the lines of a rank, each with its number."""
    for line in text.splitlines():
        print(printable_styled(f"rank {rank}: {line}"), flush=True)


_SHOWN = ("min", "mean", "max", "std", "nan", "posinf", "neginf")


def _comparison_lines(name: str, statistics: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the statistics by rank, and the ranks that differ from most, with the ratio of norms."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for rank, found in statistics.items():
        alike.setdefault(tuple(found[each] for each in (*_SHOWN, "count")), []).append(rank)
    for ranks in alike.values():
        found = statistics[ranks[0]]
        words = [f"{each} {_number(found[each])}" for each in _SHOWN if found[each] or each in _SHOWN[:4]]
        yield f"{rank_names(ranks)}: {' '.join(words)} norm {_number(_norm(found))}"
    if len(alike) == 1:
        yield f"{name} has the same statistics on all {len(statistics)} ranks"
        return
    most = Counter({key: len(ranks) for key, ranks in alike.items()}).most_common(1)[0][0]
    usual = _norm(statistics[alike[most][0]])
    for key, ranks in alike.items():
        if key != most:
            ratio = _norm(statistics[ranks[0]]) / usual if usual else math.inf
            others = rank_names(alike[most])
            yield f"{name} differs on {rank_names(ranks)}: its norm is {ratio:.4g} x that of {others}"


def _norm(found: Mapping[str, Any]) -> float:
    """Return the Euclidean norm of the finite elements."""
    if found["mean"] is None:
        return 0.0
    finite = found["count"] - found["nan"] - found["posinf"] - found["neginf"]
    return math.sqrt(finite * (found["mean"] ** 2 + found["std"] ** 2))


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"


_COMMANDS: dict[str, Callable[[RanksPrompt, str], None]] = {
    "rank": RanksPrompt._select,
    "info": RanksPrompt._info,
    "compare": RanksPrompt._compare,
    "wait": RanksPrompt._wait,
    "pause": lambda prompt, text: prompt.pause(),
    "quit": RanksPrompt._quit,
    "q": RanksPrompt._quit,
    "help": RanksPrompt._help,
}


# -- reading lines ---------------------------------------------------------------------------------


def attach(folder: Path) -> int:
    """Attach to the ranks of a job, and execute lines until the user leaves or the ranks have ended.

    Return 1 if a line of a pipe fails.
    """
    prompt = RanksPrompt(folder)
    try:
        if sys.stdin.isatty():
            _read_terminal(prompt)
            return 0
        return _read_pipe(prompt)
    finally:
        prompt.close()


def _read_terminal(prompt: RanksPrompt) -> None:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.patch_stdout import patch_stdout

    from nncdbg.terminal.prompt import history

    print(*prompt.ranks_lines(), "`help` lists the commands, `quit` leaves the ranks running", sep="\n")
    session: PromptSession[str] = PromptSession(history=history(Screen()))
    while not prompt.over:
        try:
            with patch_stdout(raw=True):
                line = session.prompt(prompt.text)
        except KeyboardInterrupt:
            prompt.execute("pause")
            continue
        except EOFError:
            return
        prompt.execute(line)


def _read_pipe(prompt: RanksPrompt) -> int:
    for line in sys.stdin:
        if prompt.over:
            break
        print(f"{prompt.text}{line.strip()}")
        if not prompt.execute(line):
            return 1
    return 0
