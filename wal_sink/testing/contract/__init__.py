"""`SinkContract`: the tests that every sink of a kind must pass, for sinks of users and for ours."""
