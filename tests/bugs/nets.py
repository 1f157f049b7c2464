"""Small random nets for memory plans: several shapes and element types, blocks, loops, calls."""

from __future__ import annotations

from random import Random

TYPES = {"a": "f32[4,6]", "t": "f32[6,4]", "f": "f32[24]", "w": "f32[4,12]", "h": "f16[4,6]", "r": "f32[4,1]"}
"""The kinds of values; the operands and results of most statements are of kind `a`."""

_UNARY = ("Tanh", "Neg", "Sigmoid", "Softmax", "Cos", "Identity")
_BINARY = ("Add", "Sub", "Mul", "Max")

_GROUPS = (
    # From %v and %u to %r, all of the kind `a`.
    ("%p: {t} = Transpose(%v, perm=[1,0])", "%q: {t} = Tanh(%p)", "%r: {a} = Transpose(%q, perm=[1,0])"),
    ("%p: {f} = Reshape(%v, [24])", "%q: {f} = Cos(%p)", "%r: {a} = Reshape(%q, [4,6])"),
    ("%p: {w} = Concat(%v, %u, axis=1)", "%q: {w} = Tanh(%p)", "%r: {a} = Slice(%q, [{k}], [{l}], [1])"),
    ("%p: {h} = Cast(%v, to=10)", "%q: {h} = Neg(%p)", "%r: {a} = Cast(%q, to=1)"),
    ("%p: {r} = ReduceMean(%v, [1])", "%r: {a} = Sub(%u, %p)"),
    ("%p: {a} = MatMul(%v, %m)", "%r: {a} = Tanh(%p)"),
    (
        "%p: {f} = Reshape(%v, [24])",
        "%q: {a} = Neg(%u)",
        "%s: {a} = Reshape(%p, [4,6])",
        "%r: {a} = Mul(%s, %q)",
    ),
    ("%p: {a}, %q: {a} = Split(%c, num_outputs=2, axis=1)", "%r: {a} = Sub(%p, %q)"),
)

_LAYERS = """
graph @layer(%i: f32[4,6], %m: f32[6,6]) -> (%o: f32[4,6]) {
  %j: f32[4,6] = MatMul(%i, %m)
  %k: f32[4,6] = Sigmoid(%i)
  %l: f32[4,6] = Mul(%j, %k)
  %o: f32[4,6] = Tanh(%l)
  return %o
}

graph @stage(%i: f32[4,6], %m: f32[6,6]) -> (%o: f32[4,6], %g: f32[4,6]) {
  %h: f32[4,6] = @layer(%i, %m)
  %g: f32[4,6] = Cos(%h)
  %n: f32[4,6] = @layer(%g, %m)
  %o: f32[4,6] = Sub(%n, %h)
  return %o, %g
}
"""


def random_net(random: Random, size: int) -> str:
    """Return the text of a net of about `size` parts with inputs %x and %y f32[4,6] and %m f32[6,6]."""
    return _Writer(random).program(size)


class _Writer:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self.depth = 0
        self.count = 0

    def program(self, size: int) -> str:
        values = self.block(["%x", "%y"], size)
        fresh = [value for value in values if value not in ("%x", "%y")]
        results = list(dict.fromkeys([fresh[-1], *self.random.sample(fresh, min(2, len(fresh)))]))
        self.line(f"return {', '.join(results)}")
        outputs = ", ".join(f"{name}: {TYPES['a']}" for name in results)
        head = f"opset 18\ngraph @main(%x: f32[4,6], %y: f32[4,6], %m: f32[6,6]) -> ({outputs}) {{"
        return "\n".join((head, *self.lines, "}")) + "\n" + _LAYERS

    def line(self, text: str) -> None:
        self.lines.append("  " * (self.depth + 1) + text)

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def pick(self, values: list[str]) -> str:
        """Return one of the values; recent values are more likely."""
        recent = self.random.random() < 0.5
        return self.random.choice(values[-3:] if recent else values)

    def block(self, visible: list[str], size: int) -> list[str]:
        values = list(visible)
        parts = [self.unary, self.binary, self.binary, self.group, self.group, self.call]
        if self.depth < 2:
            parts += [self.loop, self.branch]
        for _ in range(size):
            values += self.random.choice(parts)(values)
        return values

    def unary(self, values: list[str]) -> list[str]:
        result = self.name()
        self.line(f"{result}: {TYPES['a']} = {self.random.choice(_UNARY)}({self.pick(values)})")
        return [result]

    def binary(self, values: list[str]) -> list[str]:
        result = self.name()
        op = self.random.choice(_BINARY)
        self.line(f"{result}: {TYPES['a']} = {op}({self.pick(values)}, {self.pick(values)})")
        return [result]

    def group(self, values: list[str]) -> list[str]:
        lines = self.random.choice(_GROUPS)
        names = {"%v": self.pick(values), "%u": self.pick(values), "%m": "%m"}
        if any("%c" in line for line in lines):
            names["%c"] = self.name()
            self.line(f"{names['%c']}: {TYPES['w']} = Concat({names['%v']}, {names['%u']}, axis=1)")
        k = self.random.randrange(6)
        for line in lines:
            text = line
            for word in ("%p", "%q", "%s", "%r"):
                if word in text:
                    names.setdefault(word, self.name())
            for word, name in names.items():
                text = text.replace(f"{word}:", f"{name}:").replace(f"{word},", f"{name},")
                text = text.replace(f"{word})", f"{name})")
            for kind, type in TYPES.items():
                text = text.replace(f"{{{kind}}}", type)
            self.line(text.replace("{k}", str(k)).replace("{l}", str(k + 6)))
        return [names["%r"]]

    def call(self, values: list[str]) -> list[str]:
        first, second = self.name(), self.name()
        type = TYPES["a"]
        if self.random.random() < 0.5:
            self.line(f"{first}: {type} = @layer({self.pick(values)}, %m)")
            return [first]
        self.line(f"{first}: {type}, {second}: {type} = @stage({self.pick(values)}, %m)")
        return [first, second]

    def loop(self, values: list[str]) -> list[str]:
        one, other, result, last, stack = (self.name() for _ in range(5))
        type = TYPES["a"]
        carries = f"{one}: {type} = {self.pick(values)}, {other}: {type} = {self.pick(values)}"
        self.line(f"while @w{self.count} ({carries}) times {self.random.randrange(5)} {{")
        self.depth += 1
        inside = [*values, one, other]
        if self.random.random() < 0.3:
            inside += self.unary(inside)
            peak, go = self.name(), self.name()
            self.line(f"{peak}: f32[] = ReduceMax({one}, keepdims=0)")
            self.line(f"{go}: bool[] = Less({peak}, 0.91237)")
            self.line(f"break unless {go}")
        inside = self.block(inside, self.random.randrange(1, 4))
        new = inside[-1]
        carried = one if self.random.random() < 0.5 else self.pick(inside)
        self.line(f"next {one} = {new}, {other} = {carried} collect {new}")
        self.depth -= 1
        self.line(
            f"}} -> ({result}: {type} = {one}, {last}: {type} = {other}, {stack}: f32[?,4,6] = collect[0])"
        )
        return [result, last]

    def branch(self, values: list[str]) -> list[str]:
        peak, go, one, other = (self.name() for _ in range(4))
        self.line(f"{peak}: f32[] = ReduceMax({self.pick(values)}, keepdims=0)")
        self.line(f"{go}: bool[] = Greater({peak}, 0.73123)")
        self.line(f"if {go} @then{self.count} {{")
        for word in (f"}} else @else{self.count} {{", None):
            self.depth += 1
            inside = self.block(values, self.random.randrange(0, 3))
            self.line(f"yield {inside[-1]}, {self.pick(inside)}")
            self.depth -= 1
            self.line(word or f"}} -> ({one}: {TYPES['a']}, {other}: {TYPES['a']})")
        return [one, other]
