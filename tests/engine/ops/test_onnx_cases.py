"""Every op that computes without weights, against ONNX's own node cases."""

from __future__ import annotations

import pytest

from nncdbg.engine.ops import cast, constant, elementwise, erf, indexing, limited, logic, memory
from nncdbg.engine.ops import declared, movement, names, ordering, random, reduce, shape
from tests.engine.ops.onnx_cases import RANDOM, NodeCase, cases_of, check, uncovered


def test_x():
    pass
