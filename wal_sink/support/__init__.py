"""Tools for every room: clock and chance, timed calls, threads, texts, loggers, secrets, events, times, types.

Nothing here knows a WAL or a sink. Clock, chance and threads are injected into the core, so that a simulation replaces
them. No function of loggers, texts and events raises or ends a thread.
"""
