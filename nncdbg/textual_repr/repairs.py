"""Hints that repair a wrong line of program text: the form of the line, and the words of other languages.

Each function gets the rest of a line from the error on, and returns text that can be pasted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from nncdbg.dtypes import NUMPY, ONNX
from nncdbg.text.lexemes import BARE, RESERVED, nearest, quote

STATEMENT = "a statement looks like %y = Op(%x, name=value) : f32[2]"
LITERAL = 'a literal looks like 5, -0.0, inf, nan, true, "text" or [1, 2]'
GRADS = "all gradients of a backward call are a group in grads %g = @loss.backward(1.0, %s)"
GROUP_OF_GROUPS = "give each prefix a group of its own, and name these: group %params = %encoder, %decoder"
SAVED = "a call that saves values for its backward graph looks like %l, saved %s = @loss(%x)"
GRAPH = "a graph looks like graph @main(%x: f32[2]) -> (%y: f32[2]) {"

_FORMS = {
    "opset": "an opset looks like opset 18, or opset com.microsoft 1",
    "store": 'a store looks like store "weights.safetensors"',
    "prefix": 'a prefix looks like prefix encoder "/model/encoder/", and is used as %encoder::Add_1',
    "stream": 'a stream looks like stream s2 "cuda:0"',
    "state": "a state looks like state %w: f32[4,3] = RandomNormal(shape=[4,3]), "
    "or state %m: f32[4,3] = zeros for %w",
    "states": "the states of a module look like states layers.0 { with lines such as %.w: f32[4,3] = data, "
    "the moments of a group like states %m = zeros for %params",
    "run": 'a run looks like run @train for %x, %t in data("x"), data("t") batch 32 epochs 10',
    "evaluate": 'an evaluation looks like evaluate @accuracy for %x, %t in data("x"), data("t") batch 100',
    "track": "a track looks like track accuracy = mean(argmax(%y, 1) == %t)",
    "group": "a group looks like group %params = %w, %b, or group %params = %encoder.*",
    "backward": "it looks like backward @loss.backward of @loss by (%w, %x) checkpoints 8",
    "graph": GRAPH,
    "if": "a branch looks like if %c @then {",
    "while": "a loop looks like while @body (%s: f32[2] = %x) count %i: i64[] times %n {",
    "break": "leave a loop with: break unless %go",
    "update": "an update looks like update %w = %w.1, %m = %m.1",
    "next": "the last line of a loop looks like next %s = %v collect %u",
    "return": "it looks like return %y, %z",
    "yield": "it looks like yield %y, %z",
    "}": "a block ends in }, } else @other { or } -> (%y: f32[2])",
}


def form_of(line: str) -> str:
    """Return an example of the kind of line that `line` starts like."""
    start = re.match(r"\s*(\w+|\})", line)
    return _FORMS.get(start[1] if start else "", STATEMENT)


def close_word(found: str, words: Iterable[str]) -> str | None:
    """Return ``did you mean ...?`` for the word that `found` starts with."""
    start = re.match(r"\w+", found)
    return nearest(start[0], words) if start else None


# -- types -----------------------------------------------------------------------------------------

_DTYPES = {str(dtype): name for name, dtype in NUMPY.items() if name != "str"} | {
    "float": "f32",
    "double": "f64",
    "half": "f16",
    "int": "i64",
    "long": "i64",
    "string": "str",
}
"""The names of other libraries for element types."""


def dtype_named(word: str) -> str | None:
    """Return the element type that NumPy, PyTorch or ONNX calls `word`."""
    return _DTYPES.get(word.lower())


def type_repair(rest: str) -> str | None:
    """Return the hint for a type that is not one: ``f32``, ``float(2)`` or ``[2]``."""
    found = re.match(r"(?P<dtype>\w*)\s*(?:\((?P<round>[^()]*)\)|\[(?P<square>[^\]]*)\])?", rest)
    assert found is not None
    word = found["dtype"]
    dtype = word if word in NUMPY else dtype_named(word)
    sizes = found["round"] if found["round"] is not None else found["square"]
    if not word and sizes:
        return f"write the element type before the sizes: f32[{sizes}]"
    if dtype is None:
        return None
    if sizes is None:
        return f"write {dtype}[] for a scalar, or sizes as in {dtype}[2]"
    return f"write {dtype}[{sizes}]"


# -- literals and operands -------------------------------------------------------------------------

_WORDS = {
    "true": "true",
    "false": "false",
    "nan": "nan",
    "inf": "inf",
    "infinity": "inf",
}
_ITEM = rf"(?:%{BARE}|-?[\d.]+)"
_OPS = {"+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "@": "MatMul", "**": "Pow"}


def _round(match: re.Match[str]) -> str:
    inside = match[1].strip().removesuffix(",")
    return f"write {inside}" if inside.startswith("%") else f"write a list as [{inside}]"


def _number(match: re.Match[str]) -> str | None:
    text = match[0].lstrip("+").replace("_", "")
    if text[:2] in ("0x", "0X"):
        digits = re.fullmatch(r"0[xX]([0-9a-fA-F]{1,16})", text)
        return f"write {int(digits[1], 16)}" if digits else None
    plain = re.match(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text)
    return f"write {plain[0]}" if plain else None


def _nested_call(match: re.Match[str]) -> str:
    rest = match.string
    depth = 0
    for end, char in enumerate(rest, 1):
        depth += (char == "(") - (char == ")")
        if char == ")" and depth == 0:
            return f"{_ALONE}{rest[:end]}"
    return f"{_ALONE}{rest.split('#')[0].rstrip(' {')}"


_ALONE = "compute it in a line of its own: %t = "


def _word(match: re.Match[str]) -> str | None:
    word = match[0]
    if word == "saved":
        return SAVED
    dtype = word if word in ONNX else dtype_named(word)
    if dtype is not None:
        return f"write {ONNX[dtype]}, the number of {dtype} in ONNX"
    return _WORDS.get(word.lower()) and f"write {_WORDS[word.lower()]}"


_LITERALS: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str | None]]] = [
    (re.compile(r"\(([^()]*)\)"), _round),
    (re.compile(r"'([^']*)'"), lambda m: f"write {quote(m[1])}"),
    (
        re.compile(r"(\w+\[[^\]]*\])\s*(\[.*?\]|[^\s,)]+)"),
        lambda m: f"define a constant: %c: {m[1]} = {m[2]}",
    ),
    (re.compile(r"[+-]?\.?\d[\w.]*"), _number),
    (re.compile(r"[A-Za-z_][\w.]*\s*\("), _nested_call),
    (re.compile(r"[A-Za-z_]\w*"), _word),
]
_VALUES: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str | None]]] = [
    (re.compile(rf"({_ITEM})\s*(\*\*|[-+*/@])\s*({_ITEM})"), lambda m: f"write {_OPS[m[2]]}({m[1]}, {m[3]})"),
    (re.compile(rf"-\s*(%{BARE})"), lambda m: f"write Neg({m[1]})"),
    (re.compile(rf"not\s+(%{BARE})"), lambda m: f"{_ALONE}Not({m[1]})"),
    (re.compile(r"(\w+)\s*:"), lambda m: f"write {m[1]}= before its value"),
    (re.compile(r"(?i:none|null)\b"), lambda m: "write _"),
    *_LITERALS,
    (re.compile(r"[A-Za-z_]\w*"), lambda m: f'write %{m[0]} for a value, or "{m[0]}" for a text'),
    (re.compile(r"[,)]"), lambda m: "remove the comma, or write _ for an omitted operand"),
]


def _first(rest: str, table: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str | None]]]) -> str:
    found = ((pattern.match(rest), hint) for pattern, hint in table)
    return next((text for match, hint in found if match and (text := hint(match))), LITERAL)


def operand_repair(rest: str) -> str:
    """Return the hint for what is no operand."""
    return _first(rest, _VALUES)


def literal_repair(rest: str) -> str:
    """Return the hint for what is no literal, in a constant or an attribute."""
    word = re.match(r"[A-Za-z_]\w*", rest)
    hint = _first(rest, _LITERALS)
    return f'write "{word[0]}" for a text' if word and hint is LITERAL and word[0] != "None" else hint


def name_repair(rest: str) -> str:
    """Return the hint where only the name of a value is possible."""
    word = re.match(rf"(?!\d){BARE}(?![\w/.$]|\s*\()", rest)
    if word is not None:
        return f"write %{word[0]}"
    if re.match(r"\(|\w+\s*\(", rest):
        return operand_repair(rest)
    return "write a value such as %x; define a constant for a number: %c: f32[] = 0.5"


def list_repair(rest: str, close: str) -> str:
    """Return the hint for what does not continue a list that ends with `close`."""
    if not rest:
        return f"write {close} at the end of the list"
    if rest[0] == "[":
        return "write an index as an op in a line of its own: %t = Gather(%x, 0)"
    if rest[0] == ":":
        return "remove the type: only definitions have types"
    return f"write , between items and {close} after the last one"


def value_repair(rest: str) -> str:
    """Return the hint for what is neither an op, a call nor a literal after ``=``."""
    if rest.startswith("="):
        return f"write one ={rest[1:]}"
    copy = re.match(rf"(%{BARE})\s*(?:#|$)", rest)
    if copy is not None:
        return f"write a copy as Identity({copy[1]})"
    call = re.match(r"(@?[A-Za-z_][\w.]*)\s+(%[^#(]*?)\s*(?:#|$)", rest)
    if call is not None and call[1] != "not":
        return f"write the operands in parentheses: {call[1]}({call[2]})"
    return operand_repair(rest) if re.match(r"%|-\s*%|not\b", rest) else literal_repair(rest)


# -- whole lines -----------------------------------------------------------------------------------

_FOREIGN = {
    "for": "write a loop as while (%s: f32[2] = %x) count %i: i64[] times 10 {",
    "else": "write } else {",
    "elif": "write } else {, and an if inside it",
    "endif": "close the block with }",
    "end": "close the block with }",
    "pass": "remove it; a block may be empty",
    "continue": "remove it; a loop continues after next",
    "saved": SAVED,
}


def statement_repair(rest: str) -> str:
    """Return the hint for a line inside a graph that is not a statement."""
    word = re.match(r"[A-Za-z_][\w.]*", rest)
    if word is None:
        return STATEMENT
    known = _FOREIGN.get(word[0])
    if known is not None:
        return known
    if re.match(r"\s*[=:,]", rest[word.end() :]):
        return f"write %{word[0]}"
    return nearest(word[0], RESERVED) or STATEMENT


def outside_repair(line: str) -> str:
    """Return the hint for a line outside graphs that is none of the lines there."""
    word = re.match(r"\s*(\w+)", line)
    if word is None or word[1] in RESERVED or re.match(r"\s*\w+\s*[(=.:]", line):
        return "open one before it: graph @main() -> () {"
    if line.rstrip().endswith(("{", ":")):
        return GRAPH
    outside = (
        "opset",
        "store",
        "prefix",
        "stream",
        "state",
        "states",
        "group",
        "graph",
        "backward",
        "run",
        "evaluate",
        "track",
    )
    return nearest(word[1], outside) or f"outside graphs, a line starts with {', '.join(outside)}"


def end_repair(rest: str) -> str:
    """Return the hint for text after the end of a statement."""
    if rest.startswith("//"):
        return "write a comment as # text"
    if rest.startswith("saved"):
        return SAVED
    if rest.startswith("%"):
        return "write a comma between values: %a, %b"
    return "write one statement per line" if rest[:1].isalpha() else "remove it"
