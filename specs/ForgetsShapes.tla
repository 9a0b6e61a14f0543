---- MODULE ForgetsShapes ----
\* The same twice, with a batch of fewer segments than the one before.
EXTENDS Forgets
MCShape == <<<<1, 1>>, <<1>>>>
====
