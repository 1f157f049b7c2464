"""Two runs compared value by value: of two models, backends, allocators or element types.

`lockstep.Lockstep(a, b).run()` gives a `report.Report`.
"""
