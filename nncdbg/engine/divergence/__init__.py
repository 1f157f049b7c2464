"""Compare two runs value by value: two models, backends, allocators or element types, or golden values.

`lockstep.compared(a, b).run()` gives a `report.Report`.  One program is compared in `lockstep`, statement by
statement.  Two programs are traced (`sides`), paired (`pairing`) and compared (`paired_runs`), and statements
with different results are judged (`blame`, `recomputation`).
"""
