"""Times of statements: tables, the margin of a listing, and the timeline."""
