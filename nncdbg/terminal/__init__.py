"""The command line, and the prompt in a terminal."""
