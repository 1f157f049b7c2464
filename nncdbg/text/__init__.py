"""Program text: spelling of names and types, name prefixes, and the lines of statements."""
