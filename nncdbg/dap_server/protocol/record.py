"""What every record of the protocol is, and how the tables name an exchange of them."""

from typing import NamedTuple

from msgspec import Struct


class Record(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An object of the protocol. Fields not given are left out on the wire, and unknown ones are ignored.

    Subclasses inherit `rename` and `omit_defaults`; `kw_only` they must say, and `frozen` for type checkers.
    """


class Exchange(NamedTuple):
    """A request: the record of its arguments, that of the response's body, whether it must have arguments."""

    arguments: type[Record] | None
    body: type[Record] | None
    arguments_required: bool
