"""Journal of a PyTorch training: tracked values, checkpoints, restart, and the flight recorder."""
