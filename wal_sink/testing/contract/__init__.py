"""`SinkContract`: the tests that every sink of a kind has to pass, for sinks of users and for ours."""
