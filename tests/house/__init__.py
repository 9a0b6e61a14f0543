"""Names from inside the package that many tests use, a file for each chapter: a move within wal_sink touches only this.

A test of one module imports that module itself. tests/documents/test_house.py holds the rule.
"""
