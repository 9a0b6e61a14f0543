"""What the core needs of the outside world besides stores and sinks: clock, chance, time limits, rates, process ids.

It is passed in, so that a simulation can take its place. No module elsewhere reads a clock or starts a timer itself.
"""
