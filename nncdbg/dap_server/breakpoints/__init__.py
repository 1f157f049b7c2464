"""What a client asks to stop at."""
