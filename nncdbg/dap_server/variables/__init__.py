"""Values for clients: scopes, children, one-line texts, places in the program, and reference numbers."""
