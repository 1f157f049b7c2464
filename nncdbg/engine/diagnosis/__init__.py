"""Where a NaN or an Inf was born, and why."""
