"""Metrics of runs for Prometheus: their names, the numbers of this process, and the server that shows them.

Everything comes from events and from counts of requests, so that metrics cause no request.
"""
