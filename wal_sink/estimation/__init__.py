"""What a plan would cost and where its limits are, by calculation: no store is asked, no Spark is needed.

`plan` says what is planned and what a store costs, `requests` counts as the protocol sends them, `sizes` measures
records, `estimate` puts these together, `advice` says what to change first.
"""
