---- MODULE ForgetsSlots ----
\* The newest commits of one slot are lost, while batches with and without it are delivered.
EXTENDS Forgets
MCShape == <<<<1, 1>>, <<1>>, <<1, 1>>>>
====
