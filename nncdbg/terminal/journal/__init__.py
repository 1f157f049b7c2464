"""Commands on a journal: the list of its runs, the log of one, queries, comparison and export."""
