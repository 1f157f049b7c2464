"""Random executable programs over shape [3]: elementwise, reduce and shape ops, loops, branches, calls."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from hypothesis import strategies as st

import nncdbg

UNARY = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Softmax", "Identity")
BINARY = ("Add", "Sub", "Mul", "Max")
REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp")
RANDOM = "RandomNormalLike"

SHAPES = (
    # Each computes %r from %v and optionally %w, all with 3 elements; {k} is 0, 1 or 2.
    ("%a = Reshape(%v, [3,1])", "%b = Transpose(%a, perm=[1,0])", "%r = Squeeze(%b, [0])"),
    ("%a = Unsqueeze(%v, [0])", "%b = Expand(%a, [2,3])", "%r = ReduceSum(%b, [0], keepdims=0)"),
    ("%a = Concat(%v, %w, axis=0)", "%r = Slice(%a, [{k}], [{k3}], [0])"),
    ("%a, %b = Split(%v, [1,2], axis=0)", "%r = Concat(%b, %a, axis=0)"),
    ("%r = Gather(%v, [2,{k},0], axis=0)",),
    ("%a = ReduceMean(%v, keepdims=1)", "%s = Shape(%w)", "%r = Expand(%a, %s)"),
    ("%a = Pad(%v, [{k},1], 0.25)", "%r = Slice(%a, [1], [4], [0])"),
    ("%a = Tile(%v, [2])", "%b = Reshape(%a, [2,-1])", "%r = ReduceMax(%b, [0], keepdims=0)"),
    ("%a = Less(%v, %w)", "%r = Where(%a, %v, %w)"),
    ("%r = CumSum(%v, 0)",),
)


KINDS = ("unary", "binary", "binary", "reduce", "shape", "while", "if", "call")


class Writer:
    """Generates graph text from the choices of `draw`.

    All values that later statements may read have 3 elements of `dtype`; `random` allows random ops.
    """

    def __init__(self, draw: Any, dtype: str, random: bool) -> None:
        self.draw = draw
        self.type = f"{dtype}[3]"
        self.unary = (*UNARY, RANDOM) if random else UNARY
        self.lines: list[str] = []
        self.count = 0
        self.depth = 0

    def line(self, text: str) -> None:
        self.lines.append("  " * (self.depth + 1) + text)

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def block(self, visible: list[str], size: int) -> list[str]:
        """Write `size` statements over the visible values; return the old and new values."""
        visible = list(visible)
        for _ in range(size):
            kind = self.draw(st.sampled_from(KINDS))
            if self.depth >= 2 and kind in ("while", "if"):
                kind = "binary"
            visible.append(getattr(self, "_" + kind)(visible))
        return visible

    def pick(self, visible: list[str]) -> str:
        name: str = self.draw(st.sampled_from(visible))
        return name

    def _unary(self, visible: list[str]) -> str:
        result = self.name()
        self.line(f"{result} = {self.draw(st.sampled_from(self.unary))}({self.pick(visible)})")
        return result

    def _binary(self, visible: list[str]) -> str:
        result = self.name()
        op = self.draw(st.sampled_from(BINARY))
        self.line(f"{result} = {op}({self.pick(visible)}, {self.pick(visible)})")
        return result

    def _reduce(self, visible: list[str]) -> str:
        """Write a reduction and the sum of its result with a value of 3 elements."""
        number, result = self.name(), self.name()
        op, keep = self.draw(st.sampled_from(REDUCE)), self.draw(st.integers(0, 1))
        self.line(f"{number} = {op}({self.pick(visible)}, keepdims={keep})")
        self.line(f"{result} = Add({number}, {self.pick(visible)})")
        return result

    def _shape(self, visible: list[str]) -> str:
        lines = self.draw(st.sampled_from(SHAPES))
        names = {"%v": self.pick(visible), "%w": self.pick(visible)}
        k = self.draw(st.integers(0, 2))
        for line in lines:
            for word in dict.fromkeys(re.findall(r"%[a-z]", line)):
                names.setdefault(word, self.name())
            statement = re.sub(r"%[a-z]", lambda found: names[found[0]], line)
            self.line(statement.replace("{k}", str(k)).replace("{k3}", str(k + 3)))
        return names["%r"]

    def _call(self, visible: list[str]) -> str:
        result = self.name()
        self.line(f"{result}: {self.type} = @layer({self.pick(visible)})")
        return result

    def _while(self, visible: list[str]) -> str:
        carried, other, result = self.name(), self.name(), self.name()
        times = self.draw(st.integers(0, 4))
        self.line(
            f"while @w{self.count} ({carried}: {self.type} = {self.pick(visible)}, "
            f"{other}: {self.type} = {self.pick(visible)}) times {times} {{"
        )
        self.depth += 1
        inside = [*visible, carried, other]
        if self.draw(st.booleans()):
            peak, go = self.name(), self.name()
            self.line(f"{peak} = ReduceMax({carried}, keepdims=0)")
            self.line(f"{go} = Less({peak}, 1.9137)")
            self.line(f"break unless {go}")
        inside = self.block(inside, self.draw(st.integers(1, 3)))
        # Parallel assignment: `other` becomes the previous value of `carried`.
        self.line(f"next {carried} = {inside[-1]}, {other} = {carried}")
        self.depth -= 1
        self.line(f"}} -> ({result}: {self.type} = {self.draw(st.sampled_from((carried, other)))})")
        return result

    def _if(self, visible: list[str]) -> str:
        peak, condition, result = self.name(), self.name(), self.name()
        self.line(f"{peak} = ReduceMax({self.pick(visible)}, keepdims=0)")
        self.line(f"{condition} = Greater({peak}, 0.4837)")
        self.line(f"if {condition} @t{self.count} {{")
        for word in ("} else @e {", "}"):
            self.depth += 1
            inside = self.block(visible, self.draw(st.integers(0, 2)))
            self.line(f"yield {inside[-1]}")
            self.depth -= 1
            if word != "}":
                self.line(word)
        self.line(f"}} -> ({result}: {self.type})")
        return result


LAYER = """
graph @layer(%p: {type}) -> (%r: {type}) {{
  %q = Mul(%p, 0.5)
  %r = Add(%q, 0.25)
  return %r
}}
"""


@st.composite
def runnable(draw: Any, dtype: str = "f32", random: bool = True) -> str:
    """Graph text of a program with inputs %x and %z of 3 elements.

    Its conditions compare with numbers that no exact result equals, so rounding never decides them.
    """
    writer = Writer(draw, dtype, random)
    values = writer.block(["%x", "%z"], draw(st.integers(1, 6)))
    writer.line(f"return {values[-1]}")
    body = "\n".join(writer.lines)
    inputs = f"%x: {writer.type}, %z: {writer.type}"
    layer = LAYER.format(type=writer.type)
    return f"opset 18\ngraph @main({inputs}) -> ({values[-1]}: {writer.type}) {{\n{body}\n}}\n{layer}"


def largest(debugger: nncdbg.Debugger) -> float:
    """Step to the end and return the largest magnitude of all values; inf if a value is not finite."""
    most = 0.0
    while not debugger.control.machine.ended:
        assert debugger.step_into().error is None
        for content in debugger.control.machine.frames[-1].slots:
            if isinstance(content, np.ndarray) and content.dtype.kind == "f":
                most = max(most, float(np.abs(content).max(initial=0)))
                if not np.isfinite(content).all():
                    return np.inf
    return most
