"""Replay of a recorded session of a script: run the script again under the same commands."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.commands.recording.replaying import Replay
from nncdbg.commands.recording.script import PROMPT_OF_DEBUG, RecordedScript
from nncdbg.commands.recording.setup import script_changes
from nncdbg.engine.errors import NncdbgError
from nncdbg.terminal.script_replay import ScriptReplay

if TYPE_CHECKING:
    from nncdbg.commands.recording.entries import RecordedSession
    from nncdbg.presentation.screen import Screen


def replay_script(
    script: RecordedScript, recording: RecordedSession, count: int | None, screen: Screen
) -> int:
    """Run a script in the current folder with the first `count` commands (None: all).

    Return 0 if all stops and results are the same as recorded, else 1.
    """
    for words in script_changes(recording.setup):
        screen.note(words)
    screen.note(f"the script runs again: python {script}")
    found = Replay(recording, count)
    with ScriptReplay(found, screen, count=count):
        try:
            if script.opened_by == PROMPT_OF_DEBUG:
                from nncdbg.terminal.one_shot.debug import debug_recorded

                debug_recorded(script)
            else:
                _run(script)
        except NncdbgError as error:
            # The script failed in the session too, or the replay reports the difference.
            screen.complain(error)
    return int(found.difference is not None)


def _run(script: RecordedScript) -> None:
    """Run a script as Python does, and print the traceback of its failure."""
    sys.argv = [script.file, *script.arguments]
    try:
        if script.module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(script.file, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(script.file).resolve().parent)
            runpy.run_path(script.file, run_name="__main__")
    except SystemExit:
        # The user has left the prompt, or the script has ended.
        return
    except Exception:  # noqa: BLE001  whatever the script raises
        traceback.print_exc()
