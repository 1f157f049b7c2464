"""Check that torch is installed, in a version that nncdbg supports."""

from __future__ import annotations

from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.names import installed


def check_torch() -> None:
    """Raise UsageError without torch, or with a version that is not supported."""
    if not installed():
        raise UsageError(
            "nncdbg.torch needs the package torch, which is not installed", hint="pip install nncdbg[torch]"
        )
    from nncdbg.engine.ops.aten.versions import check_version

    check_version()
