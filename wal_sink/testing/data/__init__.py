"""Tables that tests send, and their comparison with the contents of a target."""
