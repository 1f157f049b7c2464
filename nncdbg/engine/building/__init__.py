"""Building programs in Python: `nncdbg.Builder`, and the core that gradients share."""
