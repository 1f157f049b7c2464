"""The distance of two values, its tolerance, the records of a comparison, and what a schedule issues when."""
