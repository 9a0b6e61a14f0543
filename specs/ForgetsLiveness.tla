---- MODULE ForgetsLiveness ----
\* Whatever is forgotten, the last process delivers everything or says why it cannot.
EXTENDS Forgets
MCShape == <<<<1>>, <<1, 1>>>>
MCBad == {<<1, 1, 1>>}
====
