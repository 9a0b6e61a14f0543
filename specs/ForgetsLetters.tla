---- MODULE ForgetsLetters ----
\* Rows that the target refuses, with a zombie and a lost answer.
EXTENDS Forgets
MCShape == <<<<1>>, <<2>>>>
MCBad == {<<1, 1, 1>>, <<1, 1, 2>>}
====
