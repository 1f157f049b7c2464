"""`nncdbg replay`: open the program of a recorded session, run its commands, and compare what they show."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.commands.recording.script import EDITOR, PROMPT_OF_DEBUG, RecordedScript
from nncdbg.commands.recording.setup import script_changes
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.opening.command_line import one_shot, option
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal_address import read_address
from nncdbg.opening.python_programs import is_python_name

if TYPE_CHECKING:
    from nncdbg.commands.recording.entries import RecordedSession
    from nncdbg.commands.recording.setup import Setup
    from nncdbg.presentation.screen import Screen


@one_shot(
    "nncdbg replay",
    "Replay a recorded session, and report the first stop or result that differs.",
    option("recording", metavar="FILE", help="a session recorded with --record, `record` or an editor"),
    option("--to", type=int, metavar="N", help="replay N commands, then read commands at the prompt"),
    option("--allow-python", action="store_true", help="allow the recording to run Python (`py`)"),
)
def main(options: Namespace) -> int:
    """Return 0 if all stops and results are the same as recorded, else 1."""
    from nncdbg.commands.recording.entries import read_recording
    from nncdbg.commands.recording.replaying import check_count
    from nncdbg.presentation.screen import Screen
    from nncdbg.terminal.repl import open_session, read_typed, replayed

    recording = read_recording(options.recording)
    check_count(options.to, recording)
    setup, screen = recording.setup, Screen()
    setup.check_python(allowed=options.allow_python)
    path = os.path.abspath(options.recording)
    folder = _folder(setup, Path(path).parent)
    if folder != Path(setup.folder):
        screen.note(f"the folder of the session was {setup.folder}; replayed in {folder}")
    # Commands and inputs name files relative to the folder of the session.
    os.chdir(folder)
    if setup.script is not None:
        return replay_script(setup.script, recording, options.to, screen)
    configuration = RunConfiguration(program=setup.program).completed(setup.supplied(setup.program))
    _, session = open_session(configuration, setup.program, screen)
    session.trusts_recordings = options.allow_python
    session.recorder.stopped(session.target, session.target.stop)
    code = replayed(session, path, options.to)
    if options.to is None or code or session.over:
        return code
    return read_typed(session)


def _folder(setup: Setup, beside: Path) -> Path:
    """Return the folder of the session, or another one with its program: that of the recording, or this one.

    Raises UsageError for a session that cannot be opened again, LoadError if there is no program.
    """
    if setup.script is not None and setup.script.opened_by == EDITOR:
        raise UsageError(
            f"the session on {setup.script.file} cannot be replayed: an editor was attached to the script",
            hint="record it at the prompt: nncdbg debug SCRIPT --record FILE, or `record FILE`",
        )
    if setup.options is None and setup.script is None:
        raise UsageError(
            f"the session on {setup.program} cannot be opened again: it was not recorded in `nncdbg MODEL`",
            hint="open the program as for the recording, then use `replay FILE` at its prompt",
        )
    if setup.script is not None and setup.script.module:
        return Path(setup.folder)
    folders = [Path(setup.folder), beside, Path.cwd()]
    for folder in folders:
        if folder.is_dir() and _is_in(folder, setup.program):
            return folder
    raise LoadError(
        f"there is no file {setup.program}, the program of the recording",
        hint=f"searched {', '.join(map(str, dict.fromkeys(folders)))}",
    )


def _is_in(folder: Path, program: str) -> bool:
    """Return whether a folder has a program: a file, a run of a journal, or a Python function."""
    try:
        address = read_address(program, folder)
    except LoadError:
        return False
    file = program if address is None else address.file
    return is_python_name(program, folder) or (folder / file).exists()


def replay_script(
    script: RecordedScript, recording: RecordedSession, count: int | None, screen: Screen
) -> int:
    """Run a script in the current folder with the first `count` commands (None: all).

    Return 0 if all stops and results are the same as recorded, else 1.
    """
    from nncdbg.commands.recording.replaying import Replay
    from nncdbg.terminal.script_replay import ScriptReplay

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
                _run_script(script)
        except NncdbgError as error:
            # The script failed in the session too, or the replay reports the difference.
            screen.complain(error)
    return int(found.difference is not None)


def _run_script(script: RecordedScript) -> None:
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
