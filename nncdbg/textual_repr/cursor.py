"""A position in one line, and readers of names, types, literals and clauses that advance it.

Every reader raises Flaw with the column of the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from nncdbg.ir.records import Inline, Location, Placement, TensorType, Type
from nncdbg.text.lexemes import (
    BARE,
    LOCAL,
    NO_PREFIXES,
    OP,
    PREFIX_END,
    PREFIXED,
    STRING,
    WORD,
    Flaw,
    Prefixes,
    UndeclaredPrefix,
    quote,
    unquote,
)
from nncdbg.text.types import parse_type, type_end
from nncdbg.textual_repr import repairs
from nncdbg.textual_repr.literals import (
    Misfit,
    NanBits,
    Pair,
    array_of,
    rounding_note,
    single,
    type_of_data,
)

_blank = re.compile(r"[ \t\r\n]*").match
_BLANKS = frozenset(" \t\r\n")
_word = re.compile(rf"{WORD}").match
_op = re.compile(rf"{OP}").match
_bare = re.compile(BARE).match
_local = re.compile(LOCAL).match
_string = re.compile(STRING).match
_bare_string = re.compile(r"'([^']*)'|[^\s,()=:'\"\d][^\s,()=:'\"]*").match
_LINKS = frozenset({"of", "by", "for", "in"})
_label = re.compile(rf"({OP}){PREFIX_END}").match
_prefixed = re.compile(PREFIXED).match
_tensor_head = re.compile(r"[A-Za-z]\w*\[", re.ASCII).match
_int = re.compile(r"-?[0-9]+").match
_numbered = re.compile(r"([a-z])([0-9]{1,9})(?![\w.])").match
_stream_number = re.compile(r"[0-9]{1,9}(?![\w.])").match
_key = re.compile(rf"({OP}|{STRING})[ \t]*=").match
_plain_location = re.compile(
    r'loc\("[^"\\]*":[0-9]{1,9}(?:, node "[^"\\]*")?(?:, from "[^"\\]*":[0-9]{1,9})*\)'
).match
_number = re.compile(
    r"nan:0x(?P<bits>[0-9a-fA-F]+)|(?P<int>-?[0-9]+)(?![0-9.eE:])"
    r"|(?P<float>-?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf)|nan)(?P<wide>:f64)?"
).match

DEEPEST = 256
"""Maximum nesting depth of lists; NumPy arrays have at most 64 axes."""


class Cursor:
    """A reader of `line`, starting at `position`; names may start with one of `prefixes`."""

    __slots__ = ("_has_labels", "flaws", "notes", "line", "position", "prefixes")

    def __init__(self, line: str, position: int = 0, prefixes: Prefixes = NO_PREFIXES) -> None:
        self.line = line
        self.position = position
        self.prefixes = prefixes
        # Searched once per line: a line may have thousands of names.
        self._has_labels = PREFIX_END in line
        self.flaws: list[Flaw] = []
        """Flaws that did not stop the reader."""
        self.notes: list[str] = []
        """What is remarkable about the numbers of the line."""

    # -- single tokens -------------------------------------------------------------------------

    def blank(self) -> int:
        """Skip blanks; return the position after them."""
        if self.line[self.position : self.position + 1] not in _BLANKS:
            return self.position
        match = _blank(self.line, self.position)
        if match is not None:
            self.position = match.end()
        return self.position

    def at(self, token: str) -> bool:
        return self.line.startswith(token, self.blank())

    def accept(self, token: str) -> bool:
        if not self.at(token):
            return False
        self.position += len(token)
        return True

    def expect(self, token: str, hint: str | None = None) -> None:
        if not self.accept(token):
            raise self.flaw(f"expected '{token}'", hint)

    def rest(self) -> str:
        """Return the next characters of the line, as many as a hint can show."""
        return self.line[self.blank() : self.position + 300]

    def flaw(self, message: str, hint: str | None = None) -> Flaw:
        """Return a Flaw at the position; its message names the word there.

        Without `hint`, the hint is an example of this kind of line.
        """
        hint = hint or repairs.form_of(self.line)
        start = self.blank()
        match = re.compile(r'[%@]?[\w/.$]+|"[^"]*"?|.').match(self.line, start)
        found = f"'{match[0]}'" if match else "the end of the line"
        return Flaw(f"{message}, found {found}", start, len(match[0]) if match else 1, hint)

    def flaw_from(self, start: int, message: str, hint: str | None, code: str = "syntax") -> Flaw:
        """Return a Flaw of what was read from `start` on."""
        return Flaw(message, start, self.position - start, hint, code=code)

    def whole(self, message: str, hint: str) -> Flaw:
        """Return a Flaw of the whole statement."""
        text = self.line
        return Flaw(message, len(text) - len(text.lstrip()), max(1, len(text.strip())), hint)

    def peek_word(self) -> str:
        """Return the word at the position, or an empty string."""
        match = _word(self.line, self.blank())
        return match[0] if match else ""

    def accept_word(self, word: str) -> bool:
        if self.peek_word() != word:
            return False
        self.position += len(word)
        return True

    def end(self) -> None:
        """Raise Flaw unless only a comment follows."""
        if self.blank() < len(self.line) and self.line[self.position] != "#":
            raise self.flaw("expected the end of the statement", repairs.end_repair(self.rest()))

    def string(self, hint: str | None = None) -> str:
        match = _string(self.line, self.blank())
        if match is None:
            if self.at('"'):
                width = len(self.line) - self.position
                raise Flaw("the string is not closed", self.position, width, 'end it with "')
            bare = _bare_string(self.rest())
            if bare is not None:
                hint = f"write {quote(bare[1] or bare[0])}"
            raise self.flaw("expected a string", hint)
        self.position = match.end()
        return unquote(match[0], match.start())

    def integer(self, hint: str | None = None) -> int:
        match = _int(self.line, self.blank())
        if match is None:
            raise self.flaw("expected an integer", hint)
        self.position = match.end()
        return _integer(match[0], match.start())

    def name(self, sigil: str) -> str:
        """Read ``%name`` or ``@name``, bare or quoted, after its sigil."""
        if not self.accept(sigil):
            word = _bare(self.line, self.blank())
            raise self.flaw(
                f"expected '{sigil}'", f"write {sigil}{word[0]}" if word and word[0] not in _LINKS else None
            )
        if self.line.startswith('"', self.position):
            return self.string()
        if sigil == "%" and self._has_labels and _label(self.line, self.position):
            return self.prefixed()
        match = _local(self.line, self.position) if sigil == "%" and self.prefixes.module else None
        if match is not None:
            self.position = match.end()
            return self.prefixes.full(match[0])
        match = _bare(self.line, self.position)
        if match is None:
            raise self.flaw(f"expected a name after {sigil}", f'quote other names: {sigil}"conv:0"')
        self.position = match.end()
        return match[0]

    def bare_or_quoted(self) -> str:
        """Read a name without a sigil."""
        match = _bare(self.line, self.blank())
        if match is None:
            return self.string("write the name of a module, such as layers.0")
        self.position = match.end()
        return match[0]

    def prefixed(self) -> str:
        """Read ``label::rest`` and return the full name."""
        label = _label(self.line, self.position)
        assert label is not None
        match = _prefixed(self.line, self.position)
        if match is None:
            self.position = label.end()
            raise self.flaw(f"expected a name after {label[0]}", f'quote other names: {label[0]}"conv:0"')
        try:
            name = self.prefixes.full(match[0])
        except UndeclaredPrefix:
            hint = f'declare it before the first graph: prefix {label[1]} "..."'
            message = f"the prefix {label[1]} is not declared"
            raise Flaw(message, label.start(1), len(label[1]), hint, code="undefined") from None
        except Flaw as flaw:
            raise Flaw(flaw.message, label.end() + flaw.start, flaw.width, flaw.hint) from None
        self.position = match.end()
        return name

    def prefixed_or_string(self, hint: str) -> str:
        """Read ``"..."`` or ``label::rest``."""
        return self.prefixed() if _label(self.line, self.blank()) else self.string(hint)

    def key(self) -> str | None:
        """Read ``name=`` if it is at the position; return the name."""
        match = _key(self.line, self.blank())
        if match is None:
            return None
        self.position = match.end()
        return unquote(match[1], match.start()) if match[1][0] == '"' else match[1]

    def op(self) -> str:
        """Read an op name: a word, a quoted string, or ``@graph``."""
        if self.at("@"):
            return "@" + self.name("@")
        if self.at('"'):
            return self.string()
        match = _op(self.line, self.position)
        if match is None:
            raise self.flaw("expected an op, a call or a literal")
        self.position = match.end()
        return match[0]

    def label(self) -> str:
        """Read the label of a prefix: a word that may contain dots."""
        match = _op(self.line, self.blank())
        if match is None:
            raise self.flaw("expected a label")
        self.position = match.end()
        return match[0]

    # -- types and definitions -----------------------------------------------------------------

    def type(self) -> Type:
        start = self.blank()
        end = type_end(self.line, start)
        if end is None:
            hint = repairs.type_repair(self.rest())
            raise self.flaw("expected a type", hint or "a type looks like f32[N,3,?], a scalar f32[]")
        try:
            found = parse_type(self.line[start:end])
        except Flaw as flaw:
            raise Flaw(flaw.message, start + flaw.start, flaw.width, flaw.hint) from None
        self.position = end
        return found

    def type_clause(self) -> Type | None:
        """Read an optional ``: type``. An invalid type with brackets is noted as a flaw and skipped."""
        if not self.accept(":"):
            return None
        end = type_end(self.line, self.blank())
        try:
            return self.type()
        except Flaw as flaw:
            if end is None:
                raise
            self.flaws.append(flaw)
            self.position = end
            return None

    def types_behind(self) -> list[Type | None] | None:
        """Read an optional ``: type, _, type`` behind a call, where ``_`` is an unknown type."""
        if not self.at(":"):
            return None
        types: list[Type | None] = []

        def one() -> None:
            types.append(None if self.accept_word("_") else self.type())

        self.position += 1
        self.items(one)
        return types

    def items(self, read: Callable[[], object]) -> None:
        """Read ``item, item``."""
        read()
        while self.accept(","):
            read()

    def sequence(self, read: Callable[[], None], close: str) -> None:
        """Read ``item, item)`` after the opening parenthesis; the list may be empty."""
        if self.accept(close):
            return
        while True:
            read()
            if self.accept(close):
                return
            if not self.accept(","):
                raise self.flaw(f"expected ',' or '{close}'", repairs.list_repair(self.rest(), close))

    # -- literals ------------------------------------------------------------------------------

    def nested(self, scalar: Callable[[], Any]) -> Any:
        """Read a scalar, or lists of scalars as nested tuples, without recursion."""
        open_lists: list[list[Any]] = []
        while True:
            if self.at("["):
                if len(open_lists) == DEEPEST:
                    raise self.flaw("lists are nested too deeply", f"use at most {DEEPEST} levels")
                self.position += 1
                if not self.accept("]"):
                    open_lists.append([])
                    continue
                value: Any = ()
            else:
                value = scalar()
            while open_lists:
                open_lists[-1].append(value)
                if self.accept(","):
                    break
                self.expect("]", "separate the items of a list with commas")
                value = tuple(open_lists.pop())
            else:
                return value

    def _basic(self) -> Any:
        """Read a bool, a string or bytes; return None for anything else."""
        word = self.peek_word()
        if word in ("true", "false"):
            self.position += len(word)
            return word == "true"
        if word == "b" and self.line.startswith('b"', self.position):
            self.position += 1
            start = self.position
            try:
                return self.string().encode("latin-1")
            except UnicodeEncodeError as error:
                message = "bytes contain characters up to \\xff only"
                raise self.flaw_from(start, message, "write other bytes as \\xNN") from error
        return self.string() if self.at('"') else None

    def _number(
        self, bits: str, wide: str, hint: str, repair: Callable[[str], str] = repairs.literal_repair
    ) -> tuple[Any, re.Match[str]]:
        """Read a number. `bits` and `wide` are why NaN by its bits, and ``:f64``, are errors; or empty."""
        match = _number(self.line, self.blank())
        after = self.line[match.end() : match.end() + 1] if match else ""
        if match is None or after.isalnum() or after in ("_", ".", "$", "/", "%", "@"):
            raise self.flaw("expected a literal", repair(self.rest()))
        self.position = match.end()
        if match["int"]:
            return _integer(match["int"], match.start()), match
        refused = bits if match["bits"] else wide if match["wide"] else ""
        if refused:
            raise self.flaw_from(match.start(), refused, hint)
        return NanBits(int(match["bits"], 16)) if match["bits"] else float(match["float"]), match

    def operand_scalar(self) -> Any:
        basic = self._basic()
        if basic is not None:
            return basic
        message = "an operand gets its type from its position"
        hint = "write only the number, or define a constant of the type you want"
        return self._number(message, message, hint, repairs.operand_repair)[0]

    def attribute_scalar(self) -> Any:
        if self.peek_word() == "type" and self.line.startswith("(", self.position + 4):
            self.position += 5
            found = self.type()
            self.expect(")")
            return found
        if _tensor_head(self.line, self.blank()):
            found = self.type()
            assert isinstance(found, TensorType)
            return Inline(self.array(found))
        basic = self._basic()
        if basic is not None:
            return basic
        refused = "an attribute's NaN has no payload"
        value, match = self._number(refused, "", "write nan, or a tensor: f32[] nan:0x...")
        if match["int"] or match["wide"]:
            return value
        rounded = single(value)
        if rounded is None or (rounded == 0 and value != 0):
            message = "the number is out of range for f32, the type of float attributes"
            raise self.flaw_from(match.start(), message, f"write {match[0]}:f64 if the op takes a double")
        return rounded

    def array_scalar(self) -> Any:
        if self.accept("("):
            real = self.array_scalar_real()
            self.expect(",", "a complex number looks like (1.0, -2.0)")
            imaginary = self.array_scalar_real()
            self.expect(")", "a complex number looks like (1.0, -2.0)")
            return Pair((real, imaginary))
        basic = self._basic()
        return self.array_scalar_real() if basic is None else basic

    def array_scalar_real(self) -> Any:
        return self._number("", "the constant's type applies to all its elements", "remove :f64")[0]

    def at_literal(self) -> bool:
        """Return whether a literal of a constant comes next."""
        return self.line[self.blank() : self.position + 1] in {"[", "(", '"'} or (
            self.peek_word() in ("true", "false", "b") or _number(self.line, self.position) is not None
        )

    def untyped_array(self) -> TensorType:
        """Read a literal without a type; return the type that it most likely has."""
        start = self.blank()
        data = self.nested(self.array_scalar)
        try:
            return type_of_data(data)
        except Misfit as misfit:
            raise self.flaw_from(start, misfit.message, misfit.hint) from None

    def array(self, type: TensorType) -> Any:
        """Read a literal as an array of `type`."""
        start = self.blank()
        data = self.nested(self.array_scalar)
        try:
            array = array_of(data, type)
        except Misfit as misfit:
            raise self.flaw_from(start, misfit.message, misfit.hint) from None
        words = rounding_note(data, array)
        if words:
            self.notes.append(words)
        return array

    # -- clauses -------------------------------------------------------------------------------

    def suffix(self, opens: str = "") -> tuple[Location | None, Placement | None]:
        """Read the location and the margin at the end of a line, and ``{`` if it `opens` a block."""
        suffix = self.location(), self.placement()
        if opens:
            self.expect(opens)
        self.end()
        return suffix

    def location(self) -> Location | None:
        """Read an optional ``loc("FILE":LINE, node "NAME", from "FILE":LINE, ...)``."""
        plain = _plain_location(self.line, self.blank())
        if plain is not None:
            self.position = plain.end()
            return _known_location(plain[0])
        return self._location()

    def numbered(self, letter: str, hint: str | None = None) -> int:
        """Read a letter and a number, such as ``s2`` or ``e5``."""
        match = _numbered(self.line, self.blank())
        if match is None or match[1] != letter:
            raise self.flaw(f"expected {letter} and a number", hint)
        self.position = match.end()
        return int(match[2])

    def placement(self) -> Placement | None:
        """Read an optional margin ``| s2 wait e5 begin s3->4 workspace w0 record e9 free %x``."""
        if not self.at("|"):
            return None
        self.position += 1
        streams: list[tuple[int | None, int | None]] = []
        streams.append((None, None) if self.accept_word("host") else self._stream())
        waits = self._numbers("wait", "e")
        if self.accept_word("begin"):
            streams.append(self._stream())
            while self._at_numbered("s"):
                streams.append(self._stream())
        workspace = None
        if self.accept_word("workspace"):
            workspace = self.peek_word()
            if not workspace:
                raise self.flaw("expected the name of a workspace", _MARGIN)
            self.position += len(workspace)
        records = self._numbers("record", "e")
        frees: list[str] = []
        if self.accept_word("free"):
            while not frees or self.at("%"):
                frees.append(self.name("%"))
        if self.blank() < len(self.line) and self.line[self.position] not in "#{":
            raise self.flaw("this is not part of a margin", _MARGIN)
        logical = tuple(number for number, _ in streams)
        return Placement(
            stream=streams[0][1],
            waits=waits,
            begins=tuple(bound for _, bound in streams[1:] if bound is not None),
            workspace=workspace,
            records=records,
            frees=tuple(frees),
            logical=logical if any(number is not None for number in logical) else (),
        )

    def _stream(self) -> tuple[int | None, int]:
        """Read a stream ``s4``, or ``s3->4`` with its logical number first."""
        number = self.numbered("s", _MARGIN)
        if not self.accept("->"):
            return None, number
        match = _stream_number(self.line, self.blank())
        if match is None:
            raise self.flaw(f"expected the number of the stream that s{number} is bound to", _BOUND)
        self.position = match.end()
        return number, int(match[0])

    def _at_numbered(self, letter: str) -> bool:
        match = _numbered(self.line, self.blank())
        return match is not None and match[1] == letter

    def _numbers(self, word: str, letter: str) -> tuple[int, ...]:
        """Read a word and the numbers after it, such as ``wait e5 e7``."""
        if not self.accept_word(word):
            return ()
        numbers = [self.numbered(letter, _MARGIN)]
        while self._at_numbered(letter):
            numbers.append(self.numbered(letter, _MARGIN))
        return tuple(numbers)

    def _location(self) -> Location | None:
        if not self.accept_word("loc"):
            return None
        self.expect("(", _LOC)
        file: str | None = None
        line: int | None = None
        name: str | None = None
        stack: list[tuple[str, int]] = []

        def part() -> None:
            nonlocal file, line, name
            if self.accept_word("node"):
                name = self.prefixed_or_string(_LOC)
            elif self.accept_word("from"):
                caller = self.string(_LOC)
                self.expect(":", _LOC)
                stack.append((caller, self.integer(_LOC)))
            else:
                file = None if self.at(":") else self.string(_LOC)
                line = self.integer(_LOC) if self.accept(":") else None

        self.sequence(part, ")")
        return Location(file, line, name, tuple(stack))


_MARGIN = "a margin looks like | s2 wait e5 record e9; its parts are wait, begin, workspace, record and free"
_BOUND = "s3->4 is the logical stream 3, which runs on stream 4"

_LOC = 'a location looks like loc("net.py":12, node "conv1", from "main.py":3)'


@lru_cache(maxsize=4096)
def _known_location(text: str) -> Location | None:
    """Return the location of a clause without prefixes; many statements share one."""
    return Cursor(text)._location()


def _integer(text: str, start: int) -> int:
    if len(text) > 4000:
        raise Flaw("the number is too long", start, len(text), "use at most 4000 digits")
    return int(text)
