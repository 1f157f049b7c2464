"""Fixtures that select the compiled or the plain pass of the statistics."""

from __future__ import annotations

import pytest

from nncdbg import stats
from nncdbg.stats import preparation


@pytest.fixture(scope="session")
def compiled() -> None:
    stats.prepare(wait=True)
    assert stats.failure() is None
    assert stats.ready()


@pytest.fixture(params=["compiled", "plain"])
def either_pass(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test twice: with the compiled pass, and with no pass compiled yet."""
    if request.param == "compiled":
        request.getfixturevalue("compiled")
    else:
        monkeypatch.setattr(preparation, "kernels", {})
        monkeypatch.setattr("nncdbg.stats.summary.kernels", {})
    return str(request.param)
