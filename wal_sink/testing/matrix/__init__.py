"""`crash_matrix`: a run of three batches, disturbed at every point and compared with the promise of its sink."""
