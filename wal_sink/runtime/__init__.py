"""Access of the core to the outside world other than stores and sinks: clock, randomness, time limits, rates, process
ids.

It is injected, so that a simulation can replace it. No other module reads a clock or starts a timer itself.
"""
