"""What a target implements: `Sink` and its kinds, chunks, positions, guarantees. Also how a sink is called.

The ready sinks are not here but in `wal_sink_backends`; `urls` finds them by the scheme of a URL.
"""
