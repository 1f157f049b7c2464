"""Gradients as graphs, from the rules and formulas of the ops."""
