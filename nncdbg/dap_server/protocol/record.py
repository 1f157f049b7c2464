"""Base class of the protocol's records, and the entry of the tables for a request."""

from typing import NamedTuple

from msgspec import Struct


class Record(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An object of the protocol.  Omitted fields are left out on the wire, and unknown ones are ignored.

    Subclasses inherit `rename` and `omit_defaults`; they must repeat `kw_only`, and `frozen` for type
    checkers.
    """


class Exchange(NamedTuple):
    """A request: the record of its arguments, that of its response body, whether arguments are required."""

    arguments: type[Record] | None
    body: type[Record] | None
    arguments_required: bool
