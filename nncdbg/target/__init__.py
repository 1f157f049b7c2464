"""What is debugged, as commands and user interfaces see it: a program or a running script."""
