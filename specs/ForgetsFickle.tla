---- MODULE ForgetsFickle ----
\* Rows that the target refuses now and takes later; one process after the other.
EXTENDS Forgets
MCShape == <<<<1>>, <<2>>>>
MCBad == {<<1, 1, 1>>, <<1, 1, 2>>}
====
