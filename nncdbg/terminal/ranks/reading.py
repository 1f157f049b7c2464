"""Read the lines of the prompt over all ranks: from a terminal, or from a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

from nncdbg.terminal.ranks.prompt import RanksPrompt


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

    from nncdbg.presentation.screen import Screen
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
