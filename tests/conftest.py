"""Options and fixtures of all tests: `--update` for recorded outputs, and optional trained models."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent

# A shell starts background jobs with SIGINT ignored; processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A time limit per example would fail on a busy machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite recorded outputs from the current ones")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder with `examples/`, `docs/` and `tests/`."""
    return ROOT


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """A folder of trained models, from NNCDBG_SHARED or beside the repository; skip without it."""
    base = Path(os.environ.get("NNCDBG_SHARED") or ROOT.parent / "shared")
    models = base / "models"
    if not models.is_dir():
        pytest.skip(f"there is no folder {models}; set NNCDBG_SHARED to the folder that contains `models/`")
    return models
