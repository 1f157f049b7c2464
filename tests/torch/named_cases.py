"""Cases of a catalogue as parameters of a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def named(cases: Iterable[Any], missed: Mapping[str, str] | None = None) -> list[Any]:
    """Return the cases as parameters with their names as ids; `missed` has the reasons of known failures."""
    marks = {name: [pytest.mark.xfail(reason=why, strict=True)] for name, why in (missed or {}).items()}
    return [pytest.param(case, id=case.name, marks=marks.get(case.name, [])) for case in cases]
