"""Pictures of terminal sessions: run nncdbg in a pseudo-terminal, and convert its output to SVG."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

import pexpect
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 80
PROMPT = "(nncdbg) "

THEME = TerminalTheme(
    (24, 26, 33),
    (214, 218, 228),
    [
        (70, 75, 92),
        (240, 110, 110),
        (140, 205, 120),
        (235, 195, 110),
        (110, 165, 245),
        (200, 150, 235),
        (100, 205, 210),
        (214, 218, 228),
    ],
)
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def picture(model: str, commands: list[str]) -> str:
    """Return the SVG of a session: `nncdbg MODEL`, then each command at the prompt."""
    screen = Text(f"$ nncdbg {model}\n", style="bold")
    screen.append_text(Text.from_ansi(_output(model, commands)))
    screen.highlight_regex(rf"(?m)^{re.escape(PROMPT)}", "bold green")
    screen.highlight_regex(rf"(?m)(?<=^{re.escape(PROMPT)}).*$", "bold white")
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(screen, soft_wrap=True)
    svg = console.export_svg(title="nncdbg", theme=THEME, unique_id="session")
    # A picture in a page cannot load fonts; the monospaced font of the reader has the same metrics.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", FONTS)
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


def _output(model: str, commands: list[str]) -> str:
    """Return the output in a terminal of 80 columns; raise `RuntimeError` if the session fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".cmd") as file:
        file.write("\n".join(commands) + "\n")
        file.flush()
        child = pexpect.spawn(
            sys.executable,
            ["-m", "nncdbg", model, "--replay", file.name],
            cwd=ROOT,
            env={"TERM": "xterm-256color", "PATH": "/usr/bin:/bin", "HOME": tempfile.gettempdir()},
            dimensions=(60, COLUMNS),
            encoding="utf-8",
            timeout=60,
        )
        output = str(child.read())
        child.close()
    if child.exitstatus or "error:" in output:
        raise RuntimeError(f"the session of the picture fails: {output}")
    return output.replace("\r\n", "\n").rstrip("\n")
