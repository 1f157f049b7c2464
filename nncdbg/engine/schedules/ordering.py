"""What happens before what in a list of launches, as vector clocks.

A launch is ordered after the launches before it on its stream, after all that is before a record of an event
that it waits for, and after all that the host has waited for when it issues the launch.  As with CUDA events,
a wait concerns the latest record that the host has issued; without one, it orders nothing.

The clocks are those of C. Fidge, "Timestamps in Message-Passing Systems That Preserve the Partial Ordering"
(1988): component i of the clock of a launch counts the launches of stream i that end before it begins, itself
included in its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.schedules.launches import HOST, Launch

Clock = list[int]


class Ordering:
    """The happens-before relation of launches, which are named by their position in the list."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = launches
        streams = {each.stream for each in launches} | {begun for each in launches for begun in each.begins}
        self.column = {stream: at for at, stream in enumerate(sorted(streams | {HOST}))}
        """The component of each stream in the clocks; that of the host is 0."""
        self.clocks: list[Clock] = []
        self.columns: list[int] = []
        self.positions: list[int] = []
        """The number of each launch on its stream, from 1."""
        self.depth = [0] * len(self.column)
        """The largest number of launches of a stream that the host had issued without knowing their end."""
        self._order()

    def before(self, first: int, second: int) -> bool:
        """Return whether launch `first` ends before launch `second` begins in every legal order."""
        return first != second and self.clocks[second][self.columns[first]] >= self.positions[first]

    def ordered(self, a: int, b: int) -> bool:
        """Return whether two launches are ordered, either way."""
        return self.before(a, b) or self.before(b, a)

    def _order(self) -> None:
        width = len(self.column)
        latest = [[0] * width for _ in range(width)]
        events: dict[int, Clock] = {}
        clocks, columns, positions = self.clocks, self.columns, self.positions
        seen = [0] * width  # The version of the host's clock that each stream has.
        version = 0
        for launch in self.launches:
            column = self.column[launch.stream]
            clock = latest[column].copy()
            if column and seen[column] != version:
                seen[column] = version
                _merge(clock, latest[0])
            for event in launch.waits:
                if event in events:
                    _merge(clock, events[event])
            if launch.barrier:
                for other in latest:
                    _merge(clock, other)
            for stream in launch.begins:
                begun = latest[self.column[stream]] = latest[self.column[stream]].copy()
                _merge(begun, clock)
                if not launch.accesses:  # There is no statement for which the streams would not wait.
                    begun[column] = clock[column] + 1
            clock[column] += 1
            latest[column] = clock
            clocks.append(clock)
            columns.append(column)
            positions.append(clock[column])
            for event in launch.records:
                events[event] = clock
            if column == 0:
                version += 1
            else:
                self.depth[column] = max(self.depth[column], clock[column] - latest[0][column])


def _merge(into: Clock, other: Clock) -> None:
    for at, count in enumerate(other):
        if count > into[at]:
            into[at] = count
