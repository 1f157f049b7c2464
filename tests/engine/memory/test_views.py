"""M16: views by buffer, offset and strides are checked against the size of the buffer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.memory.plan_file import parse_plan, plan_text

X = np.arange(2 * 64 * 10 * 10, dtype=np.float32).reshape(2, 64, 10, 10)
STRIDE = (6400, 100, 10, 1)


def view_of_x(size: Sequence[int], stride: Sequence[int], offset: int, dtype: str = "") -> nncdbg.Debugger:
    pytest.importorskip("torch", reason="needs torch")
    kind = f', dtype="{dtype}"' if dtype else ""
    text = (
        "graph @main(%x: f32[2,64,10,10]) -> (%v) {\n"
        f"  %v = torch.view(%x, size={[*size]}, stride={[*stride]}, offset={offset}{kind})\n"
        "  return %v\n}\n"
    )
    return nncdbg.Debugger(nncdbg.parse(text), {"x": X}, backend="torch")


@pytest.mark.parametrize(("offset", "part"), [(0, X[:, :32]), (3200, X[:, 32:])])
def test_a_view_that_fits_has_the_elements_of_its_buffer(offset: int, part: Any) -> None:
    """M16: the view [0,32,0,0]+[2,32,10,10] of [2,64,10,10] fits."""
    debugger = view_of_x((2, 32, 10, 10), STRIDE, offset)
    assert debugger.run().reason == "end"
    assert debugger.value("v").tobytes() == part.tobytes()


@pytest.mark.parametrize(
    ("size", "stride", "offset", "message"),
    [
        (
            (2, 33, 10, 10),
            STRIDE,
            3200,
            "the view needs 12900 elements, but the memory of its operand has 12800: "
            "size [2, 33, 10, 10], stride [6400, 100, 10, 1], offset 3200",
        ),
        (
            (3, 64, 10, 10),
            STRIDE,
            0,
            "the view needs 19200 elements, but the memory of its operand has 12800",
        ),
        ((2, 32), (6400,), 0, "the view is not valid: size [2, 32], stride [6400], offset 0"),
        ((2,), (1,), -1, "the view is not valid: size [2], stride [1], offset -1"),
    ],
)
def test_an_over_long_view_is_refused_with_the_sizes(
    size: Sequence[int], stride: Sequence[int], offset: int, message: str
) -> None:
    stop = view_of_x(size, stride, offset).run()
    assert stop.line == 2
    assert isinstance(stop.error, nncdbg.RunError)
    assert message in stop.error.message


def test_a_view_of_another_type_counts_its_own_elements() -> None:
    debugger = view_of_x((25600,), (1,), 0, "i16")
    assert debugger.run().reason == "end"
    stop = view_of_x((25601,), (1,), 0, "i16").run()
    assert stop.error is not None
    assert "the view needs 25601 elements, but the memory of its operand has 25600" in str(stop.error)


PROGRAM = nncdbg.parse("""
graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %h = Neg(%x)
  %v = Identity(%h)
  %y = Exp(%v)
  return %y
}
""")


def alias_of_h(**alias: int) -> str:
    values = {"h": {"offset": 64, "size": 64}, "v": {"alias": "h", **alias}}
    return json.dumps({"nncdbg_plan": 1, "graphs": {"main": values}})


@pytest.mark.parametrize("alias", [{}, {"offset": 64}, {"offset": 112, "size": 16}, {"size": 16}])
def test_an_alias_inside_its_buffer_is_read(alias: dict[str, int]) -> None:
    plan = parse_plan(alias_of_h(**alias), PROGRAM)
    again = parse_plan(plan_text(plan), PROGRAM)
    assert again.places == plan.places


@pytest.mark.parametrize(
    ("alias", "bytes_"),
    [
        ({"offset": 112, "size": 17}, "112 to 129"),
        ({"offset": 80}, "80 to 144"),
        ({"offset": 48, "size": 16}, "48 to 64"),
        ({"size": 65}, "64 to 129"),
    ],
)
def test_an_alias_beyond_its_buffer_is_refused_with_the_sizes(alias: dict[str, int], bytes_: str) -> None:
    with pytest.raises(nncdbg.UsageError) as caught:
        parse_plan(alias_of_h(**alias), PROGRAM)
    assert caught.value.message == (
        f"the plan: %v of main is an alias of %h, but its bytes {bytes_} are not inside those of %h, "
        "64 to 128"
    )
