"""Line numbers of statements, and statements at lines."""

from __future__ import annotations

import pytest

from nncdbg.textual_repr import Listing, Site, parse, parse_with_listing

TEXT = """\
#nncdbg 1

graph @main(%x: f32[2], %c: bool[]) -> (%y: f32[2]) {
  %one: f32[] = 1.0
  # a comment
  %a: f32[2] = Add(%x, %one)
  while @w (%s: f32[2] = %a) {

    break unless %c
    if %c {
      yield %s
    } else {
      %t: f32[2] = Relu(%s)
      yield %t
    } -> (%u: f32[2])
    next %s = %u
  } -> (%y: f32[2] = %s)
  return %y
}
"""

SITES = {
    6: Site(("main",), 0),
    7: Site(("main",), 1),
    9: Site(("main", 1, 0), 0),
    10: Site(("main", 1, 0), 1),
    11: Site(("main", 1, 0, 1, 0), 0),
    13: Site(("main", 1, 0, 1, 1), 0),
    14: Site(("main", 1, 0, 1, 1), 1),
    16: Site(("main", 1, 0), 2),
    18: Site(("main",), 2),
}


@pytest.fixture(name="listing", scope="module")
def _listing() -> Listing:
    return parse_with_listing(TEXT, file="net.nnc")[1]


def test_only_lines_of_statements_have_a_site(listing: Listing) -> None:
    assert {n: listing.site(n) for n in range(30) if listing.site(n)} == SITES


def test_each_site_has_its_line(listing: Listing) -> None:
    assert {listing.line(site.path, site.pc): site for site in SITES.values()} == SITES


@pytest.mark.parametrize(
    ("line", "bound"), [(1, 6), (3, 6), (4, 6), (6, 6), (8, 9), (12, 13), (15, 16), (17, 18)]
)
def test_a_breakpoint_between_statements_binds_to_the_next(listing: Listing, line: int, bound: int) -> None:
    assert listing.next_site(line) == (bound, SITES[bound])


def test_nothing_binds_after_the_last_statement(listing: Listing) -> None:
    assert listing.next_site(19) is None


def test_headers_have_their_lines(listing: Listing) -> None:
    assert listing.headers == {
        ("main",): 3,
        ("main", 1, 0): 7,
        ("main", 1, 0, 1, 0): 10,
        ("main", 1, 0, 1, 1): 12,
    }
    assert listing.header_line(("main", 1, 0)) == 7


def test_the_lines_are_those_of_the_text(listing: Listing) -> None:
    assert "\n".join(listing.lines) == TEXT
    assert listing.file == "net.nnc"


WRAPPED = """graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %y =
      Add(
        %x, [
          1.0, 2.0])
      : f32[2]
  return %y
}
"""


def test_a_statement_of_several_lines_is_quoted_in_one() -> None:
    listing = parse(WRAPPED).listing
    assert listing is not None
    text = "  %y = Add(%x, [1.0, 2.0]) : f32[2]"
    assert listing.statement(2) == text
    excerpt = listing.excerpt(("main",), 0)
    assert (excerpt.text, excerpt.line, excerpt.column, excerpt.width) == (text, 2, 3, len(text) - 2)


@pytest.mark.parametrize("line", range(2, 7))
def test_a_breakpoint_at_any_line_of_a_statement_is_at_its_first(line: int) -> None:
    listing = parse(WRAPPED).listing
    assert listing is not None
    site = listing.site(line)
    assert site is not None
    assert (site.pc, listing.next_site(line)) == (0, (2, site))
