"""Whole histories of the production core, each drawn from one integer: `python -m tests.simulation.histories --help`.

A *plan* (`plans`, `drawing`) lists the sinks, the batches, the lives of processes, and the faults at their points.
`playing` plays it: the production core runs against a simulated store, checkpoint, Spark, clock and targets. A *judge*
watches everything that reaches the store and the targets. It knows nothing of the core's code, and checks the laws I1
to I8 of the design.
"""
