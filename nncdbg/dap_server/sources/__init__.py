"""The texts that a client shows: listings, modules, instructions."""
