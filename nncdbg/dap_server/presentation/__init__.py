"""What a client sees of values: scopes, children, statistics, and the numbers that stand for them."""
