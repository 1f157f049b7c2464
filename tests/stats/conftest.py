"""The compiled pass, ready; and the plain one alone."""

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
    """Runs a test twice: with the compiled pass, and as if nothing were compiled yet."""
    if request.param == "compiled":
        request.getfixturevalue("compiled")
    else:
        monkeypatch.setattr(preparation, "kernels", {})
        monkeypatch.setattr("nncdbg.stats.summarization.kernels", {})
    return str(request.param)
