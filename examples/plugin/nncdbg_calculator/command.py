"""A command of the prompt and of the debug console."""

from __future__ import annotations

from collections import Counter
from typing import Any

from nncdbg.commands.table import command, no_arguments


@command("tally", group="looking")
def tally(session: Any, text: str) -> None:
    """Print the ops of the entry graph with their numbers."""
    no_arguments("tally", text)
    counts = Counter(node.op for node in session.debugger.program.graph.nodes)
    for op, count in sorted(counts.items()):
        session.screen.put(f"{count:>4}  {op}")
