"""Running, stepping and stopping: breakpoints, their places, and decisions to stop."""
