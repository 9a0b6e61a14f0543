"""Tables that tests send, and the comparison of what a target holds with them."""
