"""Origins and causes of NaN and Inf."""
