"""`python -m nncdbg` is the command `nncdbg`."""

from __future__ import annotations

from nncdbg.terminal.main import run

raise SystemExit(run())
