"""Building programs in Python: `nncdbg.Builder`, and the core shared with gradients."""
