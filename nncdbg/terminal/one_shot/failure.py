"""How a one-shot command tells of a failure: in JSON too, where that was asked for."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nncdbg.engine.errors import NncdbgError


def error_document(error: NncdbgError) -> dict[str, Any]:
    """An error as JSON has it."""
    return {
        "message": error.message,
        "line": error.excerpt.line if error.excerpt else None,
        "source": error.source,
        "operands": list(error.operands),
        "hint": error.hint,
    }


def failure_document(error: NncdbgError) -> str:
    """The JSON document of a command that failed before it had a result."""
    return json.dumps({"status": "failed", "error": error_document(error)})


@contextmanager
def told_in_json(options: Namespace) -> Iterator[None]:
    """With `--json` an error that leaves is the one document on standard output; it goes on in any case."""
    try:
        yield
    except NncdbgError as error:
        if options.json:
            print(failure_document(error))
        raise
