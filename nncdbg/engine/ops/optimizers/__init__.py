"""Optimizers of the domain ``nncdbg``: each op is the update of one parameter, with its formula."""
