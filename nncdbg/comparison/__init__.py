"""The distance of two values, its tolerance, and the records of a comparison."""
