"""`crash_matrix`: a run of three batches, disturbed at every point, judged by what its sink promises."""
