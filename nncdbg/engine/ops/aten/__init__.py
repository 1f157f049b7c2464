"""PyTorch's operators: signatures from torch's own registry, and facts about the ones that training uses.

Names in program text are ``aten.add.Tensor``, ``prims.sin.default`` and, for all other libraries of
operators, ``torch.LIBRARY.OP.OVERLOAD``.  torch is imported only when a signature is requested.
"""
