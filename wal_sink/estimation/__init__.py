"""Calculates the costs and limits of a plan, without any request to a store and without Spark.

`plan` describes the plan and the store's costs, `requests` counts requests as the protocol sends them, `sizes` measures
records, `estimate` combines these, `advice` says what to change first.
"""
