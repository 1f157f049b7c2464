"""Read the tokens of an expression: symbols, strings, numbers and names of values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice

from nncdbg.errors import ExpressionError
from nncdbg.expression import nodes
from nncdbg.expression.nodes import MAX_DEPTH, fault
from nncdbg.text.lexemes import BARE, LOCAL, PREFIXED, STRING, Flaw, name_text, unquote
from nncdbg.text.short_names import ELLIPSIS, Scopes, choices, meant, nearest_name, written_name

MAX_TEXT = 10_000
"""Maximum length of an expression, in characters."""

FOREIGN: dict[str, str] = {
    "=": "compare with `==`",
    "&&": "write `and`, or `&` element by element",
    "||": "write `or`, or `|` element by element",
    "!": "write `not`, or `~` element by element",
    "<<": "shifts are not part of the language; multiply by a power of two",
    ">>": "shifts are not part of the language; divide with `//`",
    ":=": "an expression cannot assign; use the `set` command",
    "%": "`%` marks names; the remainder is mod(a, b)",
    "nonzero": "write argwhere(x): the indices of the elements that are not 0",
    "float": 'write x.astype("f32")',
    "half": 'write x.astype("f16")',
    "double": 'write x.astype("f64")',
    "int": 'write x.astype("i64")',
    "tolist": "print the tensor, or save it with `dump`",
    "numpy": "tensors are arrays here; `py` runs Python with NumPy",
    "in": "write any(%x == value)",
    "is": "compare with `==`",
    "lambda": "an expression cannot define a function",
    "for": "expressions work on whole tensors; there are no loops",
}

_HINT_LENGTH = 200
"""Maximum length of a misspelled name that is compared with the known ones, in characters."""

_HINT_NAMES = 20_000
"""Maximum number of compared names; each takes about 25 microseconds."""

_LONGEST_NAME = 1000
"""Maximum length of a text that can be a part of a name, in characters."""

_GUESSES = 4
"""Maximum number of prefixes of an unknown name that are searched for as parts of known names."""

_MARKED = "write `%` before the name of a value: %x"

_SPACE = re.compile(r"\s*")
_OPERATOR = re.compile(r"\*\*|//|==|!=|<=|>=|&&|\|\||<<|>>|:=|(?:if|else|and|or|in|is|for|not)\b|[^\w\s]")
NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_]\w*|[0-9]{1,18}\b", re.ASCII)
_BARE_NAME = re.compile(rf"(?:{BARE}|{ELLIPSIS})+")
_odd_name = re.compile(r"[^\s,()\[\]{}\"']+")
_PREFIXED_NAME = re.compile(f"{PREFIXED}|{LOCAL}")
_LOCAL_NAME = re.compile(LOCAL)
KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)", re.ASCII)
_STRING = re.compile(rf"{STRING}|'(?:[^'\\]|\\.)*'")


_WORD_GOES_ON = re.compile(r"(?<=\w)\w")
_LONGEST_ALIAS = 200


LATER = "\n"
"""The value of an alias that is resolved each time that an expression is evaluated."""


class Tokens:
    """Reads one text, from `position` on.

    `has` returns whether a name is known; `names`, if given, lists the known ones for hints.  `aliases` are
    other names of values, in Python's syntax: `h`, `self.cache`, `batch["x"]`; one with "" has no value now,
    and one with `LATER` is read without one.
    """

    def __init__(
        self,
        text: str,
        has: Callable[[str], bool],
        names: Callable[[], Iterable[str]] | None = None,
        aliases: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        if len(text) > MAX_TEXT:
            raise fault(
                text, 0, 1, f"the expression has {len(text)} characters; at most {MAX_TEXT} are allowed"
            )
        self.text = text
        self.position = 0
        self.has = has
        self._names = names
        self._aliases = aliases

    def alias(self) -> str | None:
        """Read the longest alias that begins here, and return the name of its value; None without one."""
        aliases = self._aliases()
        for end in range(min(len(self.text), self.position + _LONGEST_ALIAS), self.position, -1):
            name = aliases.get(self.text[self.position : end])
            if name and not _WORD_GOES_ON.match(self.text, end):
                self.position = end
                return "" if name == LATER else name
        return None

    def has_no_value(self, word: str) -> bool:
        """Return whether a word is an alias without a value."""
        return self._aliases().get(word) == ""

    def string(self) -> str:
        """Read a quoted string, with the escapes of program text."""
        start = self.position
        match = _STRING.match(self.text, start)
        if match is None:
            raise self.fault("the string is not closed")
        try:
            string = unquote(match.group(), start)
        except Flaw as flaw:
            raise self.fault_at(flaw.start, flaw.start + flaw.width, flaw.message, flaw.hint) from None
        self.position = match.end()
        return string

    def peek(self) -> str:
        """Skip space and return the next operator, keyword or bracket; "" for anything else."""
        space = _SPACE.match(self.text, self.position)
        assert space is not None
        self.position = space.end()
        match = _OPERATOR.match(self.text, self.position)
        return match.group() if match else ""

    def take(self, symbol: str) -> None:
        """Advance past `symbol`, which must be next."""
        self.peek()
        self.position += len(symbol)

    def at(self, symbol: str) -> bool:
        """Return whether `symbol` is next."""
        return self.peek() == symbol

    def expect(self, symbol: str, message: str) -> None:
        """Read `symbol`, or raise with `message`."""
        found = self.peek()
        if found != symbol:
            raise self.fault(message, width=max(1, len(found)), hint=FOREIGN.get(found))
        self.take(symbol)

    def glimpse(self) -> str:
        """Return the next word or character, for a message."""
        match = WORD.match(self.text, self.position)
        return match.group() if match else self.text[self.position : self.position + 1]

    def fault(self, message: str, width: int = 1, hint: str | None = None) -> ExpressionError:
        """Return an error at the `width` characters from the position, without raising it."""
        return fault(self.text, self.position, self.position + width, message, hint=hint)

    def fault_at(self, start: int, end: int, message: str, hint: str | None = None) -> ExpressionError:
        """Return an error at these characters, without raising it."""
        return fault(self.text, start, end, message, hint=hint)

    def nearest_value(self, name: str) -> str | None:
        """Return a hint with the known value most similar to `name`, or to `name` before its last dot.

        For a group, the hint names its members.
        """
        if self._names is None:
            return None
        known = list(islice(self._names(), _HINT_NAMES))
        wanted = name[:_HINT_LENGTH]
        members = [other for other in known if other.startswith(f"{wanted}.")]
        if members:
            # A group, or the values that a call has saved.
            more = f" and {len(members) - 3} more" if len(members) > 3 else ""
            return f"write one of its values: {', '.join(map(spelled, members[:3]))}{more}"
        near = nearest_name(wanted, known) or nearest_name(wanted.rpartition(".")[0], known)
        return f"did you mean {spelled(near)}?" if near else None

    def path_hint(self, start: int, end: int) -> str | None:
        """Return a hint to write `%` before the path at `start` if it goes past `end` and names one value."""
        match = _BARE_NAME.match(self.text, start)
        if match is None or self._names is None:
            return None
        longer = (part for part in _candidates(match.group()[:_LONGEST_NAME]) if len(part) > end - start)
        names = self._names()
        part = next((part for part in islice(longer, MAX_DEPTH) if len(meant(part, names)) == 1), None)
        return f"did you mean %{part}?" if part is not None else None

    def number(self, match: re.Match[str]) -> nodes.LiteralExpression:
        """Return the number in `match` with its Python value.  Raises for integers of more than 64 bits."""
        start, end = match.span()
        if end < len(self.text) and (self.text[end].isalnum() or self.text[end] == "_"):
            raise self.fault("this is not a number", width=end + 1 - start)
        digits = match.group()
        self.position = end
        if digits[:2] in ("0x", "0X") or digits.isdigit():
            base = 16 if digits[:2] in ("0x", "0X") else 10
            # 40 characters hold any 64-bit integer; longer ones are not converted.
            value = int(digits, base) if len(digits) <= 40 else 2**64
            if value >= 2**64:
                hint = "write the integer as a float: 1e30"
                raise self.fault_at(start, end, "the integer does not fit in 64 bits", hint)
            return nodes.LiteralExpression(start, end, value)
        return nodes.LiteralExpression(start, end, float(digits))

    def sigil_name(self) -> str:
        """Read `%name` or `%"odd name"`: the longest run of name characters that is known."""
        self.peek()
        start = self.position
        self.position += 1
        if self.text.startswith('"', self.position):
            name = self.string()
            if self.has(name):
                return name
            if found := self.meant(name, start):
                return found
            raise self.unknown_name(name, start, self.position)
        if (written := self.prefixed_name()) is not None:
            return written
        if (local := _LOCAL_NAME.match(self.text, self.position)) is not None:
            raise self.unknown_name(local[0], start, local.end())
        match = _BARE_NAME.match(self.text, self.position)
        if match is None:
            hint = 'quote a name with special characters: %"conv:0"'
            raise self.fault_at(start, start + 1, "expected the name of a value after `%`", hint)
        return self._bare_name(match, start)

    def _bare_name(self, match: re.Match[str], start: int) -> str:
        """Return the known name for the longest possible prefix of a run of name characters.

        A word without `%` must be a whole name or the end of one, not another part.
        """
        marked = match.start() > start
        run = match.group()
        # More parts would be more operators than an expression may have.
        for name in islice(_candidates(run), MAX_DEPTH):
            if self.has(name):
                self.position += len(name)
                return name
        if marked and (odd := _odd_name.match(self.text, match.start())) is not None:
            # A message may contain a name that program text would quote, such as `conv:0`.
            for end in range(odd.end(), max(match.end(), odd.end() - MAX_DEPTH), -1):
                if self.has(self.text[match.start() : end]):
                    name, self.position = self.text[match.start() : end], end
                    return name
            if self.text.startswith(":", match.end()) and (found := self.meant(odd[0], start, parts=False)):
                self.position = odd.end()
                return found
        for part in islice(_candidates(run), _GUESSES):
            parts = marked or WORD.fullmatch(part) is None
            if found := self.meant(part, start, parts=parts):
                self.position += len(part)
                return found
        raise self.unknown_name(run, start, match.end())

    def prefixed_name(self) -> str | None:
        """Read the longest `label::rest` or `.rest` that is a name in the text; return the full name."""
        match = _PREFIXED_NAME.match(self.text, self.position)
        names = self._names() if match is not None and self._names is not None else None
        if match is None or not isinstance(names, Scopes):
            return None
        for part in islice(_candidates(match.group()), MAX_DEPTH):
            if (name := written_name(part, names)) is not None:
                self.position += len(part)
                return name
        return None

    def meant(self, text: str, start: int, *, parts: bool = True) -> str | None:
        """Return the only name with `text`, which begins at `start`, as a part; None if there is none.

        Raises ExpressionError if several names match.
        """
        if self._names is None or len(text) > _LONGEST_NAME:
            return None
        found = meant(text, self._names(), parts=parts)
        if len(found) > 1:
            message = f"`{shortened(text)}` is ambiguous"
            raise self.fault_at(start, self.position + len(text), message, choices(found))
        return found[0] if found else None

    def any_name(self) -> str:
        """Read `%name`, `%"odd name"`, or the same without `%`."""
        if self.peek() == "%":
            return self.sigil_name()
        if (value := self.alias()) is not None:
            return value
        if (written := self.prefixed_name()) is not None:
            return written
        match = _BARE_NAME.match(self.text, self.position)
        if match is None:
            raise self.fault("expected the name of a value", hint=_MARKED)
        return self._bare_name(match, match.start())

    def unknown_name(self, name: str, start: int, end: int) -> ExpressionError:
        """Return the error for an unknown value name, read from `start` to `end`."""
        hint = self.path_hint(start, end) or self.nearest_value(name)
        if hint is None and self.text[start] != "%" and WORD.fullmatch(name) is None:
            hint = _MARKED
        return self.fault_at(start, end, f"there is no value `{shortened(self.text[start:end])}` here", hint)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known word most similar to `word`; None without a similar one."""
    close = get_close_matches(word[:_HINT_LENGTH], list(known), n=1)
    return f"did you mean {close[0]}?" if close else None


def shortened(text: str, length: int = 80) -> str:
    """Return `text`, cut to `length` characters for a message."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _candidates(run: str) -> Iterable[str]:
    """Yield the run, then its prefixes before each `/` and `.`, longest first: `a/b.c`, `a/b`, `a`."""
    yield run
    for end in range(len(run) - 1, 0, -1):
        if run[end] in "/.":
            yield run[:end]


def spelled(name: str) -> str:
    """Return a value's name with its sigil, quoted if it is not a bare name."""
    return "%" + name_text(name)
