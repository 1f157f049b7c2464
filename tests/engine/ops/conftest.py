"""Fixtures of the tests of ops."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def exact_products() -> None:
    """Skip a test of full-range products of u8 and i8 if onnxruntime saturates them."""
    from tests.engine.ops.against_runtime import saturates

    if saturates():
        pytest.skip("onnxruntime saturates u8 x i8 products on this processor")
