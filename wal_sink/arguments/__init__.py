"""Checks of users' arguments: names, numbers, functions, sinks. Nothing is started or opened here.

A wrong argument raises `ConfigError`. The message names the argument, the found value and the expected one.
"""
