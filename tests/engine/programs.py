"""Random programs that run: blocks, loops, branches, calls and random ops over f32[3]."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

UNARY = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Softmax", "Identity", "RandomNormalLike")
BINARY = ("Add", "Sub", "Mul", "Max")


class Writer:
    """Writes graph text from the choices that `draw` makes."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.count = 0
        self.depth = 0

    def line(self, text: str) -> None:
        self.lines.append("  " * (self.depth + 1) + text)

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def block(self, visible: list[str], size: int) -> list[str]:
        """Statements over the values that are visible; those with the new ones."""
        visible = list(visible)
        for _ in range(size):
            kind = self.draw(st.sampled_from(("unary", "binary", "binary", "while", "if", "call")))
            if self.depth >= 2 and kind in ("while", "if"):
                kind = "binary"
            visible.append(getattr(self, "_" + kind)(visible))
        return visible

    def pick(self, visible: list[str]) -> str:
        return self.draw(st.sampled_from(visible))

    def _unary(self, visible: list[str]) -> str:
        result = self.name()
        self.line(f"{result} = {self.draw(st.sampled_from(UNARY))}({self.pick(visible)})")
        return result

    def _binary(self, visible: list[str]) -> str:
        result = self.name()
        op = self.draw(st.sampled_from(BINARY))
        self.line(f"{result} = {op}({self.pick(visible)}, {self.pick(visible)})")
        return result

    def _call(self, visible: list[str]) -> str:
        result = self.name()
        self.line(f"{result} = @layer({self.pick(visible)})")
        return result

    def _while(self, visible: list[str]) -> str:
        carried, other, result = self.name(), self.name(), self.name()
        times = self.draw(st.integers(0, 4))
        self.line(
            f"while @w{self.count} ({carried}: f32[3] = {self.pick(visible)}, "
            f"{other}: f32[3] = {self.pick(visible)}) times {times} {{"
        )
        self.depth += 1
        inside = [*visible, carried, other]
        if self.draw(st.booleans()):
            peak, go = self.name(), self.name()
            self.line(f"{peak} = ReduceMax({carried}, keepdims=0)")
            self.line(f"{go} = Less({peak}, 2.0)")
            self.line(f"break unless {go}")
        inside = self.block(inside, self.draw(st.integers(1, 3)))
        # The parallel assignment: `other` takes the old value of `carried`.
        self.line(f"next {carried} = {inside[-1]}, {other} = {carried}")
        self.depth -= 1
        self.line(f"}} -> ({result}: f32[3] = {self.draw(st.sampled_from((carried, other)))})")
        return result

    def _if(self, visible: list[str]) -> str:
        peak, condition, result = self.name(), self.name(), self.name()
        self.line(f"{peak} = ReduceMax({self.pick(visible)}, keepdims=0)")
        self.line(f"{condition} = Greater({peak}, 0.5)")
        self.line(f"if {condition} @t{self.count} {{")
        for word in ("} else @e {", "}"):
            self.depth += 1
            inside = self.block(visible, self.draw(st.integers(0, 2)))
            self.line(f"yield {inside[-1]}")
            self.depth -= 1
            if word != "}":
                self.line(word)
        self.line(f"}} -> ({result}: f32[3])")
        return result


LAYER = """
graph @layer(%p: f32[3]) -> (%r: f32[3]) {
  %q = Mul(%p, 0.5)
  %r = Add(%q, 0.25)
  return %r
}
"""


@st.composite
def runnable(draw: Any) -> str:
    """Graph text of a program with inputs %x and %z, f32[3]."""
    writer = Writer(draw)
    values = writer.block(["%x", "%z"], draw(st.integers(1, 6)))
    writer.line(f"return {values[-1]}")
    body = "\n".join(writer.lines)
    return f"opset 18\ngraph @main(%x: f32[3], %z: f32[3]) -> ({values[-1]}: f32[3]) {{\n{body}\n}}\n{LAYER}"
