"""Whole histories of the production core, each drawn from one integer: `python -m tests.simulation.histories --help`.

A *plan* (`plans`, `drawing`) says which sinks, which batches, which lives of processes, and what happens to them at
which of their points. `playing` plays it: the production core against a simulated store, checkpoint, Spark, clock and
targets. A *judge* that knows nothing of the core's code watches what reaches the store and the targets, and holds it
against the laws I1 to I8 of the design.
"""
