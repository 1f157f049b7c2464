"""The representation of programs: records, kinds of statements, walks, rewriting and emission."""
