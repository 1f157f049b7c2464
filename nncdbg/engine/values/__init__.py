"""Reading and changing the values of a program at a stop."""
