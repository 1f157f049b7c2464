"""Values, stops and statements as text and images, for the terminal, the editor and notebooks."""
