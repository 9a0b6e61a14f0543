"""Checks of what users pass: names, numbers, functions, sinks. Nothing is started or opened here.

A wrong argument raises `ConfigError`. It names the argument, what was found and what was expected.
"""
