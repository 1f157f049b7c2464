"""Values, stops and statements as text and pictures, for the terminal, the editor and notebooks."""
