"""The graph language: parser, printer, and the mapping between lines and statements."""

from __future__ import annotations

from nncdbg.text.listing import Listing, Site
from nncdbg.textual_repr.parser import parse, parse_with_listing
from nncdbg.textual_repr.printer import listing, print_program

__all__ = ["Listing", "Site", "listing", "parse", "parse_with_listing", "print_program"]
